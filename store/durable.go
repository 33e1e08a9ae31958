package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

// ErrNotReplicated is returned when what was written is in Redis but no replica of it has confirmed it in time.
// A failover may lose it.
var ErrNotReplicated = errors.New("no replica of Redis has confirmed the write in time")

const defaultReplicaWait = time.Second

// Replicated reports whether appends wait for a replica of Redis.
func (s *Store) Replicated() bool { return s.replicated }

// appendDurable is the append script, and the wait for a replica of Redis on the same connection: WAIT speaks of the
// writes of its own connection only. A connection of its own also keeps everything else from waiting behind it.
func (s *Store) appendDurable(ctx context.Context, op string, keys, args []string) (rueidis.RedisResult, error) {
	var res rueidis.RedisResult
	err := s.onOne(ctx, func(ctx context.Context, c rueidis.DedicatedClient) error {
		// The whole script, not its hash: a round trip less when Redis does not know it.
		res = c.Do(ctx, c.B().Eval().Script(appendSource).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build())
		if err := s.check(ctx, op, res); err != nil {
			return err
		}
		return s.awaitReplicas(ctx, op, c)
	})
	return res, err
}

// onOne calls f with a connection of its own, within the time of a command and of the wait for a replica.
func (s *Store) onOne(ctx context.Context, f func(context.Context, rueidis.DedicatedClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout+s.replicaWait)
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	return s.client.Dedicated(func(c rueidis.DedicatedClient) error { return f(ctx, c) })
}

// ConfirmedHead is the Head, once a replica of Redis has everything up to it. It is ErrNotReplicated when that takes
// too long.
func (s *Store) ConfirmedHead(ctx context.Context) (Head, error) {
	const op = "confirm head"
	var head Head
	err := s.onOne(ctx, func(ctx context.Context, c rueidis.DedicatedClient) error {
		res := c.Do(ctx, c.B().Hget().Key(s.keys.versions).Field(headField).Build())
		if err := s.check(ctx, op, res); err != nil {
			return err
		}
		text, err := res.ToString()
		if err == nil {
			head, err = parseHead(text)
		}
		if err != nil && !rueidis.IsRedisNil(err) {
			return malformed(op, err)
		}
		return s.awaitReplicas(ctx, op, c)
	})
	return head, err
}

// awaitReplicas waits until a replica of Redis has everything that was written before the last command of the
// connection.
func (s *Store) awaitReplicas(ctx context.Context, op string, c rueidis.DedicatedClient) error {
	res := c.Do(ctx, c.B().Wait().Numreplicas(1).Timeout(max(1, s.replicaWait.Milliseconds())).Build())
	if err := s.check(ctx, op, res); err != nil {
		return err
	}
	n, err := res.AsInt64()
	if err != nil {
		return malformed(op, err)
	}
	if n < 1 {
		return fmt.Errorf("store: %s: %w (%s)", op, ErrNotReplicated, s.replicaWait)
	}
	return nil
}
