package store

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

var (
	//go:embed call_begin.lua
	callBeginSource string
	//go:embed call_sent.lua
	callSentSource string
	//go:embed call_adopt.lua
	callAdoptSource string
	//go:embed call_finish.lua
	callFinishSource string
	//go:embed call_drop.lua
	callDropSource string

	callBeginScript  = rueidis.NewLuaScript(callBeginSource)
	callSentScript   = rueidis.NewLuaScript(callSentSource)
	callAdoptScript  = rueidis.NewLuaScript(callAdoptSource)
	callFinishScript = rueidis.NewLuaScript(callFinishSource)
	callDropScript   = rueidis.NewLuaScript(callDropSource)
)

// BeginCall makes the record of a call, owned and running, and started is true; it lasts for ttl. If there is one
// already, that is returned, and while it runs with the same method, joiner is added to those whom FinishCall
// names. A repeat after ErrUnavailable may find the caller's own record: started is false and Owner is itself.
func (s *Store) BeginCall(ctx context.Context, key CallKey, owner Inbox, method, joiner string, ttl time.Duration) (rec CallRecord, started bool, err error) {
	const op = "begin call"
	res := s.run(ctx, callBeginScript, []string{s.keys.callOf(key)},
		[]string{owner.Instance, owner.Incarnation, method, joiner, millis(ttl)})
	if err := s.check(ctx, op, res); err != nil {
		return CallRecord{}, false, err
	}
	if rueidis.IsRedisNil(res.Error()) {
		return CallRecord{Owner: owner, Method: method}, true, nil
	}
	rec, _, err = parseCall(op, res)
	return rec, false, err
}

// SentCall notes where the request of a running call went, and under which ack id, and lets both last for ttl.
// ErrNotOwner, and nothing noted, when owner does not run the call (any more).
func (s *Store) SentCall(ctx context.Context, key CallKey, owner Inbox, target string, ack AckKey, ttl time.Duration) error {
	const op = "sent call"
	res := s.run(ctx, callSentScript, []string{s.keys.callOf(key), s.keys.ackOf(ack)},
		[]string{owner.Instance, owner.Incarnation, target, formatCallPointer(key), millis(ttl)})
	if err := s.check(ctx, op, res); err != nil {
		return err
	}
	noted, err := res.AsInt64()
	if err != nil {
		return malformed(op, err)
	}
	if noted == 0 {
		return fmt.Errorf("store: %s: %w", op, ErrNotOwner)
	}
	return nil
}

// AdoptCall gives a running call of a dead owner to another replica, for ttl, and ok is true: of several that
// try, one succeeds. Otherwise ok is false, and the record is as it stands, zero if there is none.
func (s *Store) AdoptCall(ctx context.Context, key CallKey, from, to Inbox, ttl time.Duration) (rec CallRecord, ok bool, err error) {
	const op = "adopt call"
	res := s.run(ctx, callAdoptScript, []string{s.keys.callOf(key)},
		[]string{from.Instance, from.Incarnation, to.Instance, to.Incarnation, millis(ttl)})
	if err := s.check(ctx, op, res); err != nil {
		return CallRecord{}, false, err
	}
	parts, err := res.ToArray()
	if err != nil {
		return CallRecord{}, false, malformed(op, err)
	}
	if len(parts) != 1+callFields {
		return CallRecord{}, false, malformed(op, fmt.Errorf("%d parts", len(parts)))
	}
	adopted, err := parts[0].AsInt64()
	if err != nil {
		return CallRecord{}, false, malformed(op, err)
	}
	rec, _ = callRecord(parts[1:])
	return rec, adopted == 1, nil
}

// FinishCall stores the result of a running call for the time keep (not at all when that is zero), and returns
// who joined, in no order. With the zero owner it finishes the call whoever runs it. ok is false, and nothing has
// been changed, when there is no such running call.
func (s *Store) FinishCall(ctx context.Context, key CallKey, owner Inbox, result []byte, keep time.Duration) (joiners []string, ok bool, err error) {
	kept := "0"
	if keep > 0 {
		kept = millis(keep)
	}
	return s.endCall(ctx, "finish call", callFinishScript, key,
		[]string{owner.Instance, owner.Incarnation, rueidis.BinaryString(result), kept})
}

// DropCall removes the record of a running call whose request never left, so that a repeat starts anew, and returns
// who joined, in no order. Nothing happens when owner does not run such a call.
func (s *Store) DropCall(ctx context.Context, key CallKey, owner Inbox) (joiners []string, err error) {
	joiners, _, err = s.endCall(ctx, "drop call", callDropScript, key, []string{owner.Instance, owner.Incarnation})
	return joiners, err
}

func (s *Store) endCall(ctx context.Context, op string, script *rueidis.Lua, key CallKey, args []string) ([]string, bool, error) {
	res := s.run(ctx, script, []string{s.keys.callOf(key)}, args)
	if err := s.check(ctx, op, res); err != nil {
		return nil, false, err
	}
	if rueidis.IsRedisNil(res.Error()) {
		return nil, false, nil
	}
	joiners, err := res.AsStrSlice()
	if err != nil {
		return nil, false, malformed(op, err)
	}
	return joiners, true, nil
}

// FindAck finds the call whose request went out under an ack id; false when there is none (any more).
func (s *Store) FindAck(ctx context.Context, ack AckKey) (CallKey, CallRecord, bool, error) {
	const op = "find ack"
	res := s.do(ctx, s.client.B().Get().Key(s.keys.ackOf(ack)).Build())
	if err := s.check(ctx, op, res); err != nil {
		return CallKey{}, CallRecord{}, false, err
	}
	pointer, err := res.ToString()
	if rueidis.IsRedisNil(err) {
		return CallKey{}, CallRecord{}, false, nil
	}
	if err != nil {
		return CallKey{}, CallRecord{}, false, malformed(op, err)
	}
	key, err := parseCallPointer(pointer)
	if err != nil {
		return CallKey{}, CallRecord{}, false, fmt.Errorf("store: %s: %w", op, err)
	}
	res = s.do(ctx, s.client.B().Hmget().Key(s.keys.callOf(key)).Field("o", "i", "m", "t", "d", "r").Build())
	if err := s.check(ctx, op, res); err != nil {
		return CallKey{}, CallRecord{}, false, err
	}
	rec, ok, err := parseCall(op, res)
	if err != nil || !ok {
		return CallKey{}, CallRecord{}, false, err
	}
	return key, rec, true, nil
}

// callFields is how many fields make a record, in the order o, i, m, t, d, r.
const callFields = 6

func parseCall(op string, res rueidis.RedisResult) (rec CallRecord, ok bool, err error) {
	parts, err := res.ToArray()
	if err != nil {
		return CallRecord{}, false, malformed(op, err)
	}
	if len(parts) != callFields {
		return CallRecord{}, false, malformed(op, fmt.Errorf("%d parts", len(parts)))
	}
	rec, ok = callRecord(parts)
	return rec, ok, nil
}

func callRecord(parts []rueidis.RedisMessage) (rec CallRecord, ok bool) {
	var fields [callFields]string
	for i := range fields {
		fields[i], _ = parts[i].ToString() // nil: the field is not there
	}
	rec = CallRecord{
		Owner:  Inbox{Instance: fields[0], Incarnation: fields[1]},
		Method: fields[2],
		Target: fields[3],
		Done:   fields[4] == "1",
	}
	if rec.Done {
		rec.Result = []byte(fields[5])
	}
	return rec, !parts[0].IsNil()
}
