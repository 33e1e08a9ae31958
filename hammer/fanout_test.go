package hammer

import (
	"testing"
	"time"
)

func fanoutOptions(urls ...string) FanoutOptions {
	return FanoutOptions{URLs: urls, User: "u", Mode: "channel", Channels: 2, Subscribers: 5, Publishers: 2, Window: 4, Payload: 100,
		Warmup: 20 * time.Millisecond, Duration: 300 * time.Millisecond}
}

func TestFanout(t *testing.T) {
	for _, mode := range []string{"channel", "room"} {
		h := newHarbour()
		o := fanoutOptions(serve(t, h.handle), serve(t, h.handle))
		o.Mode = mode
		r, err := RunFanout(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		// Each channel has five subscribers and a publisher, which has it too.
		if r.Failed() || r.Subscribers != 12 || r.Deliveries == 0 || r.Received != 6*r.Published || r.Latency.Max == 0 {
			t.Errorf("%s: got %+v", mode, r)
		}
	}
}

// A server that is slower than the pace is charged for the messages that had to wait for their turn.
func TestFanoutCountsFromWhenMessagesWereDue(t *testing.T) {
	h := newHarbour()
	h.slow = 20 * time.Millisecond
	o := fanoutOptions(serve(t, h.handle))
	o.Channels, o.Publishers, o.Window, o.Rate, o.Duration = 1, 1, 1, 100, 600*time.Millisecond
	r, err := RunFanout(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	// Half of the pace is kept, so the wait grows by half of the time.
	if r.Failed() || r.Published > 40 || r.Latency.Max < 200 {
		t.Errorf("got %+v", r)
	}
}
