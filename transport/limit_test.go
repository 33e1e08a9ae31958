package transport

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestConnectionLimits(t *testing.T) {
	const refusal = `44{"message":"Too many connections","data":{"code":"TOO_MANY_CONNECTIONS"}}`
	for name, o := range map[string]Options{"in total": {MaxConnections: 2}, "per address": {MaxPerAddress: 2}} {
		t.Run(name, func(t *testing.T) {
			app := newTestApp()
			srv, url := start(t, o, app)
			first, second := join(t, url), pollJoined(t, url)
			third := dial(t, url)
			third.send("40")
			third.want(refusal)
			third.wantClose(1013)
			polls := poll(t, url)
			polls.post("40")
			polls.want(refusal, "1")
			first.send(`421["a"]`)
			first.want(`431[]`)
			second.post("1")
			wantReason(t, app, ReasonTransportClose)
			join(t, url)
			until(t, "both that were too many are closed", func() bool { return srv.Stats().Closed[ReasonTooMany] == 2 })
		})
	}
}

func TestSessionsAreOpenedAFewAtATime(t *testing.T) {
	srv, url := start(t, Options{}, newTestApp())
	here := join(t, url)
	for range maxOpening {
		srv.opening <- struct{}{}
	}
	for _, transport := range []string{"polling", "websocket"} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.Replace(strings.Replace(url, "ws", "http", 1), "websocket", transport, 1), nil)
		if err != nil {
			t.Fatal(err)
		}
		if transport == "websocket" {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "websocket")
		}
		if _, err := http.DefaultClient.Do(req); !errors.Is(err, context.DeadlineExceeded) { //nolint:bodyclose // there is none
			t.Fatalf("%s: %v though no place was free", transport, err)
		}
	}
	here.send(`421["a"]`) // who is here is served
	here.want(`431[]`)
	opened := make(chan *raw, 1)
	go func() { opened <- dial(t, url) }()
	<-srv.opening
	c := recv(t, opened)
	c.send("40", `421["a"]`)
	c.read()
	c.want(`431[]`)
	for range maxOpening - 1 {
		<-srv.opening
	}
	until(t, "no place is taken", func() bool { return len(srv.opening) == 0 })
}
