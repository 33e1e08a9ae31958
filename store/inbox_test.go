package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func send(t testing.TB, s *Store, to Inbox, bodies ...string) {
	t.Helper()
	for _, body := range bodies {
		if err := s.Send(t.Context(), to, []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
}

func wantMessages(t testing.TB, s *Store, in Inbox, after uint64, want ...Message) {
	t.Helper()
	got, err := s.ReadInbox(t.Context(), in, after, 100, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestInbox(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		in := incarnation()
		if err := s.Send(t.Context(), in, []byte("x")); !errors.Is(err, ErrNoInbox) {
			t.Fatalf("%v", err)
		}
		if messages := must[[]Message](t)(s.ReadInbox(t.Context(), in, 0, 10, 0)); messages != nil {
			t.Fatalf("%+v", messages)
		}
		for range 2 {
			if err := s.CreateInbox(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		}
		if messages := must[[]Message](t)(s.ReadInbox(t.Context(), in, 0, 10, 0)); messages != nil {
			t.Fatalf("%+v", messages)
		}
		binary := "\x00\xff\r\n$"
		send(t, s, in, "one", binary)
		wantMessages(t, s, in, 0, Message{1, []byte("one")}, Message{2, []byte(binary)})
		wantMessages(t, s, in, 1, Message{2, []byte(binary)})
		if err := s.CreateInbox(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		wantMessages(t, s, in, 1, Message{2, []byte(binary)})
		if err := s.Send(t.Context(), in, nil); err == nil {
			t.Fatal("an empty message was sent")
		}
		if err := s.DropInbox(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if err := s.Send(t.Context(), in, []byte("x")); !errors.Is(err, ErrNoInbox) {
			t.Fatalf("%v", err)
		}
		if err := s.Send(t.Context(), Inbox{Instance: "a", Incarnation: "yesterday"}, []byte("x")); err == nil || errors.Is(err, ErrNoInbox) {
			t.Fatalf("%v", err)
		}
	})
}

func TestInboxNumbersAreDense(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s, other := b.open(t), b.open(t)
		in := incarnation()
		if err := s.CreateInbox(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		const senders, each = 8, 50
		var wg sync.WaitGroup
		for i := range senders {
			wg.Go(func() {
				for n := range each {
					if err := []*Store{s, other}[i%2].Send(t.Context(), in, fmt.Appendf(nil, "%d %d", i, n)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		var seq uint64
		last := map[int]int{}
		for seq < senders*each {
			messages := must[[]Message](t)(s.ReadInbox(t.Context(), in, seq, 64, 5*time.Second))
			if len(messages) == 0 {
				t.Fatalf("nothing after %d", seq)
			}
			for _, m := range messages {
				if m.Seq != seq+1 {
					t.Fatalf("%d after %d", m.Seq, seq)
				}
				seq = m.Seq
				var i, n int
				if _, err := fmt.Sscan(string(m.Body), &i, &n); err != nil || n != last[i] {
					t.Fatalf("%q: want number %d, %v", m.Body, last[i], err)
				}
				last[i]++
			}
		}
		wg.Wait()
	})
}

func TestReadInboxWakesAndIsCancelled(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		in := incarnation()
		if err := s.CreateInbox(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		got := make(chan []Message, 1)
		go func() {
			messages, err := s.ReadInbox(t.Context(), in, 0, 10, time.Minute)
			if err != nil {
				t.Error(err)
			}
			got <- messages
		}()
		send(t, s, in, "1")
		if messages := <-got; len(messages) != 1 {
			t.Fatalf("%+v", messages)
		}
		began := time.Now()
		_, err := s.ReadInbox(canceledSoon(t), in, 1, 10, time.Minute)
		if !errors.Is(err, context.Canceled) || time.Since(began) > 10*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		send(t, s, in, "2")
		wantMessages(t, s, in, 1, Message{2, []byte("2")})
	})
}
