package relay

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"holdfast/projections"
	"holdfast/replica"
)

func TestReplicaOfTheDaemonDies(t *testing.T) {
	w := newWorld(t, 2)
	at, from := w.nodes[0], w.nodes[1]
	d, c := at.connect("d", ""), from.connect("c", "")
	d.register("m", false)
	call := c.call(Request{Method: "m", Timeout: time.Minute})
	r := d.request()
	at.kill()
	back := from.connect("d", d.session.PID)
	back.answer(r, `"survived"`)
	call.wants("", `"survived"`)
	call = c.call(Request{Method: "m"})
	back.answer(back.request(), "1")
	call.wants("", "1")
}

func TestReplicaOfTheDaemonDiesAndNobodyComesBack(t *testing.T) {
	w := newWorldOf(t, 2, short)
	at, from := w.nodes[0], w.nodes[1]
	d, c := at.connect("d", ""), from.connect("c", "")
	d.register("m", false)
	inHandler := c.call(Request{Method: "m", Timeout: time.Minute})
	d.request()
	at.kill()
	inHandler.wants(CodeTargetLost, "")
	w.eventually("the registration is gone", func() bool { return from.availability("m") == projections.NotAvailable })
	// The quickest of some: any of them may have had to wait for the machine, and each would wait for a timer.
	quickest := time.Hour
	for range 10 {
		started := time.Now()
		c.call(Request{Method: "m"}).wants(CodeNotAvailable, "")
		quickest = min(quickest, time.Since(started))
	}
	if quickest > 100*time.Millisecond {
		t.Errorf("not available after %s", quickest)
	}
}

// The loss of its replica ends a daemon's registrations, but a request that may be repeated waits as long for
// its return as one that may not.
func TestReplaySafeOutlivesTheReplicaOfItsDaemon(t *testing.T) {
	w := newWorld(t, 2)
	at, from := w.nodes[0], w.nodes[1]
	d, c := at.connect("d", ""), from.connect("c", "")
	d.register("m", true)
	call := c.call(Request{Method: "m", Timeout: time.Minute})
	first := d.request()
	at.kill()
	w.eventually("the loss is known", func() bool { return from.availability("m") == projections.NotAvailable })
	call.pending()
	back := from.connect("d", d.session.PID)
	again := back.request()
	if again.ID != first.ID {
		t.Errorf("sent again under id %s, first %s", again.ID, first.ID)
	}
	back.answer(again, "1")
	call.wants("", "1")
}

func TestReplaySafeWaitsForTheNewProcessOfALostDaemon(t *testing.T) {
	w := newWorld(t, 2)
	at, from := w.nodes[0], w.nodes[1]
	d, c := at.connect("d", ""), from.connect("c", "")
	d.register("m", true)
	call := c.call(Request{Method: "m", Timeout: time.Minute})
	d.request()
	at.kill()
	w.eventually("the loss is known", func() bool { return from.availability("m") == projections.NotAvailable })
	fresh := from.connect("d", "")
	if err := from.rep.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	fresh.noRequest()
	call.pending()
	fresh.register("m", true)
	fresh.answer(fresh.request(), "1")
	call.wants("", "1")
}

// An inbox that vanished from the store holds a call up only until its living replica has made it again.
func TestVanishedInbox(t *testing.T) {
	w := newWorld(t, 2)
	d, c := w.nodes[0].connect("d", ""), w.nodes[1].connect("c", "")
	d.register("m", false)
	w.settle()
	self, _, _ := w.nodes[0].rep.Self()
	for range 3 {
		if err := w.nodes[1].st.DropInbox(t.Context(), self); err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		call := c.call(Request{Method: "m"})
		d.answer(d.request(), "1")
		call.wants("", "1")
		if took := time.Since(started); took > 2*time.Second {
			t.Errorf("answered after %s", took)
		}
	}
}

// Nor does it lose an answer: the replica that has it tries again.
func TestVanishedInboxOfTheCaller(t *testing.T) {
	w := newWorld(t, 2)
	d, c := w.nodes[0].connect("d", ""), w.nodes[1].connect("c", "")
	d.register("m", false)
	w.settle()
	self, _, _ := w.nodes[1].rep.Self()
	for range 3 {
		call := c.call(Request{Method: "m"})
		r := d.request()
		if err := w.nodes[0].st.DropInbox(t.Context(), self); err != nil {
			t.Fatal(err)
		}
		answered := time.Now()
		d.answer(r, "1")
		select {
		case o := <-call.done:
			// An audit may come before the answer: then the call is lost, in time and with its code.
			if o.Code != "" && o.Code != CodeTargetLost {
				t.Fatalf("%s", o.Ack.JSON)
			}
		case <-time.After(3 * time.Second):
			t.Fatal("no outcome")
		}
		if took := time.Since(answered); took > 2*time.Second {
			t.Errorf("ended after %s", took)
		}
	}
}

func TestFencedReplicaEndsItsCalls(t *testing.T) {
	w := newWorld(t, 1)
	n := w.nodes[0]
	d, c := n.connect("d", ""), n.connect("c", "")
	d.register("m", false)
	call := c.call(Request{Method: "m"})
	d.request()
	n.relay.Fenced()
	call.wants(CodeStoreUnavailable, "")
	w.quiet()
}

func TestManyCallsAtOnce(t *testing.T) {
	w := newWorld(t, 2)
	d, c := w.nodes[0].connect("d", ""), w.nodes[1].connect("c", "")
	d.register("m", false)
	const n = 500
	d.requests = make(chan testRequest, n)
	stop := make(chan struct{})
	var answering sync.WaitGroup
	for range 4 {
		answering.Go(func() {
			for {
				select {
				case r := <-d.requests:
					d.answer(r, string(r.Params))
				case <-stop:
					return
				}
			}
		})
	}
	calls := make([]*testCall, n)
	for i := range calls {
		calls[i] = c.call(Request{Method: "m", Params: replica.Payload{JSON: []byte(fmt.Sprint(i))}})
	}
	for i, call := range calls {
		call.wants("", fmt.Sprint(i))
	}
	close(stop)
	answering.Wait()
	w.quiet()
}
