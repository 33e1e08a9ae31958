package relay

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/rs/zerolog"

	"holdfast/commands"
	"holdfast/projections"
	"holdfast/replica"
	"holdfast/store"
	"holdfast/store/redistest"
)

// world is some replicas in one process, with clients that a test plays, over an embedded store unless it has a url.
type world struct {
	t        *testing.T
	embedded *store.Embedded
	server   *redistest.Server
	url      string // of server, or of a proxy before it
	waits    waits
	nodes    []*testNode

	partitions int
	channels   ChannelConfig
}

type testNode struct {
	w     *world
	name  string
	st    *store.Store
	rep   *replica.Replica
	relay *Relay
	stop  func()
}

const testLease = 800 * time.Millisecond

// waits is how long the replicas of a world wait for who may come back.
type waits struct{ grace, lateAck, recovery time.Duration }

// A test whose clients come back wants them to be waited for, however long a busy machine takes to bring them; one that
// is about the end of the wait wants that soon.
var (
	long  = waits{grace: time.Minute, lateAck: time.Minute, recovery: time.Minute}
	short = waits{grace: 400 * time.Millisecond, lateAck: 300 * time.Millisecond, recovery: 5 * time.Second}
)

func newWorld(t *testing.T, replicas int) *world { return newWorldOf(t, replicas, long) }

func newWorldOf(t *testing.T, replicas int, waits waits) *world {
	t.Helper()
	embedded, err := store.OpenEmbedded("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(embedded.Close)
	w := &world{t: t, embedded: embedded, waits: waits}
	for i := range replicas {
		w.nodes = append(w.nodes, w.start(fmt.Sprintf("r%d", i+1)))
	}
	return w
}

func (w *world) open() *store.Store {
	w.t.Helper()
	st, err := w.embedded.Open()
	if w.url != "" {
		if err == nil {
			st.Close()
		}
		st, err = store.Open(store.Options{URL: w.url, Namespace: "test"})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return st
}

func (w *world) start(name string) *testNode {
	w.t.Helper()
	st := w.open()
	log := zerolog.Nop()
	if os.Getenv("HOLDFAST_TEST_LOG") != "" {
		log = zerolog.New(zerolog.NewTestWriter(w.t)).With().Timestamp().Logger()
	}
	rep := replica.New(replica.Config{
		Partitions: w.partitions, Instance: name, LeaseTTL: testLease, Patience: 3 * time.Second, Log: log,
		Graces: commands.Graces{Peer: w.waits.grace, RPC: w.waits.grace, Recovery: w.waits.recovery},
	}, st)
	n := &testNode{w: w, name: name, st: st, rep: rep, relay: New(rep, Config{LateAck: w.waits.lateAck, Log: log, Channels: w.channels})}
	NewAudience(rep)
	// As in a process, the relay outlives the replica.
	ctx, cancel := context.WithCancel(context.Background())
	relayCtx, cancelRelay := context.WithCancel(context.Background())
	var replicas, relays sync.WaitGroup
	replicas.Go(func() {
		if err := rep.Run(ctx); err != nil {
			w.t.Errorf("replica %s: %v", name, err)
		}
	})
	relays.Go(func() { n.relay.Run(relayCtx) })
	n.stop = sync.OnceFunc(func() { cancel(); replicas.Wait(); cancelRelay(); relays.Wait(); st.Close() })
	w.t.Cleanup(n.stop)
	select {
	case <-rep.Ready():
	case <-time.After(10 * time.Second):
		w.t.Fatalf("replica %s is not ready: %v", name, rep.ReadyError())
	}
	return n
}

// kill takes the replica off the store at once, as SIGKILL would: it can end nothing, and its lease runs out.
func (n *testNode) kill() { n.st.Close() }

// testClient is a client's side of a connection: it is the replica's Link.
type testClient struct {
	n        *testNode
	session  *replica.Session
	requests chan testRequest
	events   chan string // names of other events
	replaced chan bool

	mu       sync.Mutex
	gone     bool
	presence int // events of it that came
	got      []*replica.Broadcast
	last     string // the offset that it shows when it has got nothing in this connection
	deaf     bool   // its connection takes nothing: requests are dropped
}

type testRequest struct {
	ack    uint32
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	ID     string          `json:"id"`

	attachments [][]byte
}

// connect admits a client. With pid it shows that, as a stock client does when it reconnects.
func (n *testNode) connect(peer, pid string) *testClient {
	n.w.t.Helper()
	c := &testClient{
		n: n, requests: make(chan testRequest, 64), events: make(chan string, 64), replaced: make(chan bool, 1),
		session: &replica.Session{
			User: "u", Peer: peer, Connection: ulid.Make().String(),
			SID: ulid.Make().String(), PID: ulid.Make().String(),
		},
	}
	c.session.Link = c
	if err := n.rep.Connect(context.Background(), c.session, pid, ulid.Make().String()); err != nil {
		n.w.t.Fatalf("connect %s: %v", peer, err)
	}
	return c
}

func (c *testClient) Emit(name string, _ ...[]byte) bool {
	c.events <- name
	return true
}

func (c *testClient) Broadcast(b *replica.Broadcast) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false
	}
	if b.Name == "presence" {
		c.presence++
	}
	if b.Offset != "" { // presence goes out without
		c.got = append(c.got, b)
	}
	return true
}

func (c *testClient) Allow(int, int) {}

func (c *testClient) Request(_ string, id uint32, dropped func(), arg replica.Payload) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return false
	}
	if c.deaf {
		go dropped()
		return true
	}
	r := testRequest{ack: id, attachments: arg.Attachments}
	if err := json.Unmarshal(arg.JSON, &r); err != nil {
		c.n.w.t.Errorf("a request is not JSON: %q", arg.JSON)
	}
	c.requests <- r
	return true
}

func (c *testClient) Replaced(recovered bool) {
	select {
	case c.replaced <- recovered:
	default:
	}
}

func (c *testClient) Reconnect(replica.Why) { c.cut() }

func (c *testClient) cut() {
	c.mu.Lock()
	c.gone = true
	c.mu.Unlock()
}

// leave ends the connection, as a lost one or as the client's own wish.
func (c *testClient) leave(wish bool) {
	c.cut()
	c.n.relay.Gone(c.session)
	c.n.rep.Disconnect(c.session, "test", wish)
}

func (c *testClient) register(method string, replaySafe bool) {
	c.n.w.t.Helper()
	if _, err := c.n.rep.Register(context.Background(), c.session, method, replaySafe); err != nil {
		c.n.w.t.Fatalf("register %s: %v", method, err)
	}
}

// request waits for the next request that the client gets.
func (c *testClient) request() testRequest {
	c.n.w.t.Helper()
	select {
	case r := <-c.requests:
		return r
	case <-time.After(5 * time.Second):
		c.n.w.t.Fatal("no request came")
		return testRequest{}
	}
}

func (c *testClient) noRequest() {
	c.n.w.t.Helper()
	select {
	case r := <-c.requests:
		c.n.w.t.Fatalf("a request came that must not: %+v", r)
	default:
	}
}

func (c *testClient) answer(r testRequest, result string) {
	c.n.relay.Answer(c.session, uint64(r.ack), replica.Payload{JSON: []byte(result)})
}

// call is a call under way.
type testCall struct {
	w    *world
	done chan Outcome
}

func (c *testClient) call(r Request) *testCall {
	tc := &testCall{w: c.n.w, done: make(chan Outcome, 8)}
	c.n.relay.Call(c.session, r, func(o Outcome) { tc.done <- o })
	return tc
}

func (tc *testCall) outcome() Outcome {
	tc.w.t.Helper()
	select {
	case o := <-tc.done:
		return o
	case <-time.After(8 * time.Second):
		tc.w.t.Fatal("no outcome")
		panic("unreachable")
	}
}

// wants waits for the outcome, which must be the code, or with "" the result.
func (tc *testCall) wants(code, result string) {
	tc.w.t.Helper()
	select {
	case o := <-tc.done:
		if o.Code != code {
			tc.w.t.Fatalf("outcome %s, want code %q", o.Ack.JSON, code)
		}
		var ack struct {
			OK     bool            `json:"ok"`
			Result json.RawMessage `json:"result"`
			Error  string          `json:"error"`
			Code   string          `json:"code"`
		}
		if err := json.Unmarshal(o.Ack.JSON, &ack); err != nil {
			tc.w.t.Fatalf("ack %q: %v", o.Ack.JSON, err)
		}
		if ack.OK != (code == "") || ack.Code != code || code == "" && string(ack.Result) != result || code != "" && ack.Error == "" {
			tc.w.t.Fatalf("ack %s, want code %q result %q", o.Ack.JSON, code, result)
		}
	case <-time.After(8 * time.Second):
		tc.w.t.Fatalf("no outcome; want code %q", code)
	}
}

// pending asserts that the call has no outcome yet.
func (tc *testCall) pending() {
	tc.w.t.Helper()
	select {
	case o := <-tc.done:
		tc.w.t.Fatalf("the call ended already: %s", o.Ack.JSON)
	default:
	}
}

// settle waits until every replica has applied what is in the log now.
func (w *world) settle() {
	w.t.Helper()
	for _, n := range w.nodes {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		if err := n.rep.CatchUp(ctx); err != nil {
			w.t.Fatal(err)
		}
		cancel()
	}
}

func (w *world) eventually(what string, f func() bool) {
	w.t.Helper()
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	w.t.Fatalf("not within 8 s: %s", what)
}

func (n *testNode) availability(method string) projections.Availability {
	var a projections.Availability
	n.rep.View(func(s *projections.State) {
		_, _, a = s.Resolve(projections.MethodID{User: "u", Method: method})
	})
	return a
}

// quiet waits until no call is left behind anywhere: who has an outcome may have it before other replicas are done.
func (w *world) quiet() {
	w.t.Helper()
	for _, n := range w.nodes {
		w.eventually(n.name+" holds nothing of calls that have ended", func() bool {
			n.relay.mu.Lock()
			defer n.relay.mu.Unlock()
			return len(n.relay.calls)+len(n.relay.acks)+len(n.relay.byTarget)+len(n.relay.byMethod)+len(n.relay.owned) == 0
		})
	}
}

// flush empties the store under the replicas.
func (w *world) flush() {
	w.t.Helper()
	if got := w.do("FLUSHALL"); got != "OK" {
		w.t.Fatal(got)
	}
}

// do has the store carry out a command whose answer is one text, past the replicas.
func (w *world) do(args ...string) string {
	w.t.Helper()
	if w.server != nil {
		return w.server.Do(w.t, args...)
	}
	conn, err := net.Dial("tcp", w.embedded.Addr)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(conn, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(a), a)
	}
	answer := bufio.NewReader(conn)
	line, err := answer.ReadString('\n')
	if err == nil && line[0] == '$' && line != "$-1\r\n" {
		line, err = answer.ReadString('\n')
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.TrimPrefix(strings.TrimSpace(line), "+")
}
