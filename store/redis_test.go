package store

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/events"
	"holdfast/store/redistest"
)

func TestOpenRefusesABadURL(t *testing.T) {
	for _, url := range []string{
		"",
		"http://localhost",
		"localhost:6379",
		"redis://:se/cret@localhost",
		"redis://:se#cret@localhost",
		"redis://u:secret@localhost:x",
		"redis://u:secret@localhost/secret",
		"redis://u:secret@localhost?dial_timeout=secret",
		"redis://u:secret@localhost/1/secret",
		"secret",
	} {
		_, err := Open(Options{URL: url})
		if err == nil || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", url, err)
		} else if strings.Contains(err.Error(), "cret") {
			t.Errorf("%s: the error shows the password: %v", url, err)
		}
	}
	if _, err := Open(Options{URL: "redis://localhost", Namespace: "a{b}"}); err == nil || errors.Is(err, ErrUnavailable) {
		t.Errorf("namespace: %v", err)
	}
}

func TestOpenWithoutAServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// Nothing answers there: first a listener that is silent, then none.
	for _, silent := range []bool{true, false} {
		if !silent {
			_ = l.Close()
		}
		began := time.Now()
		_, err = Open(Options{URL: "redis://:secret@" + l.Addr().String(), Timeout: 200 * time.Millisecond})
		if !errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), "secret") {
			t.Fatalf("%v", err)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Fatalf("took %v", took)
		}
	}
}

func TestOpenWithAWrongPassword(t *testing.T) {
	server := redistest.Start(t)
	server.Do(t, "CONFIG", "SET", "requirepass", "right")
	for _, auth := range []string{"", ":wrong@"} {
		_, err := Open(Options{URL: "redis://" + auth + server.Addr})
		if err == nil || errors.Is(err, ErrUnavailable) || strings.Contains(err.Error(), ":wrong@") {
			t.Errorf("%q: %v", auth, err)
		}
	}
	s, err := Open(Options{URL: "redis://:right@" + server.Addr})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	s.Close()
}

func TestKillAndRestart(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := openOn(t, server, "test")
	in := incarnation()
	if err := s.CreateInbox(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	must[bool](t)(s.EnsureGroup(t.Context(), "a", events.Position{}))
	first := write(t, s, command(nil, connected("p")))[0]
	if records := must[[]events.Record](t)(s.ReadGroup(t.Context(), "a", 10, time.Second)); len(records) != 1 {
		t.Fatalf("%+v", records)
	}

	waiting := make(chan error, 2)
	go func() {
		_, err := s.ReadGroup(t.Context(), "a", 10, time.Minute)
		waiting <- err
	}()
	go func() {
		_, err := s.ReadInbox(t.Context(), in, 0, 10, time.Minute)
		waiting <- err
	}()
	eventually(t, "both reads wait", func() bool {
		return strings.Contains(server.Do(t, "INFO", "clients"), "blocked_clients:2\r")
	})
	server.Kill(t)
	for range 2 {
		if err := <-waiting; !errors.Is(err, ErrUnavailable) {
			t.Fatalf("%v", err)
		}
	}
	down := func(err error) {
		t.Helper()
		if !errors.Is(err, ErrUnavailable) {
			t.Fatalf("%v", err)
		}
	}
	began := time.Now()
	_, err := s.Append(t.Context(), Fence{}, []Append{command(nil, connected("p"))})
	down(err)
	down(s.Send(t.Context(), in, []byte("x")))
	_, err = s.Beat(t.Context(), in, time.Minute, 0, nil)
	down(err)
	_, _, err = s.BeginCall(t.Context(), CallKey{"u", "1"}, in, "m", "j", time.Minute)
	down(err)
	_, err = s.ReadGroup(t.Context(), "a", 10, 50*time.Millisecond)
	down(err)
	if took := time.Since(began); took > 5*time.Second {
		t.Fatalf("failing took %v", took)
	}

	server.Restart(t)
	eventually(t, "the same Store appends again", func() bool {
		_, err := s.Append(t.Context(), Fence{}, []Append{command(at(peer("p"), first), connected("p"))})
		return err == nil
	})
	eventually(t, "the same Store reads again", func() bool {
		records, err := s.ReadGroup(t.Context(), "a", 10, time.Second)
		return err == nil && len(records) == 1 && records[0].Position != first
	})
	send(t, s, in, "1")
	wantMessages(t, s, in, 0, Message{1, []byte("1")})
}

func TestAFrozenServerHoldsNobodyForLong(t *testing.T) {
	server := redistest.Start(t)
	s, err := Open(Options{URL: server.URL, Timeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	must[bool](t)(s.EnsureGroup(t.Context(), "a", events.Position{}))
	server.Pause(t)
	began := time.Now()
	if _, err := s.Append(t.Context(), Fence{}, []Append{command(nil, connected("p"))}); !errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
	if _, err := s.ReadGroup(t.Context(), "a", 1, 100*time.Millisecond); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Head(ctx); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("%v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Fatalf("took %v", took)
	}
	server.Resume(t)
	// The frozen append may have been carried out; the Store does not do it again.
	eventually(t, "it answers again", func() bool {
		_, err := s.Head(t.Context())
		return err == nil
	})
	if records := must[[]events.Record](t)(s.Range(t.Context(), events.Position{}, 10)); len(records) > 1 {
		t.Fatalf("%d records", len(records))
	}
}

func TestRefusalsOfTheServerAreUnavailability(t *testing.T) {
	server := redistest.Start(t)
	s := openOn(t, server, "test")
	try := func(want string) {
		t.Helper()
		_, err := s.Append(t.Context(), Fence{}, []Append{command(nil, connected("p"))})
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Fatalf("want %s: %v", want, err)
		}
	}
	server.Do(t, "CONFIG", "SET", "maxmemory", "1")
	try("OOM")
	server.Do(t, "CONFIG", "SET", "maxmemory", "0")
	server.Do(t, "CONFIG", "SET", "min-replicas-to-write", "1")
	try("NOREPLICAS")
	server.Do(t, "CONFIG", "SET", "min-replicas-to-write", "0")
	server.Do(t, "REPLICAOF", "127.0.0.1", "1")
	try("READONLY")
	server.Do(t, "REPLICAOF", "NO", "ONE")
	write(t, s, command(absent(peer("p")), connected("p")))
}

// After SCRIPT FLUSH the script is unknown; it is sent anew and runs once.
func TestForgottenScriptRunsOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		for range 3 {
			raw(t, s, "SCRIPT", "FLUSH")
			write(t, s, command(nil, connected("p")))
		}
		if records := must[[]events.Record](t)(s.Range(t.Context(), events.Position{}, 10)); len(records) != 3 {
			t.Fatalf("%d records", len(records))
		}
	})
}

func TestCloseEndsReadsAndLeavesNothing(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		plain.get(t)
		cluster.get(t)
		before := goleak.IgnoreCurrent()
		s := b.open(t)
		must[bool](t)(s.EnsureGroup(t.Context(), "a", events.Position{}))
		done := make(chan error, 1)
		go func() {
			_, err := s.ReadGroup(t.Context(), "a", 1, time.Minute)
			done <- err
		}()
		write(t, s, command(nil, connected("p")))
		<-done
		go func() {
			_, err := s.ReadGroup(t.Context(), "a", 1, time.Minute)
			done <- err
		}()
		s.Close()
		if err := <-done; !errors.Is(err, ErrUnavailable) {
			t.Fatalf("%v", err)
		}
		for _, err := range []error{
			s.Send(t.Context(), incarnation(), []byte("x")),
			func() error { _, err := s.ReadInbox(t.Context(), incarnation(), 0, 1, time.Second); return err }(),
		} {
			if !errors.Is(err, ErrUnavailable) {
				t.Fatalf("%v", err)
			}
		}
		goleak.VerifyNone(t, before,
			goleak.IgnoreAnyFunction("github.com/alicebob/miniredis/v2/server.(*Server).ServeConn"),
			goleak.IgnoreAnyFunction("github.com/alicebob/miniredis/v2.blocking"))
	})
}
