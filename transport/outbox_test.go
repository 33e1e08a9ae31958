package transport

import (
	"errors"
	"slices"
	"testing"
)

type carrierFunc func([]byte, bool) error

func (f carrierFunc) carry(b []byte, binary bool) error { return f(b, binary) }

// tray is a carrier that keeps what it is handed.
type tray struct {
	got  []string
	fail bool
}

func (c *tray) carry(b []byte, _ bool) error {
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
			if o.put([]byte{next}, nil, nil) != putQueued {
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
		if o.put([]byte("x"), nil, nil) != putQueued {
			t.Fatal("refused below the bound")
		}
	}
	if o.put([]byte("x"), nil, nil) != putFull {
		t.Fatal("an eleventh message was taken")
	}
	o.sent()
	if o.put(make([]byte, 92), nil, nil) != putFull {
		t.Fatal("more than 100 bytes were taken")
	}
	if o.put(make([]byte, 91), nil, nil) != putQueued {
		t.Fatal("100 bytes were refused")
	}
}

func TestOutboxFinish(t *testing.T) {
	o := newOutbox(&tray{})
	if !o.finish() {
		t.Fatal("an empty outbox has something left")
	}
	o = newOutbox(&tray{})
	o.put([]byte("a"), nil, nil)
	o.put([]byte("b"), nil, nil)
	if o.finish() {
		t.Fatal("finished with two waiting")
	}
	if o.put([]byte("c"), nil, nil) != putOver {
		t.Fatal("took one after finish")
	}
	for i, want := range []bool{false, true, false} {
		if _, _, last := o.sent(); last != want {
			t.Fatalf("sent %d: last is %v; it must be reported, once", i, last)
		}
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
			o.put([]byte("x"), nil, func() { got = append(got, i) })
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
		if n, _, last := o.sent(); n != 0 || last || len(o.drop()) != 0 || o.put([]byte("x"), nil, nil) != putOver {
			t.Error("alive after drop")
		}
	}
}

// What the carrier takes along is sent with the first, in order, and in doubt from then on.
func TestOutboxGather(t *testing.T) {
	o := newOutbox(&tray{})
	var dropped []int
	put := func(i int) { o.put([]byte{'a' + byte(i)}, nil, func() { dropped = append(dropped, i) }) }
	put(0)
	if got, n := o.gather(nil, []byte("head"), 1); n != 1 || len(got) != 0 {
		t.Fatalf("gathered %q, %d of one", got, n)
	}
	for i := range 5 {
		put(i + 1)
	}
	const room = 4 + 4*3 + maxFrameHeader - 1
	got, n := o.gather(make([]byte, 0, room), []byte("head"), room)
	if want := "head\x81\x01b\x81\x01c\x81\x01d\x81\x01e"; n != 5 || string(got) != want {
		t.Fatalf("gathered %q, %d, want %q", got, n, want)
	}
	o.putFirst([]byte("ping"))
	if packets, bytes, last := o.sent(); packets != 5 || bytes != 5 || last {
		t.Fatal(packets, bytes, last)
	}
	put(6)
	if got, n = o.gather(make([]byte, 0, room), []byte("\x81\x04ping"), room); n != 3 {
		t.Fatalf("gathered %q, %d", got, n)
	}
	put(7)
	for _, f := range o.drop() {
		f()
	}
	if !slices.Equal(dropped, []int{7}) {
		t.Errorf("dropped %v, want the one that was not taken", dropped)
	}
}
