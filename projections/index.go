package projections

// An index of an index is made when its first entry comes, and goes with its last.

func put[K, L comparable, V any](index map[K]map[L]V, at K, name L, v V) {
	entries := index[at]
	if entries == nil {
		entries = map[L]V{}
		index[at] = entries
	}
	entries[name] = v
}

func drop[K, L comparable, V any](index map[K]map[L]V, at K, name L) {
	entries := index[at]
	delete(entries, name)
	if len(entries) == 0 {
		delete(index, at)
	}
}
