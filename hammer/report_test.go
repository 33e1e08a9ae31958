package hammer

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestRPCReport(t *testing.T) {
	figures := Figures{Seconds: 10, Calls: 25_000, Errors: 3, CallsPerSecond: 2500, Latency: Latency{P50: 1.1, P95: 5, P99: 14.25, Max: 80},
		ErrorsByCode: map[string]uint64{"RPC_TIMEOUT": 2, "NO_ACK": 1}}
	r := RPCReport{URLs: []string{"http://a", "http://b"}, Callers: 64, Connections: 64, Handlers: 4, Payload: 128,
		RPC: figures, Baseline: &Figures{Calls: 500_000, CallsPerSecond: 50_000, Latency: Latency{P50: 0.25, P95: 0.5, P99: 1, Max: 2}}}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	const want = `http://a http://b
64 callers on 64 connections, 4 handlers, 128 bytes, as fast as possible, 10.0 s
                  calls/s   p50 ms   p95 ms   p99 ms   max ms    calls   errors   unsent
            rpc      2500     1.10     5.00    14.25    80.00    25000        3        0
   bare streams     50000     0.25     0.50     1.00     2.00   500000        0        0
rpc error NO_ACK: 1
rpc error RPC_TIMEOUT: 2
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}

	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		RPC struct {
			CallsPerSecond float64
			LatencyMs      struct{ P99 float64 }
			ErrorsByCode   map[string]int
		}
		Baseline struct{ Calls int }
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	if got.RPC.CallsPerSecond != 2500 || got.RPC.LatencyMs.P99 != 14.25 || got.RPC.ErrorsByCode["RPC_TIMEOUT"] != 2 || got.Baseline.Calls != 500_000 {
		t.Errorf("got %s", raw)
	}
}

func TestProgressWipesItself(t *testing.T) {
	var out bytes.Buffer
	drawn := make(chan struct{}, 100)
	stop := showProgress(&out, func() string {
		drawn <- struct{}{}
		return "half " + bar(0.5)
	})
	within(t, "a line", drawn)
	stop()
	if got := out.String(); !bytes.Contains(out.Bytes(), []byte("half [============            ]")) || !bytes.HasSuffix(out.Bytes(), []byte("\r\x1b[K")) {
		t.Errorf("got %q", got)
	}
	showProgress(nil, nil)()
}
