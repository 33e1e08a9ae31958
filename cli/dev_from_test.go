package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/events"
	"holdfast/hammer"
	"holdfast/projections"
	"holdfast/replica"
	"holdfast/store"
)

// A replica that goes on from a slice has the state of the log that it was cut from.
func TestReplicaGoesOnFromASlice(t *testing.T) {
	entries := history(t)
	for _, from := range []int{0, 4, 7} {
		file := sliceOf(t, foldOf(t, entries[:from]), entries[from:])
		embedded, err := store.OpenEmbedded("holdfast")
		if err != nil {
			t.Fatal(err)
		}
		defer embedded.Close()
		got, err := loadSlice(t.Context(), file, embedded)
		if err != nil || got.entries != len(entries)-from || got.to != entries[11].Position {
			t.Fatalf("%+v, %v", got, err)
		}
		st, err := embedded.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		hour := time.Hour // nothing is to become due meanwhile
		rep := replica.New(replica.Config{
			Instance: "dev-1", Base: got.base, Log: zerolog.Nop(), Graces: commands.Graces{Peer: hour, RPC: hour, Recovery: hour},
		}, st)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- rep.Run(ctx) }()
		started := func(s *projections.State) bool { _, ok := s.Replica("dev-1"); return ok }
		eventually(t, "the replica has started", func() (ok bool) {
			rep.View(func(s *projections.State) { ok = started(s) })
			return ok
		})
		var digest [32]byte
		rep.View(func(s *projections.State) { digest = s.Digest() })
		want := foldOf(t, entries)
		added, err := st.Range(t.Context(), entries[11].Position, 10)
		if err != nil || len(added) != 2 {
			t.Fatalf("%d records were added: %v", len(added), err)
		}
		for _, r := range added {
			if r.Previous != want.Token {
				t.Fatalf("the chain is broken at %s", r.Position)
			}
			want.Apply(r)
		}
		if want.Digest() != digest {
			t.Errorf("from %d: the replica's state is another one", from)
		}
		if p, ok := want.Peer(projections.PeerID{User: "me", Peer: "daemon"}); !ok || p.Connected || want.Version(events.PeerKey("me", "daemon")) != entries[9].Position {
			t.Errorf("the daemon of a replica that does not run is %+v", p)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A client whose session the slice holds recovers it, and is called.
func TestDevFromASliceServesItsClients(t *testing.T) {
	entries := history(t)
	file := sliceOf(t, foldOf(t, entries[:4]), entries[4:10])
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, errs := &watched{}, &watched{}
	ended := make(chan int, 1)
	go func() { ended <- Run(ctx, []string{"dev", "--listen", "127.0.0.1:0", "--from", file}, out, errs) }()
	eventually(t, "it says what it holds", func() bool { return strings.Contains(out.String(), "6 entries of "+file) })
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(out.String())
	eventually(t, "it is ready", func() bool {
		res, err := http.Get(url + "/readyz")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	daemon, err := hammer.Dial(ctx, url, map[string]string{"user": "me", "peer": "daemon", "pid": "pid1"}, hammer.Options{
		Handlers: map[string]hammer.Handler{"rpc-request": func(_ []json.RawMessage, ack hammer.Ack) { _ = ack.Reply(json.RawMessage(`"hello"`)) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer daemon.Close()
	if s := daemon.Session(); s.PID != "pid1" {
		t.Errorf("the session of the slice is not recovered: %+v", s)
	}
	caller, err := hammer.Dial(ctx, url, map[string]string{"user": "me", "peer": "caller"}, hammer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	call, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	answer, err := caller.EmitWithAck(call, "rpc-call", json.RawMessage(`{"method":"greet"}`))
	if err != nil || !bytes.Contains(answer, []byte("hello")) {
		t.Errorf("the method of the slice answers %s, %v", answer, err)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("code %d: %s", code, errs)
	}
}

func TestDevFromWhatItCannotFold(t *testing.T) {
	entries := history(t)
	file := sliceOf(t, projections.New(), append(entries[:12:12], newerEntry(entries[11])))
	code, _, stderr := run(t, "dev", "--listen", "127.0.0.1:0", "--from", file)
	if code != 1 || !strings.Contains(stderr, "room-praised") {
		t.Errorf("code %d, %q", code, stderr)
	}
	if code, _, _ := run(t, "dev", "--from", file+".not"); code != 2 {
		t.Errorf("no file: code %d", code)
	}
}
