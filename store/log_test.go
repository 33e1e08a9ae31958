package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
)

func TestAppendIsReadBack(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		if head := must[Head](t)(s.Head(t.Context())); head != (Head{}) {
			t.Fatalf("head of an empty log: %+v", head)
		}
		event := connected("p/1")
		c := command(absent(peer("p/1")), event)
		position := write(t, s, c)[0]
		records := must[[]events.Record](t)(s.Range(t.Context(), events.Position{}, 10))
		if len(records) != 1 {
			t.Fatalf("%d records", len(records))
		}
		r := records[0]
		if r.Position != position || r.Cause != c.Command || r.Replica != "a" || r.Event != events.Event(event) {
			t.Fatalf("%+v", r)
		}
		if !r.Previous.IsZero() || r.Token.IsZero() {
			t.Fatalf("token %s after %s", r.Token, r.Previous)
		}
		if head := must[Head](t)(s.Head(t.Context())); head != (Head{Position: position, Token: r.Token}) {
			t.Fatalf("head %+v", head)
		}
	})
}

func TestAppendIsRefusedByACheck(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		first := write(t, s, command(absent(peer("p")), connected("p")))[0]

		conflict := refused(t, s, command(absent(peer("p")), connected("p")))
		if conflict.Aggregate != peer("p") || !conflict.Version.IsZero() || conflict.Actual != first {
			t.Fatalf("%+v", conflict)
		}
		second := write(t, s, command(at(peer("p"), first), connected("p")))[0]
		conflict = refused(t, s, command([]Check{{Aggregate: peer("q")}, {peer("p"), first}}, connected("q")))
		if conflict.Aggregate != peer("p") || conflict.Version != first || conflict.Actual != second {
			t.Fatalf("%+v", conflict)
		}
		if conflict := refused(t, s, command(at(peer("q"), second), connected("q"))); !conflict.Actual.IsZero() {
			t.Fatalf("%+v", conflict)
		}
		if records := must[[]events.Record](t)(s.Range(t.Context(), events.Position{}, 10)); len(records) != 2 {
			t.Fatalf("%d records, a refused command wrote", len(records))
		}
	})
}

func TestRecreatedAggregateIsAnother(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		first := write(t, s, command(absent(peer("p")), connected("p")))[0]
		write(t, s, command(at(peer("p"), first), forgotten("p")))
		if conflict := refused(t, s, command(at(peer("p"), first), connected("p"))); !conflict.Actual.IsZero() {
			t.Fatalf("%+v", conflict)
		}
		again := write(t, s, command(absent(peer("p")), connected("p")))[0]
		if conflict := refused(t, s, command(at(peer("p"), first), connected("p"))); conflict.Actual != again {
			t.Fatalf("%+v", conflict)
		}
	})
}

func TestGroupIsDecidedInOrder(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		there := write(t, s, command(absent(peer("old")), connected("old")))[0]
		group := []Append{
			command(absent(peer("p")), connected("p")),
			command(absent(peer("p")), connected("p")),                      // sees the first
			command(at(peer("old"), there), connected("x"), forgotten("x")), // several events
			command(absent(peer("x")), connected("x")),                      // sees the end
			command(at(peer("old"), there), forgotten("old"), connected("old")),
			command(absent(peer("old")), connected("old")),
		}
		verdicts := must[[]Verdict](t)(s.Append(t.Context(), Fence{Instance: "a"}, group))
		for i, want := range []int{1, 0, 2, 1, 2, 0} {
			if len(verdicts[i].Positions) != want || (verdicts[i].Conflict == nil) != (want > 0) || verdicts[i].Fenced {
				t.Fatalf("verdict %d: %+v", i, verdicts[i])
			}
		}
		if got := verdicts[1].Conflict.Actual; got != verdicts[0].Positions[0] {
			t.Fatalf("conflict with %v", got)
		}
		if got := verdicts[5].Conflict.Actual; got != verdicts[4].Positions[1] {
			t.Fatalf("conflict with %v", got)
		}
		// Their effect lasts after the group.
		write(t, s, command(at(peer("p"), verdicts[0].Positions[0]), connected("p")))
		write(t, s, command(at(peer("x"), verdicts[3].Positions[0]), forgotten("x")))
		write(t, s, command(absent(peer("x")), connected("x")))
	})
}

func TestFence(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		start := events.ReplicaStarted{Instance: "a/b", Incarnation: ulid.Make().String()}
		started := write(t, s, command(absent(events.IncarnationKey("a/b")), start))[0]
		fence := Fence{Instance: "a/b", Started: started}
		lost := events.ReplicaLost{Instance: "a/b", Incarnation: start.Incarnation}
		verdicts := must[[]Verdict](t)(s.Append(t.Context(), fence, []Append{
			command(nil, connected("p")),
			command(at(events.IncarnationKey("a/b"), started), lost),
			command(nil, connected("q")),
			command(absent(peer("p")), connected("p")),
		}))
		if len(verdicts[0].Positions) != 1 || len(verdicts[1].Positions) != 1 {
			t.Fatalf("%+v", verdicts[:2])
		}
		for _, v := range verdicts[2:] {
			if !v.Fenced || v.Conflict != nil || v.Positions != nil {
				t.Fatalf("not fenced: %+v", v)
			}
		}
		// A new start moves the fence; the old incarnation stays out.
		write(t, s, command(absent(events.IncarnationKey("a/b")), start))
		verdicts = must[[]Verdict](t)(s.Append(t.Context(), fence, []Append{command(nil, connected("q"))}))
		if !verdicts[0].Fenced {
			t.Fatalf("not fenced: %+v", verdicts[0])
		}
		if records := must[[]events.Record](t)(s.Range(t.Context(), events.Position{}, 10)); len(records) != 4 {
			t.Fatalf("%d records", len(records))
		}
	})
}

func TestTokensFormAChain(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		one, two := b.open(t), b.open(t)
		for i := range 10 {
			s := []*Store{one, two}[i%2]
			must[[]Verdict](t)(s.Append(t.Context(), Fence{Instance: "a"}, []Append{
				command(nil, connected("p"), connected("q")),
				command(at(peer("nobody"), events.Position{Ms: 1}), connected("r")),
				command(nil, connected("p")),
			}))
		}
		records := must[[]events.Record](t)(one.Range(t.Context(), events.Position{}, 100))
		if len(records) != 30 {
			t.Fatalf("%d records", len(records))
		}
		seen := map[ulid.ULID]bool{}
		var before events.Record
		for i, r := range records {
			if r.Previous != before.Token || seen[r.Token] || !before.Position.Before(r.Position) {
				t.Fatalf("record %d: %+v after %+v", i, r, before)
			}
			seen[r.Token] = true
			before = r
		}
		if head := must[Head](t)(two.Head(t.Context())); head.Token != before.Token || head.Position != before.Position {
			t.Fatalf("head %+v", head)
		}
	})
}

func TestConcurrentAppendsOfOneAggregate(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		stores := []*Store{b.open(t), b.open(t)}
		version := events.Position{}
		for range 20 {
			var mu sync.Mutex
			var won []events.Position
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					verdicts, err := stores[i%2].Append(t.Context(), Fence{Instance: "a"}, []Append{command(at(peer("p"), version), connected("p"))})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					defer mu.Unlock()
					won = append(won, verdicts[0].Positions...)
				})
			}
			wg.Wait()
			if len(won) != 1 {
				t.Fatalf("%d of 8 won", len(won))
			}
			version = won[0]
		}
	})
}

func TestAppendRejects(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		many := make([]Append, MaxGroup+1)
		for i := range many {
			many[i] = command(nil, connected("p"))
		}
		for name, group := range map[string][]Append{"too many": many, "no events": {command(nil, connected("p")), command(nil)}} {
			if _, err := s.Append(t.Context(), Fence{}, group); err == nil || errors.Is(err, ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if head := must[Head](t)(s.Head(t.Context())); head != (Head{}) {
			t.Fatalf("written: %+v", head)
		}
		if verdicts, err := s.Append(t.Context(), Fence{}, many[1:]); err != nil || len(verdicts) != MaxGroup {
			t.Fatalf("a full group: %d, %v", len(verdicts), err)
		}
	})
}

// An event may touch more aggregates than one call of HMGET or unpack should take.
func TestAppendOfAnEventWithManyAggregates(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		methods := make([]string, 2500)
		for i := range methods {
			methods[i] = fmt.Sprint("m", i)
		}
		write(t, s, command(nil, events.MethodRegistered{User: "u", Method: "m2499"}))
		write(t, s, command(nil, events.PeerForgotten{User: "u", Peer: "p", Methods: methods}))
		write(t, s, command(absent(events.MethodKey("u", "m2499")), events.MethodRegistered{User: "u", Method: "m2499"}))
	})
}

func TestRangePages(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		var want []events.Position
		for range 7 {
			want = append(want, write(t, s, command(nil, connected("p"), connected("p"), connected("p")))...)
		}
		var got []events.Position
		after := events.Position{}
		for {
			page := must[[]events.Record](t)(s.Range(t.Context(), after, 4))
			if len(page) == 0 {
				break
			}
			if len(page) > 4 {
				t.Fatalf("page of %d", len(page))
			}
			for _, r := range page {
				got = append(got, r.Position)
			}
			after = got[len(got)-1]
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestGroupResumesAfterReopen(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		positions := write(t, s, command(nil, connected("1"), connected("2"), connected("3"), connected("4"), connected("5")))
		if _, ok, err := s.GroupPosition(t.Context(), "a"); ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
		if !must[bool](t)(s.EnsureGroup(t.Context(), "a", positions[0])) {
			t.Fatal("not created")
		}
		if must[bool](t)(s.EnsureGroup(t.Context(), "a", events.Position{})) {
			t.Fatal("created twice")
		}
		records := must[[]events.Record](t)(s.ReadGroup(t.Context(), "a", 2, time.Second))
		if len(records) != 2 || records[0].Position != positions[1] {
			t.Fatalf("%+v", records)
		}
		if err := s.Ack(t.Context(), "a", []events.Position{positions[1]}); err != nil {
			t.Fatal(err)
		}
		s.Close()

		s = b.open(t)
		if at, ok, err := s.GroupPosition(t.Context(), "a"); !ok || err != nil || at != positions[2] {
			t.Fatalf("%v, %v, %v", at, ok, err)
		}
		if n := must[int](t)(s.AckPending(t.Context(), "a")); n != 1 {
			t.Fatalf("%d were pending", n)
		}
		records = must[[]events.Record](t)(s.ReadGroup(t.Context(), "a", 10, time.Second))
		if len(records) != 2 || records[0].Position != positions[3] {
			t.Fatalf("%+v", records)
		}
		if records := must[[]events.Record](t)(s.ReadGroup(t.Context(), "a", 10, 0)); records != nil {
			t.Fatalf("%+v", records)
		}
	})
}

func TestAckPendingPages(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		must[bool](t)(s.EnsureGroup(t.Context(), "a", events.Position{}))
		total := 0
		for total < 2*pendingPage+20 {
			group := make([]Append, MaxGroup)
			for i := range group {
				group[i] = command(nil, connected("p"))
			}
			must[[]Verdict](t)(s.Append(t.Context(), Fence{}, group))
			total += len(group)
		}
		if records := must[[]events.Record](t)(s.ReadGroup(t.Context(), "a", total, time.Second)); len(records) != total {
			t.Fatalf("%d records", len(records))
		}
		if n := must[int](t)(s.AckPending(t.Context(), "a")); n != total {
			t.Fatalf("%d were pending, want %d", n, total)
		}
		if n := must[int](t)(s.AckPending(t.Context(), "a")); n != 0 {
			t.Fatalf("%d are still pending", n)
		}
	})
}

func TestEntriesThatCannotBeReadStopTheReader(t *testing.T) {
	good := func(s *Store, t *testing.T) events.Position { return write(t, s, command(nil, connected("p")))[0] }
	token := ulid.Make().String()
	for name, c := range map[string]struct {
		fields []string
		want   error
		text   string
	}{
		"type":   {[]string{"t", "peer-praised", "s", "1", "u", token, "p", "", "c", token, "r", "a", "d", "{}"}, events.ErrUnknown, `"peer-praised" schema 1`},
		"schema": {[]string{"t", "peer-gone", "s", "7", "u", token, "p", "", "c", token, "r", "a", "d", "{}"}, events.ErrUnknown, `"peer-gone" schema 7`},
		"field":  {[]string{"t", "peer-gone", "s", "1", "u", token, "c", token, "r", "a", "d", "{}"}, ErrDamaged, "missing"},
		"data":   {[]string{"t", "peer-gone", "s", "1", "u", token, "p", "", "c", token, "r", "a", "d", "{"}, ErrDamaged, "peer-gone"},
		"token":  {[]string{"t", "peer-gone", "s", "1", "u", "x", "p", "", "c", token, "r", "a", "d", "{}"}, ErrDamaged, "token"},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, b backend) {
				s := b.open(t)
				must[bool](t)(s.EnsureGroup(t.Context(), "a", events.Position{}))
				first := good(s, t)
				raw(t, s, append([]string{"XADD", s.keys.log, fmt.Sprintf("%d-5", first.Ms+1)}, c.fields...)...)
				good(s, t)
				check := func(records []events.Record, err error) {
					t.Helper()
					if len(records) != 1 || records[0].Position != first {
						t.Fatalf("%+v", records)
					}
					if !errors.Is(err, c.want) || !strings.Contains(err.Error(), fmt.Sprintf("%d-5", first.Ms+1)) || !strings.Contains(err.Error(), c.text) {
						t.Fatalf("%v", err)
					}
				}
				check(s.ReadGroup(t.Context(), "a", 10, time.Second))
				check(s.Range(t.Context(), events.Position{}, 10))
			})
		})
	}
}

func TestNoGroup(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		gone := func() {
			t.Helper()
			if _, err := s.ReadGroup(t.Context(), "a", 1, time.Second); !errors.Is(err, ErrNoGroup) {
				t.Fatalf("%v", err)
			}
			if _, err := s.AckPending(t.Context(), "a"); !errors.Is(err, ErrNoGroup) {
				t.Fatalf("%v", err)
			}
		}
		gone()
		if err := s.DestroyGroup(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		must[bool](t)(s.EnsureGroup(t.Context(), "a", events.Position{}))
		if err := s.DestroyGroup(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		gone()
		must[bool](t)(s.EnsureGroup(t.Context(), "a", events.Position{}))
		b.flush(t)
		gone()
	})
}

func TestFlushWhileAGroupWaits(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		must[bool](t)(s.EnsureGroup(t.Context(), "a", events.Position{}))
		got := make(chan error, 1)
		go func() {
			_, err := s.ReadGroup(t.Context(), "a", 1, time.Minute)
			got <- err
		}()
		eventually(t, "the reader hears of it", func() bool {
			b.flush(t)
			select {
			case err := <-got:
				if !errors.Is(err, ErrNoGroup) {
					t.Fatalf("%v", err)
				}
				return true
			default:
				// The embedded Redis looks again only when something is written.
				write(t, s, command(nil, connected("p")))
				return false
			}
		})
	})
}

func TestReadGroupWakesAndIsCancelled(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		must[bool](t)(s.EnsureGroup(t.Context(), "a", events.Position{}))
		got := make(chan []events.Record, 1)
		go func() {
			records, err := s.ReadGroup(t.Context(), "a", 10, time.Minute)
			if err != nil {
				t.Error(err)
			}
			got <- records
		}()
		position := write(t, s, command(nil, connected("p")))[0]
		if records := <-got; len(records) != 1 || records[0].Position != position {
			t.Fatalf("%+v", records)
		}

		began := time.Now()
		_, err := s.ReadGroup(canceledSoon(t), "a", 10, time.Minute)
		if !errors.Is(err, context.Canceled) || time.Since(began) > 10*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		// Appends go on while a read waits, and after one was cancelled.
		position = write(t, s, command(nil, connected("p")))[0]
		eventually(t, "the next read brings the next entry", func() bool {
			records := must[[]events.Record](t)(s.ReadGroup(t.Context(), "a", 10, 10*time.Millisecond))
			if len(records) == 0 {
				// The cancelled read may have taken the entry along.
				last := must[[]events.Record](t)(s.Range(t.Context(), events.Position{}, 10))
				at, _, err := s.GroupPosition(t.Context(), "a")
				return err == nil && at == last[len(last)-1].Position
			}
			return records[0].Position == position
		})
	})
}
