package hammer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"holdfast/transport/socketio"
)

// exchange is the least that a server of RPC calls has to do: all replicas in one.
type exchange struct {
	mu      sync.Mutex
	daemons map[string]*peer
	callers map[uint64]func(result json.RawMessage)
	next    uint64
	seen    map[string]int // connections by auth
	reply   func(method string, result json.RawMessage) string
}

func newExchange() *exchange {
	return &exchange{
		daemons: make(map[string]*peer),
		callers: make(map[uint64]func(json.RawMessage)),
		seen:    make(map[string]int),
		reply: func(_ string, result json.RawMessage) string {
			return fmt.Sprintf(`{"ok":true,"result":%s}`, result)
		},
	}
}

func (x *exchange) handle(p *peer) {
	p.open()
	x.mu.Lock()
	x.seen[string(p.auth)]++
	x.mu.Unlock()
	p.each(func(packet socketio.Packet) {
		x.mu.Lock()
		defer x.mu.Unlock()
		switch packet.Type {
		case socketio.Ack:
			values, _ := socketio.SplitArgs(packet.Data)
			answer := x.callers[packet.ID]
			delete(x.callers, packet.ID)
			answer(values[0])
		case socketio.Event:
			name, args, _ := socketio.SplitEvent(packet.Data)
			var call struct {
				Method string
				Params json.RawMessage
			}
			_ = json.Unmarshal(args[0], &call)
			switch name {
			case "rpc-register":
				x.daemons[call.Method] = p
				p.send(fmt.Sprintf(`43%d[{"ok":true}]`, packet.ID))
			case "rpc-call":
				id := x.next
				x.next++
				x.callers[id] = func(result json.RawMessage) {
					p.send(fmt.Sprintf(`43%d[%s]`, packet.ID, x.reply(call.Method, result)))
				}
				x.daemons[call.Method].send(fmt.Sprintf(`42%d["rpc-request",{"method":%q,"params":%s}]`, id, call.Method, call.Params))
			}
		}
	})
}

func rpcOptions(urls ...string) RPCOptions {
	return RPCOptions{URLs: urls, User: "ada", Callers: 8, Handlers: 2, Payload: 200,
		Warmup: 10 * time.Millisecond, Duration: 200 * time.Millisecond, Timeout: 5 * time.Second}
}

func TestRPCBench(t *testing.T) {
	x := newExchange()
	first, second := serve(t, x.handle), serve(t, x.handle)
	for _, o := range []RPCOptions{rpcOptions(first, second), rpcOptions(first)} {
		report, err := RunRPC(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if report.RPC.Calls == 0 || report.RPC.Errors != 0 || report.Failed() {
			t.Errorf("got %+v", report.RPC)
		}
	}
	if len(x.seen) != 1 || x.seen[`{"user":"ada"}`] != 20 {
		t.Errorf("connections %v, want 20 of ada", x.seen)
	}
}

func TestRPCBenchSharesConnections(t *testing.T) {
	x := newExchange()
	o := rpcOptions(serve(t, x.handle))
	o.Connections, o.Rate, o.Token, o.Payload = 3, 500, "jwt", 0
	report, err := RunRPC(t.Context(), o)
	if err != nil || report.RPC.Calls == 0 || report.Failed() {
		t.Errorf("got %+v, %v", report.RPC, err)
	}
	if report.Connections != 3 || x.seen[`{"token":"jwt","user":"ada"}`] != 5 {
		t.Errorf("connections %v, want 3 and 2", x.seen)
	}
}

func TestRPCBenchCountsWhatWentWrong(t *testing.T) {
	for want, reply := range map[string]string{
		"WRONG_RESULT":             `{"ok":true,"result":"9-9"}`,
		"RPC_TIMEOUT":              `{"ok":false,"error":"operation has timed out","code":"RPC_TIMEOUT"}`,
		"RPC method not available": `{"ok":false,"error":"RPC method not available"}`,
		"FAILED":                   `{}`,
		"BAD_REPLY":                `7`,
	} {
		x := newExchange()
		x.reply = func(string, json.RawMessage) string { return reply }
		report, err := RunRPC(t.Context(), rpcOptions(serve(t, x.handle)))
		if err != nil {
			t.Fatal(err)
		}
		if report.RPC.Calls != 0 || report.RPC.Errors == 0 || report.RPC.ErrorsByCode[want] != report.RPC.Errors || !report.Failed() {
			t.Errorf("%s: got %+v", want, report.RPC)
		}
	}
}

func TestParamsOf(t *testing.T) {
	for request, want := range map[string]string{
		`{"method":"m","params":"1-2","id":"x"}`: `"1-2"`,
		`{"method":"m", "params" : "1-2" }`:      `"1-2"`,
		`{"params":{"a":1},"method":"m"}`:        `{"a":1}`,
		`{"method":"m"}`:                         `null`,
		`7`:                                      `null`,
	} {
		if got := string(paramsOf(json.RawMessage(request))); got != want {
			t.Errorf("%s: got %s, want %s", request, got, want)
		}
	}
}

func TestStreams(t *testing.T) {
	redis := miniredis.RunT(t)
	l := load{Workers: 8, Warmup: 10 * time.Millisecond, Duration: 300 * time.Millisecond}
	f, err := runStreams(t.Context(), "redis://"+redis.Addr(), l, 100)
	if err != nil {
		t.Fatal(err)
	}
	if f.Calls == 0 || f.Errors != 0 {
		t.Errorf("got %+v", f)
	}
	if keys := redis.Keys(); len(keys) != 0 {
		t.Errorf("left behind: %v", keys)
	}
}

func TestConnectBench(t *testing.T) {
	url := serve(t, func(p *peer) { p.open().idle() })
	o := ConnectOptions{URLs: []string{url}, User: "u", Connections: 40, Rate: 2000, Parallel: 8, Hold: time.Millisecond, PID: os.Getpid()}
	r, err := RunConnect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Connected != 40 || r.Failed() || r.Latency.Max == 0 {
		t.Errorf("got %+v", r)
	}
	if _, err := residentMemory(os.Getpid()); err == nil && (r.Memory == nil || r.Memory.Held == 0) {
		t.Errorf("memory %+v", r.Memory)
	}
}

func TestConnectBenchCountsFailures(t *testing.T) {
	var mu sync.Mutex
	n := 0
	url := serve(t, func(p *peer) {
		p.greet("25000", "20000")
		mu.Lock()
		n++
		mine := n
		mu.Unlock()
		switch {
		case mine <= 3:
			p.send(`44{"message":"full","data":{"code":"TOO_MANY_CONNECTIONS"}}`)
		case mine <= 5:
			p.send(`40{"sid":"s"}`)
			return // hangs up
		default:
			p.send(`40{"sid":"s"}`)
		}
		p.idle()
	})
	r, err := RunConnect(t.Context(), ConnectOptions{URLs: []string{url}, Connections: 10, Parallel: 2, Hold: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if r.Connected != 7 || r.Refused != 3 || r.ErrorsByCode["TOO_MANY_CONNECTIONS"] != 3 || r.Lost != 2 || !r.Failed() || r.Memory != nil {
		t.Errorf("got %+v", r)
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil || !strings.Contains(text.String(), "not available") {
		t.Errorf("%v, %s", err, text.String())
	}
}

func TestInterruptedBench(t *testing.T) {
	x := newExchange()
	url := serve(t, x.handle)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answer, answered := x.reply, 0
	x.reply = func(method string, result json.RawMessage) string {
		if answered++; answered == 5000 { // more than the warmup has time for
			cancel()
		}
		return answer(method, result)
	}
	o := rpcOptions(url)
	o.Duration = time.Hour
	report, err := RunRPC(ctx, o)
	if err != nil || report.RPC.Calls == 0 || report.RPC.Seconds > 60 {
		t.Errorf("got %+v, %v", report.RPC, err)
	}
}
