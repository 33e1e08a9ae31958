package store

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func TestDoorsLimitDialling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, refused := newDoors(), errors.New("refused")
		dials := 0
		dial := func(ctx context.Context, err error) error {
			_, got := d.dial(ctx, "a:1", func() (net.Conn, error) { dials++; return nil, err })
			return got
		}
		// One caller that asks every millisecond for a minute.
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
			if err := dial(t.Context(), refused); !errors.Is(err, refused) {
				t.Fatalf("%v", err)
			}
		}
		if dials < 55 || dials > 90 {
			t.Errorf("%d dials in a minute, want about one a second", dials)
		}
		if pause := d.pause(); pause > maxBackoff {
			t.Errorf("pause of %v", pause)
		}
		// Another address is not held up, and one success opens the door again.
		if _, err := d.dial(t.Context(), "b:1", func() (net.Conn, error) { return nil, nil }); err != nil {
			t.Errorf("%v", err)
		}
		time.Sleep(maxBackoff)
		if err := dial(t.Context(), nil); err != nil {
			t.Errorf("%v", err)
		}
		if pause := d.pause(); pause != minBackoff {
			t.Errorf("pause of %v", pause)
		}
		// A caller who gives up says nothing about the server.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 2 {
			dials = 0
			if err := dial(ctx, context.Canceled); !errors.Is(err, context.Canceled) || dials != 1 {
				t.Errorf("%v after %d dials", err, dials)
			}
		}
	})
}
