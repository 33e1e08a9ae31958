package transport

import (
	"errors"
	"slices"
	"testing"
)

type carrierFunc func([]byte) error

func (f carrierFunc) Write(b []byte) error { return f(b) }

// tray is a carrier that keeps what it is handed.
type tray struct {
	got  []string
	fail bool
}

func (c *tray) Write(b []byte) error {
	if c.fail {
		return errors.New("closed")
	}
	c.got = append(c.got, string(b))
	return nil
}

func newOutbox(c carrier) *outbox { return &outbox{to: c, maxBytes: 100, maxMessages: 10} }

func TestOutboxKeepsOrderAndWindow(t *testing.T) {
	c := &tray{}
	o := newOutbox(c)
	var want []string
	next := byte('a')
	for round := range 20 {
		for range round%5 + 1 {
			if o.put([]byte{next}, nil) != putQueued {
				break
			}
			want = append(want, string([]byte{next}))
			next++
		}
		if o.handed > window || o.handed != min(o.n, window) {
			t.Fatalf("%d of %d handed", o.handed, o.n)
		}
		o.sent()
		o.sent()
	}
	for o.n > 0 {
		o.sent()
	}
	if !slices.Equal(c.got, want) {
		t.Fatalf("got %q, want %q", c.got, want)
	}
	if o.bytes != 0 || o.handed != 0 {
		t.Fatal(o.bytes, o.handed)
	}
}

func TestOutboxBounds(t *testing.T) {
	o := newOutbox(&tray{})
	for range 10 {
		if o.put([]byte("x"), nil) != putQueued {
			t.Fatal("refused below the bound")
		}
	}
	if o.put([]byte("x"), nil) != putFull {
		t.Fatal("an eleventh message was taken")
	}
	o.sent()
	if o.put(make([]byte, 92), nil) != putFull {
		t.Fatal("more than 100 bytes were taken")
	}
	if o.put(make([]byte, 91), nil) != putQueued {
		t.Fatal("100 bytes were refused")
	}
}

func TestOutboxFinish(t *testing.T) {
	o := newOutbox(&tray{})
	if !o.finish() {
		t.Fatal("an empty outbox has something left")
	}
	o = newOutbox(&tray{})
	o.put([]byte("a"), nil)
	o.put([]byte("b"), nil)
	if o.finish() {
		t.Fatal("finished with two waiting")
	}
	if o.put([]byte("c"), nil) != putOver {
		t.Fatal("took one after finish")
	}
	if o.sent() || !o.sent() || o.sent() {
		t.Fatal("the last one must be reported, once")
	}
}

// Of those with the carrier, only the oldest may have been written.
func TestOutboxDrop(t *testing.T) {
	for _, tc := range []struct {
		sent int
		fail bool
		want []int
	}{
		{0, false, []int{1, 2, 3, 4, 5}},
		{2, false, []int{3, 4, 5}},
		{6, false, nil},
		{0, true, []int{0, 1, 2, 3, 4, 5}}, // the carrier took nothing
	} {
		o := newOutbox(&tray{fail: tc.fail})
		var got []int
		for i := range 6 {
			o.put([]byte("x"), func() { got = append(got, i) })
		}
		for range tc.sent {
			o.sent()
		}
		for _, f := range o.drop() {
			f()
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("after %d sent: dropped %v, want %v", tc.sent, got, tc.want)
		}
		if o.sent() || len(o.drop()) != 0 || o.put([]byte("x"), nil) != putOver {
			t.Error("alive after drop")
		}
	}
}
