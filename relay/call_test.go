package relay

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"holdfast/projections"
	"holdfast/replica"
)

// The table of the protocol, across two replicas and on one.
func onOneAndTwoReplicas(t *testing.T, f func(t *testing.T, w *world, daemonAt, callerAt *testNode)) {
	onOneAndTwoReplicasOf(t, long, f)
}

func onOneAndTwoReplicasOf(t *testing.T, waits waits, f func(t *testing.T, w *world, daemonAt, callerAt *testNode)) {
	for _, n := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d replicas", n), func(t *testing.T) {
			t.Parallel()
			w := newWorldOf(t, n, waits)
			f(t, w, w.nodes[0], w.nodes[n-1])
			w.quiet()
		})
	}
}

func TestCallIsAnswered(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		d.register("m", false)
		for i := range 20 {
			call := c.call(Request{Method: "m", Params: replica.Payload{JSON: []byte(fmt.Sprintf(`{"n":%d}`, i))}})
			r := d.request()
			if r.Method != "m" || string(r.Params) != fmt.Sprintf(`{"n":%d}`, i) || r.ID == "" {
				t.Fatalf("request %+v", r)
			}
			d.answer(r, fmt.Sprint(i))
			call.wants("", fmt.Sprint(i))
		}
	})
}

func TestLastOfSeveralCallsIsAlone(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, c, other := at.connect("d", ""), from.connect("c", ""), from.connect("other", "")
		d.register("m", false)
		calls := []*testCall{c.call(numbered(0)), c.call(numbered(1)), other.call(numbered(2))}
		left := map[bool]int{true: 1, false: 2} // of the other's and the caller's own
		for range calls {
			r := d.request()
			var n int
			if err := json.Unmarshal(r.Params, &n); err != nil {
				t.Fatal(err)
			}
			left[n == 2]--
			d.answer(r, "1")
			if o := calls[n].outcome(); o.Code != "" || o.Alone != (left[n == 2] == 0) {
				t.Errorf("call %d: %+v", n, o)
			}
		}
	})
}

func numbered(n int) Request {
	return Request{Method: "m", Params: replica.Payload{JSON: fmt.Append(nil, n)}}
}

func TestMethodNobodyHolds(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, _, from *testNode) {
		from.connect("c", "").call(Request{Method: "none"}).wants(CodeNotAvailable, "")
	})
}

func TestSameConnection(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, _ *testNode) {
		d := at.connect("d", "")
		d.register("m", false)
		d.call(Request{Method: "m"}).wants(CodeSameSocket, "")
		d.noRequest()
	})
}

func TestHandlerDoesNotAnswer(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		d.register("m", false)
		started := time.Now()
		c.call(Request{Method: "m", Timeout: 150 * time.Millisecond}).wants(CodeTimeout, "")
		if took := time.Since(started); took < 150*time.Millisecond {
			t.Errorf("timed out after %s", took)
		}
		r := d.request()
		if name := <-d.events; name != "rpc-cancel" {
			t.Errorf("the handler got %s, want rpc-cancel", name)
		}
		d.answer(r, "1") // late: completes nothing
	})
}

func TestCallerLeaves(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		d.register("m", false)
		call := c.call(Request{Method: "m"})
		d.request()
		c.leave(false)
		if name := <-d.events; name != "rpc-cancel" {
			t.Errorf("the handler got %s, want rpc-cancel", name)
		}
		call.pending()
	})
}

func TestDaemonAwayCallIsHeldAndServed(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		d.register("m", false)
		d.leave(false)
		w.settle()
		call := c.call(Request{Method: "m"})
		back := from.connect("d", d.session.PID)
		if !back.session.Recovered {
			t.Fatal("not recovered")
		}
		back.answer(back.request(), `"held"`)
		call.wants("", `"held"`)
	})
}

func TestDaemonAwayForGoodHeldCallFailsWithTheGrace(t *testing.T) {
	onOneAndTwoReplicasOf(t, short, func(t *testing.T, w *world, at, from *testNode) {
		for _, wish := range []bool{false, true} {
			d, c := at.connect("d", ""), from.connect("c", "")
			d.register("m", false)
			left := time.Now()
			d.leave(wish)
			w.settle()
			c.call(Request{Method: "m"}).wants(CodeNotAvailable, "")
			if took := time.Since(left); took < short.grace-50*time.Millisecond || took > short.grace+3*time.Second {
				t.Errorf("failed after %s, the grace is %s", took, short.grace)
			}
			w.eventually("not available everywhere", func() bool { return from.availability("m") == projections.NotAvailable })
		}
	})
}

func TestLateAckOverTheNewConnectionCompletesTheCall(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		d.register("m", false)
		call := c.call(Request{Method: "m"})
		r := d.request()
		d.leave(false)
		back := from.connect("d", d.session.PID) // on the other replica
		w.settle()
		call.pending()
		back.answer(r, `"late"`)
		call.wants("", `"late"`)
		back.noRequest() // it was not asked twice
	})
}

func TestLateAckWhileTheFormerConnectionIsHalfOpen(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		d.register("m", false)
		call := c.call(Request{Method: "m"})
		r := d.request()
		back := from.connect("d", d.session.PID)
		if recovered := <-d.replaced; !recovered {
			t.Error("the half-open connection was told of another client")
		}
		d.leave(false) // its end comes late and changes nothing
		back.answer(r, `"late"`)
		call.wants("", `"late"`)
		if a := from.availability("m"); a != projections.Available {
			t.Errorf("the late end of the former connection made the method unavailable (%d)", a)
		}
	})
}

func TestLateAckThatNeverComes(t *testing.T) {
	back := long
	back.lateAck = short.lateAck
	onOneAndTwoReplicasOf(t, back, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		d.register("m", false)
		call := c.call(Request{Method: "m"})
		d.request()
		d.leave(false)
		returning := time.Now()
		back := from.connect("d", d.session.PID)
		call.wants(CodeTargetLost, "")
		if took := time.Since(returning); took < short.lateAck {
			t.Errorf("given up %s after the return, want %s", took, short.lateAck)
		}
		back.noRequest()
	})
}

func TestDaemonComesBackAsANewProcess(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		d.register("m", false)
		call := c.call(Request{Method: "m", Timeout: time.Minute})
		d.request()
		d.leave(false)
		fresh := from.connect("d", "")
		call.wants(CodeTargetLost, "") // at once: whatever could be waited for lasts longer than a test waits
		fresh.noRequest()
	})
}

func TestDaemonGoneWithTheRequest(t *testing.T) {
	onOneAndTwoReplicasOf(t, short, func(t *testing.T, w *world, at, from *testNode) {
		for _, wish := range []bool{false, true} {
			d, c := at.connect("d", ""), from.connect("c", "")
			d.register("m", false)
			call := c.call(Request{Method: "m", Timeout: time.Minute})
			d.request()
			left := time.Now()
			d.leave(wish)
			call.wants(CodeTargetLost, "")
			if took := time.Since(left); took < short.grace-50*time.Millisecond || took > short.grace+3*time.Second {
				t.Errorf("lost after %s, the grace is %s", took, short.grace)
			}
			c.call(Request{Method: "m"}).wants(CodeNotAvailable, "")
		}
	})
}

func TestReplaySafeIsSentAgain(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		d.register("m", true)
		t.Log("to the recovered session")
		call := c.call(Request{Method: "m"})
		first := d.request()
		d.leave(false)
		back := from.connect("d", d.session.PID)
		second := back.request()
		if second.ID != first.ID {
			t.Errorf("sent again under id %s, first %s", second.ID, first.ID)
		}
		back.answer(second, "2")
		call.wants("", "2")

		t.Log("to a new process, once it has registered")
		call = c.call(Request{Method: "m"})
		first = back.request()
		back.leave(false)
		fresh := at.connect("d", "")
		w.settle()
		fresh.noRequest()
		call.pending()
		fresh.register("m", true)
		second = fresh.request()
		if second.ID != first.ID {
			t.Errorf("sent again under id %s, first %s", second.ID, first.ID)
		}
		fresh.answer(second, "3")
		call.wants("", "3")

		t.Log("to another peer that has taken over")
		call = c.call(Request{Method: "m"})
		fresh.request()
		fresh.leave(false)
		other := from.connect("e", "")
		other.register("m", true)
		other.answer(other.request(), "4")
		call.wants("", "4")

		t.Log("and a late ack of the first delivery counts")
		call = c.call(Request{Method: "m"})
		first = other.request()
		other.leave(false)
		again := at.connect("e", other.session.PID)
		again.request()
		again.answer(first, "5")
		call.wants("", "5")
	})
}

func TestReplaySafeWhoseDaemonIsGone(t *testing.T) {
	onOneAndTwoReplicasOf(t, short, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		d.register("m", true)
		call := c.call(Request{Method: "m"})
		d.request()
		d.leave(false)
		call.wants(CodeTargetLost, "")
	})
}

func TestRequestThatNeverLeftIsSentAgain(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		d.register("m", false) // not replay safe: it must not matter
		d.mu.Lock()
		d.deaf = true
		d.mu.Unlock()
		call := c.call(Request{Method: "m"})
		w.settle()
		call.pending()
		back := at.connect("d", d.session.PID)
		back.answer(back.request(), "1")
		call.wants("", "1")
		d.leave(false)
	})
}

func TestAnswersNeverMix(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, c := at.connect("d", ""), from.connect("c", "")
		other := at.connect("x", "")
		d.register("m", false)
		a, b := c.call(Request{Method: "m", Params: replica.Payload{JSON: []byte("1")}}), c.call(Request{Method: "m", Params: replica.Payload{JSON: []byte("2")}})
		ra, rb := d.request(), d.request()
		if string(ra.Params) != "1" {
			ra, rb = rb, ra
		}
		if ra.ack == rb.ack {
			t.Fatal("two requests under one ack id")
		}
		other.answer(ra, `"forged"`) // another peer cannot complete it
		d.answer(rb, "22")
		b.wants("", "22")
		d.answer(rb, "33") // twice: no call left for it
		a.pending()
		d.answer(ra, "11")
		a.wants("", "11")
	})
}

func TestAckIDsComeAgainLateAndOnlyWhenFree(t *testing.T) {
	w := newWorld(t, 1)
	d, c := w.nodes[0].connect("d", ""), w.nodes[0].connect("c", "")
	d.register("m", false)
	first := c.call(Request{Method: "m"})
	r := d.request()
	rel := w.nodes[0].relay
	rel.mu.Lock()
	rel.ackIDs[d.session.ID()] = (r.ack>>1)&(1<<countBits-1) - 1 // as after all others were given out
	rel.mu.Unlock()
	second := c.call(Request{Method: "m"})
	r2 := d.request()
	if r2.ack == r.ack {
		t.Fatal("an ack id in flight was given out again")
	}
	d.answer(r2, "2")
	second.wants("", "2")
	d.answer(r, "1")
	first.wants("", "1")
	w.quiet()
}

func TestRegistrationMovesWhileACallIsInItsHandler(t *testing.T) {
	onOneAndTwoReplicas(t, func(t *testing.T, w *world, at, from *testNode) {
		d, e, c := at.connect("d", ""), from.connect("e", ""), from.connect("c", "")
		d.register("m", false)
		call := c.call(Request{Method: "m"})
		r := d.request()
		e.register("m", false)
		w.settle()
		call.pending() // its handler lives
		d.answer(r, "1")
		call.wants("", "1")
		call = c.call(Request{Method: "m"})
		e.answer(e.request(), "2")
		call.wants("", "2")
	})
}
