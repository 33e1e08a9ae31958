package store

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var (
	//go:embed lease_acquire.lua
	leaseAcquireSource string
	//go:embed lease_release.lua
	leaseReleaseSource string
	//go:embed lease_beat.lua
	leaseBeatSource string
	//go:embed inbox_beat.lua
	inboxBeatSource string

	leaseAcquireScript = rueidis.NewLuaScript(leaseAcquireSource)
	leaseReleaseScript = rueidis.NewLuaScript(leaseReleaseSource)
	leaseBeatScript    = rueidis.NewLuaScript(leaseBeatSource)
	inboxBeatScript    = rueidis.NewLuaScript(inboxBeatSource)
)

// AcquireLease takes the lease of an instance for an incarnation; ErrLeaseHeld while another one has it. Taking the
// own lease once more renews it.
func (s *Store) AcquireLease(ctx context.Context, in Inbox, ttl time.Duration) error {
	const op = "acquire lease"
	res := s.run(ctx, leaseAcquireScript, []string{s.keys.leaseOf(in.Instance)}, []string{in.Incarnation, millis(ttl)})
	if err := s.check(ctx, op, res); err != nil {
		return err
	}
	holder, err := res.ToString()
	if err != nil {
		return malformed(op, err)
	}
	if holder != in.Incarnation {
		return fmt.Errorf("store: %s: %w: %s", op, ErrLeaseHeld, holder)
	}
	return nil
}

// LeaseState says which incarnation holds the lease of an instance, "" for none, and how long it still lasts. A
// holder that lives makes the time jump up again at each beat.
func (s *Store) LeaseState(ctx context.Context, instance string) (holder string, ttl time.Duration, err error) {
	const op = "lease state"
	key := s.keys.leaseOf(instance)
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	answers := s.client.DoMulti(bounded, s.client.B().Get().Key(key).Build(), s.client.B().Pttl().Key(key).Build())
	for _, res := range answers {
		if err := s.check(ctx, op, res); err != nil {
			return "", 0, err
		}
	}
	left, err := answers[1].AsInt64()
	if err != nil {
		return "", 0, malformed(op, err)
	}
	holder, err = answers[0].ToString()
	if rueidis.IsRedisNil(err) || left <= 0 {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, malformed(op, err)
	}
	return holder, time.Duration(left) * time.Millisecond, nil
}

// ReleaseLease gives the lease up; nothing happens when another incarnation has it, or none.
func (s *Store) ReleaseLease(ctx context.Context, in Inbox) error {
	res := s.run(ctx, leaseReleaseScript, []string{s.keys.leaseOf(in.Instance)}, []string{in.Incarnation})
	return s.check(ctx, "release lease", res)
}

// Beat renews the lease of a replica, looks after its inbox and learns how the others do. consumed is the Seq up
// to which the inbox has been handled: that much is removed from it. others are the instances whose leases
// are looked at.
//
// When the lease is another incarnation's, the error is ErrLeaseLost and nothing has been changed. When the
// lease or the inbox was missing, it has been made again and Healed is set. What was in the inbox is lost then,
// and it begins again with an empty message at consumed+1: the owner has to read on from consumed. The lease and
// the inbox are in different slots, and an error may leave the first renewed and the second untouched.
func (s *Store) Beat(ctx context.Context, in Inbox, ttl time.Duration, consumed uint64, others []string) (Beat, error) {
	const op = "beat"
	epoch, err := in.epoch()
	if err != nil {
		return Beat{}, fmt.Errorf("store: %s: %w", op, err)
	}
	leases := make([]string, 0, 3+len(others))
	leases = append(leases, s.keys.leaseOf(in.Instance), s.keys.versions, s.keys.secret)
	for _, instance := range others {
		leases = append(leases, s.keys.leaseOf(instance))
	}
	res := s.run(ctx, leaseBeatScript, leases, []string{in.Incarnation, millis(ttl)})
	if err := s.check(ctx, op, res); err != nil {
		return Beat{}, err
	}
	beat, err := parseLeaseBeat(res, others)
	if errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrDamaged) {
		return Beat{}, fmt.Errorf("store: %s: %w", op, err)
	}
	if err != nil {
		return Beat{}, malformed(op, err)
	}

	res = s.run(ctx, inboxBeatScript, []string{s.keys.inboxOf(in)}, []string{epoch, strconv.FormatUint(consumed+1, 10)})
	if err := s.check(ctx, op, res); err != nil {
		return Beat{}, err
	}
	inbox, err := res.AsIntSlice()
	if err != nil {
		return Beat{}, malformed(op, err)
	}
	if len(inbox) != 2 {
		return Beat{}, malformed(op, fmt.Errorf("%d parts", len(inbox)))
	}
	beat.Healed = beat.Healed || inbox[0] == 1
	beat.Lag = inbox[1]
	return beat, nil
}

func parseLeaseBeat(res rueidis.RedisResult, others []string) (Beat, error) {
	parts, err := res.ToArray()
	if err != nil {
		return Beat{}, err
	}
	if len(parts) != 6+len(others) {
		return Beat{}, fmt.Errorf("%d parts", len(parts))
	}
	state, err := parts[0].ToString()
	if err != nil {
		return Beat{}, err
	}
	if state == "lost" {
		holder, _ := parts[4].ToString()
		return Beat{}, fmt.Errorf("%w: %s", ErrLeaseLost, holder)
	}
	seconds, err := parts[1].AsInt64()
	if err != nil {
		return Beat{}, err
	}
	micros, err := parts[2].AsInt64()
	if err != nil {
		return Beat{}, err
	}
	beat := Beat{
		Now:    time.Unix(seconds, micros*int64(time.Microsecond)).UTC(),
		Left:   make(map[string]time.Duration, len(others)),
		Healed: state == "healed",
	}
	head, err := parts[3].ToString()
	if err != nil {
		return Beat{}, err
	}
	if head != "" {
		if beat.Head, err = parseHead(head); err != nil {
			return Beat{}, err
		}
	}
	if beat.Secret, err = parts[5].ToString(); err != nil {
		return Beat{}, err
	}
	for i, instance := range others {
		left, err := parts[6+i].AsInt64()
		if err != nil {
			return Beat{}, err
		}
		if left >= 0 {
			beat.Left[instance] = time.Duration(left) * time.Millisecond
		}
	}
	return beat, nil
}

// millis is a duration as an argument; what would be nothing becomes the least there is.
func millis(d time.Duration) string { return strconv.FormatInt(max(1, d.Milliseconds()), 10) }
