package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/rueidis"

	"holdfast/events"
)

// Scan gives everything that is in the log after a position to f, page after page in order, until the log's end as
// it stands when that is reached. While f has one page, the next is decoded and the one after it is read.
//
// At an entry that cannot be read it stops as Range does, after f has been given the records before it. An error of
// f ends it too and is returned.
func (s *Store) Scan(ctx context.Context, after events.Position, page int, f func([]events.Record) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var stages sync.WaitGroup
	defer stages.Wait()
	defer cancel()

	read := make(chan rawPage, 1)
	stages.Go(func() {
		defer close(read)
		s.scanPages(ctx, after, page, read)
	})
	decoded := make(chan decodedPage, 1)
	stages.Go(func() {
		defer close(decoded)
		for raw := range read {
			d := decodedPage{err: raw.err}
			if raw.err == nil {
				if d.records, d.err = decodeRecords(raw.entries); d.err != nil {
					d.err = fmt.Errorf("store: scan: %w", d.err)
				}
			}
			select {
			case decoded <- d:
			case <-ctx.Done():
			}
		}
	})
	for d := range decoded {
		if len(d.records) > 0 {
			if err := f(d.records); err != nil {
				return err
			}
		}
		if d.err != nil {
			return d.err
		}
	}
	return ctx.Err()
}

type rawPage struct {
	entries []rueidis.RedisMessage
	err     error
}

type decodedPage struct {
	records []events.Record
	err     error
}

// scanPages reads page after page and ends after the last one, an error, or ctx.
func (s *Store) scanPages(ctx context.Context, after events.Position, page int, out chan<- rawPage) {
	const op = "scan"
	for {
		res := s.do(ctx, s.client.B().Xrange().Key(s.keys.log).Start(after.Next().String()).End("+").Count(int64(page)).Build())
		var raw rawPage
		if raw.err = s.check(ctx, op, res); raw.err == nil {
			raw.entries, raw.err = res.ToArray()
			if raw.err != nil {
				raw.err = malformed(op, raw.err)
			}
		}
		n := len(raw.entries)
		if n > 0 {
			id, _, err := splitEntry(&raw.entries[n-1])
			if err == nil {
				after, err = events.ParsePosition(id)
			}
			if err != nil {
				n = 0 // the decoder says what is wrong with it
			}
		}
		select {
		case out <- raw:
		case <-ctx.Done():
			return
		}
		if raw.err != nil || n < page {
			return
		}
	}
}
