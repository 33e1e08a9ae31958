package hammer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

const (
	streamBatch     = 1000
	streamBlock     = 500 // ms; also how long a reader outlives a lost server
	streamKeep      = 10_000
	streamReplyWait = 30 * time.Second
	streamRetry     = 100 * time.Millisecond
)

// runStreams measures what the log alone costs: a request appended to one
// stream, read by a responder, answered on a second one, with nothing else in
// between. The asking and the answering side have a connection pool each, as
// two replicas would. Each message is an entry of its own: a server comes near this
// figure only by joining several in one.
func runStreams(ctx context.Context, url string, l load, payload int) (Figures, error) {
	option, err := rueidis.ParseURL(url)
	if err != nil {
		return Figures{}, fmt.Errorf("baseline %s: %w", url, err)
	}
	option.AlwaysPipelining = true
	option.DisableCache = true
	option.DisableRetry = true
	option.BlockingPoolSize = 2
	option.ConnWriteTimeout = 3 * time.Second
	option.ReadBufferEachConn = 64 << 10
	option.WriteBufferEachConn = 64 << 10
	asking, err := rueidis.NewClient(option)
	if err != nil {
		return Figures{}, fmt.Errorf("baseline: connect: %w", err)
	}
	defer asking.Close()
	answering, err := rueidis.NewClient(option)
	if err != nil {
		return Figures{}, fmt.Errorf("baseline: connect: %w", err)
	}
	defer answering.Close()

	// One hash tag, so that a cluster keeps both on one shard.
	tag := "{holdfast-bench:" + runID() + "}"
	s := &streams{
		requests: tag + ":requests",
		replies:  tag + ":replies",
		keep:     strconv.Itoa(max(streamKeep, 4*l.Workers)),
		payload:  strings.Repeat("x", payload),
		waiting:  make([]chan uint64, l.Workers),
	}
	for i := range s.waiting {
		s.waiting[i] = make(chan uint64, 1)
	}

	readers, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { s.answer(readers, answering) })
	running.Go(func() { s.collect(readers, asking) })
	f := l.run(ctx, func(ctx context.Context, worker int, n uint64) string {
		return s.ask(ctx, asking, worker, n)
	})
	stop()
	running.Wait()

	// The streams are this run's own, so they go even if it was interrupted.
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if err := asking.Do(cleanup, asking.B().Del().Key(s.requests, s.replies).Build()).Error(); err != nil {
		return f, fmt.Errorf("baseline: delete streams: %w", err)
	}
	return f, nil
}

type streams struct {
	requests, replies string
	keep, payload     string
	waiting           []chan uint64 // by worker: the number of the answered call
}

func (s *streams) entry(c rueidis.Client, stream, worker, n, payload string) rueidis.Completed {
	return c.B().Xadd().Key(stream).Maxlen().Almost().Threshold(s.keep).Id("*").
		FieldValue().FieldValue("w", worker).FieldValue("n", n).FieldValue("p", payload).Build()
}

func (s *streams) ask(ctx context.Context, c rueidis.Client, worker int, n uint64) string {
	ctx, cancel := context.WithTimeout(ctx, streamReplyWait)
	defer cancel()
	add := s.entry(c, s.requests, strconv.Itoa(worker), strconv.FormatUint(n, 10), s.payload)
	if err := c.Do(ctx, add).Error(); err != nil {
		return "APPEND_FAILED"
	}
	for {
		select {
		case answered := <-s.waiting[worker]:
			if answered == n {
				return ""
			}
		case <-ctx.Done():
			return "TIMEOUT"
		}
	}
}

func (s *streams) answer(ctx context.Context, c rueidis.Client) {
	replies := make([]rueidis.Completed, 0, streamBatch)
	follow(ctx, c, s.requests, func(batch []rueidis.XRangeEntry) {
		replies = replies[:0]
		for _, e := range batch {
			replies = append(replies, s.entry(c, s.replies, e.FieldValues["w"], e.FieldValues["n"], e.FieldValues["p"]))
		}
		// A failed append is a call without an answer, and counted as that.
		c.DoMulti(ctx, replies...)
	})
}

func (s *streams) collect(ctx context.Context, c rueidis.Client) {
	follow(ctx, c, s.replies, func(batch []rueidis.XRangeEntry) {
		for _, e := range batch {
			worker, err := strconv.Atoi(e.FieldValues["w"])
			n, err2 := strconv.ParseUint(e.FieldValues["n"], 10, 64)
			if err != nil || err2 != nil || worker < 0 || worker >= len(s.waiting) {
				continue
			}
			// An answer that its worker gave up on makes room.
			select {
			case <-s.waiting[worker]:
			default:
			}
			s.waiting[worker] <- n
		}
	})
}

// follow hands every entry of a stream to each, in order, until ctx ends.
func follow(ctx context.Context, c rueidis.Client, stream string, each func([]rueidis.XRangeEntry)) {
	last := "0-0"
	for ctx.Err() == nil {
		read := c.B().Xread().Count(streamBatch).Block(streamBlock).Streams().Key(stream).Id(last).Build()
		got, err := c.Do(ctx, read).AsXRead()
		switch {
		case err == nil:
			if batch := got[stream]; len(batch) > 0 {
				last = batch[len(batch)-1].ID
				each(batch)
			}
		case rueidis.IsRedisNil(err), errors.Is(err, context.Canceled):
		default:
			select {
			case <-time.After(streamRetry):
			case <-ctx.Done():
			}
		}
	}
}
