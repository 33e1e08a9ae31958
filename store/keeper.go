package store

import (
	"context"
	"strings"
	"time"
)

// Keep takes the keeper's lease for ttl, or renews it; false while another one has it. Of the replicas of a
// namespace the keeper alone writes snapshots, trims the log and removes what dead ones have left.
func (s *Store) Keep(ctx context.Context, who Inbox, ttl time.Duration) (bool, error) {
	const op = "keep"
	res := s.run(ctx, leaseAcquireScript, []string{s.keys.keeper}, []string{who.holder(), millis(ttl)})
	if err := s.check(ctx, op, res); err != nil {
		return false, err
	}
	holder, err := res.ToString()
	if err != nil {
		return false, malformed(op, err)
	}
	return holder == who.holder(), nil
}

// ReleaseKeep gives the keeper's lease up; nothing happens when another one has it.
func (s *Store) ReleaseKeep(ctx context.Context, who Inbox) error {
	return s.check(ctx, "release keep", s.run(ctx, leaseReleaseScript, []string{s.keys.keeper}, []string{who.holder()}))
}

func (in Inbox) holder() string { return in.Instance + ":" + in.Incarnation }

// scanPage is how many keys Redis looks at for one command.
const scanPage = 1000

// Inboxes lists the inboxes that exist. It looks at every key of the database, a page at a time: rarely, please.
func (s *Store) Inboxes(ctx context.Context) ([]Inbox, error) {
	const op = "inboxes"
	found := map[Inbox]bool{}
	pattern := globEscape.Replace(s.keys.inboxes(0)) + "*"
	for _, node := range s.client.Nodes() {
		for cursor := uint64(0); ; {
			bounded, cancel := s.bounded(ctx)
			res := node.Do(bounded, node.B().Scan().Cursor(cursor).Match(pattern).Count(scanPage).Build())
			cancel()
			if err := s.check(ctx, op, res); err != nil {
				return nil, err
			}
			page, err := res.AsScanEntry()
			if err != nil {
				return nil, malformed(op, err)
			}
			for _, key := range page.Elements {
				instance, incarnation, ok := strings.Cut(strings.TrimPrefix(key, s.keys.inboxes(0)), ":")
				if ok {
					found[Inbox{Instance: instance, Incarnation: incarnation}] = true
				}
			}
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
	list := make([]Inbox, 0, len(found))
	for in := range found {
		list = append(list, in)
	}
	return list, nil
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)
