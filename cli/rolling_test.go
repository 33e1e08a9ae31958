package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/hammer"
	"holdfast/store/redistest"
)

// allowed are the codes with which a call may end while replicas are killed: what its caller's own replica
// took down with it has no answer, and is counted apart.
var allowed = map[string]bool{"RPC_TARGET_LOST": true, "RPC_NOT_AVAILABLE": true, "STORE_UNAVAILABLE": true}

// During a load of calls each replica is killed and started again in turn: nobody skips an event, calls end
// as the protocol allows, and a repeatable one is never lost while its caller is there.
func TestReplicasAreKilledInTurnUnderLoad(t *testing.T) {
	t.Parallel()
	rounds := 1
	if os.Getenv("HOLDFAST_LONG") != "" {
		rounds = 5
	}
	redis := redistest.Start(t, "--appendonly", "yes")
	bin := binary(t, "")
	replicas := []*process{serve(t, bin, redis.URL, "a"), serve(t, bin, redis.URL, "b"), serve(t, bin, redis.URL, "c")}

	// Each daemon and caller goes to the next replica when its own is gone, as behind a load balancer.
	daemons := make([]*roamer, 3)
	for i := range daemons {
		daemons[i] = roam(t, replicas, i, fmt.Sprintf("daemon-%d", i))
		daemons[i].registers(fmt.Sprintf("m%d", i))
	}
	callers := make([]*roamer, 3)
	for i := range callers {
		callers[i] = roam(t, replicas, i, fmt.Sprintf("caller-%d", i))
	}
	var stop atomic.Bool
	var group sync.WaitGroup
	var mu sync.Mutex
	codes := map[string]int{}
	for i, c := range callers {
		group.Go(func() {
			for n := 0; !stop.Load(); n++ {
				code := c.call(fmt.Sprintf("m%d", (i+n)%3))
				mu.Lock()
				codes[code]++
				mu.Unlock()
				if code != "OK" && code != "NO_ACK" && !allowed[code] {
					t.Errorf("a call ended with %s", code)
				}
				time.Sleep(5 * time.Millisecond) // the pace of the load
			}
		})
	}
	for round := range rounds {
		for i, p := range replicas {
			p.signal(syscall.SIGKILL)
			<-p.exited
			address := strings.TrimPrefix(p.URL, "http://")
			replicas[i] = launchAt(t, bin, redis.URL, p.instance, address)
			replicas[i].ready()
			d := agree(t, replicas...)
			t.Logf("round %d, %s was killed: digests agree at %s", round+1, p.instance, d.Position)
		}
	}
	stop.Store(true)
	group.Wait()
	d := agree(t, replicas...)
	if d.Replicas != 3 {
		t.Errorf("%d replicas live, want 3", d.Replicas)
	}
	for i := range daemons {
		for _, c := range callers {
			eventually(t, "every method is callable by everybody", func() bool { return c.call(fmt.Sprintf("m%d", i)) == "OK" })
		}
	}
	t.Logf("%d rounds, outcomes of the calls: %v", rounds, codes)
	if codes["OK"] < 200*rounds {
		t.Errorf("only %d calls succeeded", codes["OK"])
	}
	for _, p := range replicas {
		if n := p.metric(`holdfast_store_anomalies_total{kind="gap"}`); n != "" {
			t.Errorf("%s had %s gaps", p.instance, n)
		}
	}
}

// roamer is a client that connects to the next replica when its own is gone.
type roamer struct {
	t    *testing.T
	name string
	mu   sync.Mutex
	c    *hammer.Client
	urls []string
	at   int
	pid  string

	methods []string
}

func roam(t *testing.T, replicas []*process, at int, name string) *roamer {
	t.Helper()
	r := &roamer{t: t, name: name, at: at}
	for _, p := range replicas {
		r.urls = append(r.urls, p.URL)
	}
	r.connect()
	t.Cleanup(func() { r.mu.Lock(); defer r.mu.Unlock(); r.c.Close() })
	return r
}

// connect finds a replica that takes it. The caller holds mu, or nobody else knows r.
func (r *roamer) connect() {
	answer, _ := json.Marshal(r.name)
	for {
		auth := map[string]string{"user": "u", "peer": r.name}
		if r.pid != "" {
			auth["pid"] = r.pid
		}
		ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Second)
		c, err := hammer.Dial(ctx, r.urls[r.at%len(r.urls)], auth, hammer.Options{
			OnDisconnect: func(*hammer.Client, error) { go r.lost() },
			Handlers:     map[string]hammer.Handler{"rpc-request": func(_ []json.RawMessage, ack hammer.Ack) { _ = ack.Reply(answer) }},
		})
		cancel()
		if err == nil {
			r.c, r.pid = c, c.Session().PID
			return
		}
		if r.t.Context().Err() != nil {
			return
		}
		r.at++
		time.Sleep(50 * time.Millisecond) // the pause of a client that reconnects
	}
}

func (r *roamer) lost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.t.Context().Err() != nil {
		return
	}
	r.at++
	r.connect()
	for _, m := range r.methods {
		_ = r.register(m)
	}
}

func (r *roamer) registers(method string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.methods = append(r.methods, method)
	if err := r.register(method); err != nil {
		r.t.Fatal(err)
	}
}

func (r *roamer) register(method string) error {
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	_, err := r.c.EmitWithAck(ctx, "rpc-register", json.RawMessage(fmt.Sprintf(`{"method":%q}`, method)))
	return err
}

// call makes one call and gives its outcome: OK, its code, or NO_ACK when its own connection ended.
func (r *roamer) call(method string) string {
	r.mu.Lock()
	c := r.c
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
	defer cancel()
	ack, err := c.EmitWithAck(ctx, "rpc-call", json.RawMessage(fmt.Sprintf(`{"method":%q,"params":1,"timeout":15000}`, method)))
	if err != nil {
		return "NO_ACK"
	}
	var a struct {
		OK   bool   `json:"ok"`
		Code string `json:"code"`
	}
	if err := json.Unmarshal(ack, &a); err != nil {
		return "MALFORMED"
	}
	if a.OK {
		return "OK"
	}
	return a.Code
}
