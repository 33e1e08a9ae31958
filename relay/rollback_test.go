package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"holdfast/replica"
	"holdfast/store"
	"holdfast/store/redistest"
)

// Redis goes back to what it had saved, no connection breaks, and nobody publishes or subscribes on this replica any
// more: the beats notice.
func TestRollBackIsNoticedByTheBeats(t *testing.T) {
	for _, partitions := range []int{1, 4} {
		for _, fill := range []int{0, 1, 2, 9} { // none, fewer, as many and more messages than were lost
			t.Run(fmt.Sprintf("partitions=%d, fill=%d", partitions, fill), func(t *testing.T) { rollBackSilently(t, partitions, fill) })
		}
	}
}

func rollBackSilently(t *testing.T, partitions, fill int) {
	w := newWorldOf(t, 0, long)
	w.partitions = partitions
	w.server = redistest.Start(t, "--enable-debug-command", "yes")
	w.url = w.server.URL
	n := w.start("r1")
	raw := w.open()
	defer raw.Close()
	a, idle := n.come("a", "", ""), n.come("idle", "", "")
	a.subscribe("c:x")
	p := store.PartitionOf("c:x", partitions)
	publish := func(body string) {
		msg := message{Channel: "c:x", Event: "e", Data: replica.Payload{JSON: []byte(body)}}
		if _, err := raw.Publish(t.Context(), p, store.Known{}, n.relay.Channels().keep, []store.Publication{{Channel: "c:x", Body: msg.encode()}}); err != nil {
			t.Fatal(err)
		}
	}
	publish("1")
	a.gets("1")
	w.server.Do(t, "SAVE")
	publish("2")
	publish("3")
	a.gets("1 2 3")
	w.beats("r1", 2) // one of them has seen that
	w.server.Do(t, "DEBUG", "RELOAD", "NOSAVE")
	for i := range fill {
		publish(fmt.Sprint("new", i))
	}
	w.eventually("the client is sent away", a.left)
	a.drop(true)
	a = a.again(n).wantRecovered(false)
	a.subscribe("c:x")
	publish("last")
	a.gets("last")
	if idle.left() {
		t.Error("a client without channels was sent away")
	}
}

// beats waits for so many beats of a replica: its lease lasts longer again.
func (w *world) beats(instance string, n int) {
	w.t.Helper()
	left := func() int {
		var ms int
		_, _ = fmt.Sscan(strings.TrimPrefix(w.do("PTTL", "{test}:lease:"+instance), ":"), &ms)
		return ms
	}
	before := left()
	w.eventually("beats", func() bool {
		now := left()
		if now > before {
			n--
		}
		before = now
		return n <= 0
	})
}

// A beat that finds what is known here changes nothing.
func TestBeatsDoubtNoGoodStore(t *testing.T) {
	eachSetting(t, func(t *testing.T, in setting) {
		w := newWorldIn(t, 2, in)
		a := w.nodes[0].come("a", "", "")
		a.subscribe("c:x")
		before := w.nodes[0].epochs()
		for i := range 200 {
			w.nodes[i%2].publish("c:x", fmt.Sprint(i))
			if i%50 == 0 {
				w.beats("r1", 1)
			}
		}
		w.beats("r1", 2)
		for i, epoch := range w.nodes[0].epochs() {
			if epoch != before[i] && before[i] != "" {
				t.Errorf("partition %d has been turned", i)
			}
		}
		for _, n := range w.nodes {
			n.relay.Channels().Metrics().Losses.Each(func(what string, n uint64) { t.Errorf("%s: %d", what, n) })
		}
		if a.left() {
			t.Error("a client was sent away")
		}
	})
}

// A replica that stops may still hear of losses when the relay has ended: nothing begins then.
func TestNothingBeginsAfterTheRelayHasEnded(t *testing.T) {
	w := newWorldOf(t, 0, long)
	st := w.open()
	defer st.Close()
	rep := replica.New(replica.Config{Instance: "r1"}, st)
	r := New(rep, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	part := r.channels.parts[0]
	var losing sync.WaitGroup
	losing.Go(func() {
		<-ctx.Done()
		part.lose() // while what has begun is being waited for, or after that
	})
	cancel()
	<-ended
	losing.Wait()
	if _, err := r.channels.read(t.Context(), "c:x", part, 0); !errors.Is(err, errStopping) {
		t.Fatalf("a reading began: %v", err)
	}
	part.lose()
	part.c.work.group.Wait() // of a repair that began before that, which ends with the context
	part.c.order.Lock()
	defer part.c.order.Unlock()
	if part.repairing {
		t.Fatal("a repair began")
	}
}

// One node of a Cluster loses what it has while a client is away: the records that the others have do not make up for
// that one.
func TestSessionsThatOnePartitionHasLostAreNotRecovered(t *testing.T) {
	w := newWorldIn(t, 2, setting{partitions: 4, args: []string{"--appendonly", "no"}})
	n := w.nodes[0]
	lost, kept := "c:x", "c:y"
	for i := 0; store.PartitionOf(kept, 4) == store.PartitionOf(lost, 4); i++ {
		kept = fmt.Sprint("c:y", i)
	}
	a := n.come("a", "", "")
	a.subscribe(lost)
	a.subscribe(kept)
	n.publish(lost, "1")
	a.gets("1")
	n.publish(kept, "2")
	a.gets("1 2")
	a.drop(true)
	w.server.Do(t, "EVAL", "for _, k in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', k) end", "0",
		fmt.Sprintf("{test.%d}:*", store.PartitionOf(lost, 4)))
	b := w.nodes[1].come("b", "", "")
	b.subscribe(lost) // the partition begins anew
	w.nodes[1].publish(lost, "3")
	a.again(w.nodes[1]).wantRecovered(false)
}
