package cli

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
)

// contentOf is a slice as it is before compression, with its state decoded.
func contentOf(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	zip, err := gzip.NewReader(bytes.NewReader(b[bytes.IndexByte(b, '\n')+1:]))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	src, err := openSlice(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + string(src.header.State)
}

func TestRedactionLeaksNothingAndKeepsTheStory(t *testing.T) {
	entries := history(t)
	all := append(slices.Clone(entries), newerEntry(entries[11]))
	all = append(all, store.Entry{
		Position: all[12].Position.Next(), Token: historyID('T', 98), Previous: historyID('T', 99), Type: "secret-type",
		Replica: "r3", Touches: "peer:me/daemon", Data: []byte("secret data"), Damage: errors.New("damaged: secret"),
	})
	plainFile := sliceOf(t, foldOf(t, entries[:5]), all[5:])
	dir := t.TempDir()
	first, second := filepath.Join(dir, "1"), filepath.Join(dir, "2")
	replay(t, plainFile, "--export", first, "--redact")
	replay(t, plainFile, "--export", second, "--redact")

	original, content := contentOf(t, plainFile), contentOf(t, first)
	for _, name := range []string{
		`"me"`, "daemon", "greet", "ring", "a/b", "a%2Fb", "phone", `"r1"`, `"r2"`, `"r3"`, "http://", "8080",
		`"s1"`, `"s2"`, "pid1", "pid2", "lobby", `"members"`, ":7}", "secret",
	} {
		if !strings.Contains(original, name) && !strings.Contains(original, strings.Trim(name, `"`)) {
			t.Errorf("%s is not in the original: this test looks for nothing", name)
		}
		if strings.Contains(content, name) {
			t.Errorf("%s is in the redacted file", name)
		}
	}
	for _, e := range all {
		for _, id := range []ulid.ULID{e.Token, e.Cause} {
			if !id.IsZero() && (strings.Contains(content, id.String()) || strings.Contains(content, string(id[:]))) {
				t.Errorf("token or cause %s is in the redacted file", id)
			}
		}
	}
	for n := 1; n <= 3; n++ {
		if strings.Contains(content, historyID('C', n).String()) || strings.Contains(content, historyID('I', n).String()) {
			t.Errorf("connection or incarnation %d is in the redacted file", n)
		}
	}
	if contentOf(t, second) == content {
		t.Error("two files have the same pseudonyms")
	}

	// The same story is told about other names.
	if got, want := positions(t, first), positions(t, plainFile); len(got) != 9 || !slices.Equal(got, want) {
		t.Errorf("positions %v, want %v", got, want)
	}
	shape := func(file string, at events.Position) (all []string) {
		var v stateView
		if err := json.Unmarshal([]byte(replay(t, file, "--at", at.String(), "--format", "json")), &v); err != nil {
			t.Fatal(err)
		}
		for _, r := range v.Replicas {
			all = append(all, "replica "+r.Since)
		}
		for _, p := range v.Peers {
			all = append(all, "peer "+p.Status+p.Since)
		}
		for _, r := range v.Registrations {
			all = append(all, "registration "+r.Status)
		}
		slices.Sort(all)
		return all
	}
	for _, e := range entries[5:] {
		if got, want := shape(first, e.Position), shape(plainFile, e.Position); !slices.Equal(got, want) {
			t.Errorf("at %s: %v, want %v", e.Position, got, want)
		}
	}
}

func TestPseudonyms(t *testing.T) {
	r, other := redactor{salt: []byte("a")}, redactor{salt: []byte("b")}
	if a := r.Name("user", "me"); a != r.Name("user", "me") || a == r.Name("user", "you") || a == other.Name("user", "me") {
		t.Errorf("%s: the same name has the same pseudonym within a file, and only there", a)
	}
	if r.Name("user", "") != "" {
		t.Error("no name has got one")
	}
	earlier, later := ulid.MustNew(1000, nil), ulid.MustNew(2000, nil)
	if a, b := r.Token(earlier), r.Token(later); a == earlier || a.Compare(b) >= 0 || a.Time() != earlier.Time() {
		t.Errorf("%s and %s do not stand in the order of %s and %s", a, b, earlier, later)
	}
	if a := r.Aggregate(events.PeerKey("a/b", "c")); a != events.PeerKey(r.Name("user", "a/b"), r.Name("peer", "c")) {
		t.Errorf("aggregate %s", a)
	}
	if a := r.Aggregate("room:me"); strings.Contains(string(a), "me") {
		t.Errorf("aggregate %s of a kind that is not known", a)
	}
}

// A field that somebody adds to an event is named here, kept here, or replaced; which, has to be decided.
func TestEveryFieldOfEventsIsNamedOrKept(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "events", "testdata", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatal("no examples of events", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		fields, ok := fieldsOf(data)
		if !ok {
			t.Fatalf("%s is no object", file)
		}
		for _, f := range fields {
			if named[f.name] == "" && !kept[f.name] && !theirs[f.name] {
				t.Errorf("%s: is %q a name (named), harmless (kept), or neither (then say so here)?", file, f.name)
			}
		}
	}
}

func TestRedactedStateIsTheRedactedFold(t *testing.T) {
	entries := roomHistory(t)
	r := redactor{salt: []byte("salt")}
	f := folding{state: projections.New()}
	for i, e := range entries {
		if err := f.apply(r.entry(e)); err != nil {
			t.Fatal(err)
		}
		if want := foldOf(t, entries[:i+1]).Renamed(r); want.Digest() != f.state.Digest() {
			t.Fatalf("after entry %d the fold of pseudonyms is not the pseudonym of the fold", i+1)
		}
	}
}
