package relay

import (
	"testing"
	"time"

	"holdfast/store"
)

func TestRepeatedCallJoinsTheRunningOne(t *testing.T) {
	w := newWorld(t, 2)
	d := w.nodes[0].connect("d", "")
	d.register("m", false)
	a, b := w.nodes[0].connect("a", ""), w.nodes[1].connect("b", "")
	first := a.call(Request{Method: "m", ID: "x"})
	r := d.request()
	if r.ID != "x" {
		t.Errorf("the handler got id %q", r.ID)
	}
	elsewhere, here := b.call(Request{Method: "m", ID: "x"}), a.call(Request{Method: "m", ID: "x"})
	w.eventually("both have joined", func() bool { return w.nodes[0].joined()+w.nodes[1].joined() == 2 })
	d.noRequest()
	d.answer(r, `"once"`)
	for _, call := range []*testCall{first, elsewhere, here} {
		call.wants("", `"once"`)
	}
	d.noRequest()
	// And later ones get what is stored, from every replica.
	w.eventually("the outcome is stored", func() bool { return w.nodes[0].stored("x") })
	a.call(Request{Method: "m", ID: "x"}).wants("", `"once"`)
	b.call(Request{Method: "m", ID: "x"}).wants("", `"once"`)
	d.noRequest()
	w.quiet()
}

func TestIDBelongsToItsMethod(t *testing.T) {
	w := newWorld(t, 1)
	n := w.nodes[0]
	d, c := n.connect("d", ""), n.connect("c", "")
	d.register("m", false)
	d.register("other", false)
	first := c.call(Request{Method: "m", ID: "x"})
	r := d.request()
	c.call(Request{Method: "other", ID: "x"}).wants(CodeBadRequest, "")
	d.noRequest()
	d.answer(r, "1")
	first.wants("", "1")
}

func TestCallThatNeverRanCanBeMadeAgain(t *testing.T) {
	w := newWorld(t, 2)
	c, d := w.nodes[1].connect("c", ""), w.nodes[0].connect("d", "")
	c.call(Request{Method: "m", ID: "x"}).wants(CodeNotAvailable, "")
	d.register("m", false)
	w.settle()
	var call *testCall
	w.eventually("the id is free again", func() bool {
		call = c.call(Request{Method: "m", ID: "x"})
		select {
		case r := <-d.requests:
			d.answer(r, "1")
			return true
		case o := <-call.done:
			if o.Code != CodeNotAvailable {
				t.Fatalf("%s", o.Ack.JSON)
			}
			return false
		case <-time.After(2 * time.Second):
			return false
		}
	})
	call.wants("", "1")
}

func TestFailureOfACallThatRanIsStored(t *testing.T) {
	w := newWorld(t, 1)
	n := w.nodes[0]
	d, c := n.connect("d", ""), n.connect("c", "")
	d.register("m", false)
	c.call(Request{Method: "m", ID: "x", Timeout: 100 * time.Millisecond}).wants(CodeTimeout, "")
	d.request()
	w.eventually("the outcome is stored", func() bool { return n.stored("x") })
	c.call(Request{Method: "m", ID: "x"}).wants(CodeTimeout, "")
	d.noRequest()
}

func TestCallOutlivesItsCallersConnection(t *testing.T) {
	w := newWorld(t, 2)
	d, c := w.nodes[0].connect("d", ""), w.nodes[1].connect("c", "")
	d.register("m", false)
	call := c.call(Request{Method: "m", ID: "x"})
	r := d.request()
	c.leave(false)
	call.pending()
	select {
	case name := <-d.events:
		t.Errorf("the handler got %s, but a repeat may want its answer", name)
	default:
	}
	again := w.nodes[0].connect("c", c.session.PID)
	repeat := again.call(Request{Method: "m", ID: "x"})
	w.eventually("joined", func() bool { return w.nodes[0].joined() == 1 })
	d.answer(r, "1")
	repeat.wants("", "1")
	d.noRequest()
	w.quiet()
}

// The replica that runs the call dies: at each moment a repeat elsewhere gets the one run's outcome.
func TestReplicaOfTheCallerDies(t *testing.T) {
	t.Run("answered before it is known to be dead", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 2)
		d, c := w.nodes[0].connect("d", ""), w.nodes[1].connect("c", "")
		d.register("m", false)
		c.call(Request{Method: "m", ID: "x"})
		r := d.request()
		w.nodes[1].kill()
		d.answer(r, "1")
		w.nodes[0].connect("c", c.session.PID).call(Request{Method: "m", ID: "x"}).wants("", "1")
		d.noRequest()
	})
	t.Run("a repeat waits, then the answer comes", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 2)
		d, c := w.nodes[0].connect("d", ""), w.nodes[1].connect("c", "")
		d.register("m", false)
		c.call(Request{Method: "m", ID: "x"})
		r := d.request()
		w.nodes[1].kill()
		repeat := w.nodes[0].connect("c", c.session.PID).call(Request{Method: "m", ID: "x"})
		w.eventually("joined", func() bool { return w.nodes[0].joined() == 1 })
		d.answer(r, "1")
		repeat.wants("", "1")
		d.noRequest()
	})
	t.Run("a repeat waits and adopts the call, then the answer comes", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 2)
		d, c := w.nodes[0].connect("d", ""), w.nodes[1].connect("c", "")
		d.register("m", false)
		c.call(Request{Method: "m", ID: "x"})
		r := d.request()
		w.nodes[1].kill()
		repeat := w.nodes[0].connect("c", c.session.PID).call(Request{Method: "m", ID: "x"})
		w.eventually("adopted", func() bool { return w.nodes[0].owns("x") })
		repeat.pending()
		d.noRequest()
		d.answer(r, "1")
		repeat.wants("", "1")
		d.noRequest()
	})
	t.Run("the call was held and never sent", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 2)
		d, c := w.nodes[0].connect("d", ""), w.nodes[1].connect("c", "")
		d.register("m", false)
		d.register("keep", false)
		d.mu.Lock()
		d.deaf = true
		d.mu.Unlock()
		c.call(Request{Method: "m", ID: "x"})
		w.eventually("it is held", func() bool {
			w.nodes[1].relay.mu.Lock()
			defer w.nodes[1].relay.mu.Unlock()
			for _, call := range w.nodes[1].relay.calls {
				return call.phase == held
			}
			return false
		})
		w.nodes[1].kill()
		repeat := w.nodes[0].connect("c", c.session.PID).call(Request{Method: "m", ID: "x"})
		// Its record says where it went, so it counts as delivered: lost, never run twice.
		repeat.wants(CodeTargetLost, "")
		d.noRequest()
	})
}

// joined is how many calls here wait for another one's outcome.
func (n *testNode) joined() int {
	n.relay.mu.Lock()
	defer n.relay.mu.Unlock()
	count := 0
	for _, c := range n.relay.calls {
		if c.phase == joining {
			count++
		}
	}
	return count
}

func (n *testNode) owns(id string) bool {
	n.relay.mu.Lock()
	defer n.relay.mu.Unlock()
	for key, c := range n.relay.owned {
		if key.ID == id && c.phase == sent {
			return true
		}
	}
	return false
}

// stored reports whether a call of the id would get a stored outcome.
func (n *testNode) stored(id string) bool {
	v, err := n.w.embedded.Open()
	if err != nil {
		n.w.t.Fatal(err)
	}
	defer v.Close()
	self, _, _ := n.rep.Self()
	rec, started, err := v.BeginCall(n.w.t.Context(), keyOf(id), self, "probe of another method", "", time.Second)
	if err != nil || started {
		n.w.t.Fatalf("probe: started %v, %v", started, err)
	}
	return rec.Done
}

func keyOf(id string) store.CallKey { return store.CallKey{User: "u", ID: id} }
