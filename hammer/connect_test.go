package hammer

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

func stormOptions(urls ...string) ConnectOptions {
	return ConnectOptions{URLs: urls, User: "u", Connections: 40, Parallel: 8, Channel: true, Mode: "channel", Storm: true, StormWait: time.Minute, ReconnectDelay: 100 * time.Millisecond}
}

func TestStorm(t *testing.T) {
	h := newHarbour()
	r, err := RunConnect(t.Context(), stormOptions(serve(t, h.handle), serve(t, h.handle)))
	if err != nil {
		t.Fatal(err)
	}
	if c := r.Channels; c.Subscribed != 40 || c.Received != 40 || c.Latency.Max == 0 {
		t.Errorf("channels: %+v", c)
	}
	s := r.Storm
	if r.Failed() || r.Lost != 0 || s.Broken != 40 || s.Back != 40 || s.Recovered != 40 || s.Latency.Max < 50 || s.Messages.Published != 40 {
		t.Errorf("got %+v, %+v, %+v", r, s, s.Messages)
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "40 recovered, 0 not") ||
		!strings.Contains(text.String(), "40 messages published meanwhile: 0 missing, 0 duplicates") {
		t.Errorf("%v, %s", err, text.String())
	}
}

func TestStormInRooms(t *testing.T) {
	o := stormOptions(serve(t, newHarbour().handle))
	o.Mode = "room"
	r, err := RunConnect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed() || r.Channels.Received != 40 || r.Storm.Recovered != 40 || r.Storm.Messages != nil {
		t.Errorf("got %+v, %+v", r, r.Storm)
	}
}

func TestStormWithoutChannels(t *testing.T) {
	o := stormOptions(serve(t, newHarbour().handle))
	o.Channel = false
	r, err := RunConnect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed() || r.Channels != nil || r.Storm.Recovered != 40 || r.Storm.Messages != nil {
		t.Errorf("got %+v, %+v", r, r.Storm)
	}
}

func TestStormOfAKilledServer(t *testing.T) {
	h := newHarbour()
	first, second := serve(t, h.handle), serve(t, h.handle)
	server := exec.Command("sleep", "60")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Wait()
		h.sink(strings.TrimPrefix(first, "http://"))
	}()
	o := stormOptions(first, second)
	o.Storm, o.KillPID = false, server.Process.Pid
	r, err := RunConnect(t.Context(), o)
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Storm; r.Failed() || s.Broken != 20 || s.Recovered != 20 || s.Messages.Published != 40 {
		t.Errorf("got %+v, %+v", s, s.Messages)
	}
}

func TestStormCountsWhatWentWrong(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(h *harbour)
		wrong func(s *StormReport) bool
	}{
		"forgets": {func(h *harbour) { h.forgets = true }, func(s *StormReport) bool { return s.Fresh == 40 && s.Recovered == 0 && s.Messages.Missing == 0 }},
		"doubles": {func(h *harbour) { h.doubles = true }, func(s *StormReport) bool { return s.Recovered == 40 && s.Messages.Duplicates >= 40 }},
		"loses":   {func(h *harbour) { h.loses = true }, func(s *StormReport) bool { return s.Fresh == 0 && s.Messages.Missing > 0 }},
	} {
		h := newHarbour()
		c.spoil(h)
		o := stormOptions(serve(t, h.handle))
		if h.loses {
			o.StormWait = 2 * time.Second
		}
		r, err := RunConnect(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if !c.wrong(r.Storm) || !r.Failed() {
			t.Errorf("%s: got %+v, %+v", name, r.Storm, r.Storm.Messages)
		}
	}
}

func TestStormRefusesToReturn(t *testing.T) {
	h := newHarbour()
	var mu sync.Mutex
	n := 0
	url := serve(t, func(p *peer) {
		mu.Lock()
		n++
		again := n > 40
		mu.Unlock()
		if again {
			p.greet("25000", "20000")
			p.send(`44{"message":"full","data":{"code":"TOO_MANY_CONNECTIONS"}}`)
			p.idle()
			return
		}
		h.handle(p)
	})
	o := stormOptions(url)
	o.Channel = false
	r, err := RunConnect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s := r.Storm
	if s.Broken != 40 || s.Back != 0 || s.ErrorsByCode["TOO_MANY_CONNECTIONS"] != 40 || s.Attempts["TOO_MANY_CONNECTIONS"] != 40 || !r.Failed() {
		t.Errorf("got %+v", s)
	}
}

func TestConnectOptionsAreChecked(t *testing.T) {
	for want, change := range map[string]func(o *ConnectOptions){
		"no server":        func(o *ConnectOptions) { o.URLs = nil },
		"at least one":     func(o *ConnectOptions) { o.Connections = 0 },
		"negative":         func(o *ConnectOptions) { o.Hold = -1 },
		"want channel":     func(o *ConnectOptions) { o.Mode = "x" },
		"want the id":      func(o *ConnectOptions) { o.KillPID = -1 },
		"need another one": func(o *ConnectOptions) { o.KillPID = 1 << 30 },
		"to wait for":      func(o *ConnectOptions) { o.StormWait = 0 },
		"need a delay":     func(o *ConnectOptions) { o.ReconnectDelay = 0 },
		"no such process":  func(o *ConnectOptions) { o.KillPID = 1 << 30; o.URLs = append(o.URLs, o.URLs[0]) },
	} {
		o := stormOptions(serve(t, newHarbour().handle))
		o.Connections = 1
		change(&o)
		if _, err := RunConnect(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
