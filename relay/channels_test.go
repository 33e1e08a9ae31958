package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/replica"
	"holdfast/store"
	"holdfast/store/redistest"
)

// come admits a client with its channels as the gateway does. pid and offset are what it shows.
func (n *testNode) come(peer, pid, offset string) *testClient {
	n.w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var plan *Plan
	if pid != "" {
		var err error
		if plan, err = n.relay.Channels().Prepare(ctx, pid, offset); err != nil {
			n.w.t.Fatal(err)
		}
		if plan == nil {
			pid = ""
		}
	}
	c := &testClient{
		n: n, requests: make(chan testRequest, 64), events: make(chan string, 64), replaced: make(chan bool, 1),
		session: &replica.Session{User: "u", Peer: peer, Connection: n.rep.NewConnection(), SID: ulid.Make().String(), PID: ulid.Make().String()},
	}
	c.session.Link = c
	if err := n.rep.Connect(ctx, c.session, pid, ulid.Make().String()); err != nil {
		n.w.t.Fatal(err)
	}
	if !c.session.Recovered {
		plan = nil
	}
	if err := n.relay.Channels().Open(ctx, c.session, plan, nil); err != nil {
		n.w.t.Fatal(err)
	}
	return c
}

// again is the client's return to a node with what it has seen.
func (c *testClient) again(n *testNode) *testClient {
	n.w.t.Helper()
	return n.come(c.session.Peer, c.session.PID, c.offset())
}

func (c *testClient) offset() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.got) == 0 {
		return c.last
	}
	return c.got[len(c.got)-1].Offset
}

// drop ends the connection, which may be half open: the server is told only if it is.
func (c *testClient) drop(told bool) {
	c.cut()
	if told {
		c.n.relay.Channels().Close(c.session)
		c.n.relay.Gone(c.session)
		c.n.rep.Disconnect(c.session, "test", false)
	}
}

func (c *testClient) subscribe(channel string) {
	c.n.w.t.Helper()
	if err := c.n.relay.Channels().Subscribe(c.n.w.t.Context(), c.session, channel); err != nil {
		c.n.w.t.Fatal(err)
	}
}

func (n *testNode) publish(channel string, bodies ...string) {
	n.w.t.Helper()
	done := make(chan error, len(bodies))
	for _, b := range bodies {
		n.relay.Channels().Publish(Publication{Channel: channel, Event: "e", Data: replica.Payload{JSON: []byte(b)}}, func(_ string, err error) { done <- err })
	}
	for range bodies {
		if err := <-done; err != nil {
			n.w.t.Fatal(err)
		}
	}
}

func (c *testClient) bodies() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []string
	for _, b := range c.got {
		list = append(list, string(slices.Concat(b.Args...)))
	}
	return strings.Join(list, " ")
}

func (c *testClient) gets(want string) {
	c.n.w.t.Helper()
	for end := time.Now().Add(8 * time.Second); c.bodies() != want; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			c.n.w.t.Fatalf("%s got %q, want %q", c.session.Peer, c.bodies(), want)
		}
	}
}

func (c *testClient) wantRecovered(want bool) *testClient {
	c.n.w.t.Helper()
	if c.session.Recovered != want {
		c.n.w.t.Fatalf("recovered is %v, want %v", c.session.Recovered, want)
	}
	return c
}

// setting is over what a world stands.
type setting struct {
	partitions int
	args       []string // of a real Redis; nil: embedded
}

func eachSetting(t *testing.T, test func(t *testing.T, in setting)) {
	for name, in := range map[string]setting{
		"partitions=1":          {1, nil},
		"partitions=4":          {4, nil},
		"redis, partitions=1":   {1, []string{"--appendonly", "no"}},
		"redis, partitions=4":   {4, []string{"--appendonly", "no"}},
		"cluster, partitions=4": {4, []string{"--cluster-enabled", "yes"}},
	} {
		t.Run(name, func(t *testing.T) { test(t, in) })
	}
}

func newWorldIn(t *testing.T, replicas int, in setting) *world {
	w := newWorldOf(t, 0, long)
	w.partitions = in.partitions
	if in.args != nil {
		w.server = redistest.Start(t, in.args...)
		w.url = w.server.URL
		if in.args[0] == "--cluster-enabled" {
			w.server.Do(t, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
			w.eventually("the cluster serves", func() bool {
				return strings.Contains(w.server.Do(t, "CLUSTER", "INFO"), "cluster_state:ok")
			})
		}
	}
	for i := range replicas {
		w.nodes = append(w.nodes, w.start(fmt.Sprintf("r%d", i+1)))
	}
	return w
}

func TestChannelsReachAllInOneOrder(t *testing.T) {
	eachSetting(t, func(t *testing.T, in setting) {
		w := newWorldIn(t, 2, in)
		a, b, other := w.nodes[0].come("a", "", ""), w.nodes[1].come("b", "", ""), w.nodes[1].come("o", "", "")
		a.subscribe("c:x")
		b.subscribe("c:x")
		other.subscribe("c:y")
		const n = 300
		for _, node := range w.nodes {
			go func() {
				for i := range n {
					node.relay.Channels().Publish(Publication{Channel: "c:x", Event: "e", Data: replica.Payload{JSON: fmt.Appendf(nil, "%s-%d", node.name, i)}}, func(string, error) {})
				}
			}()
		}
		count := func(c *testClient) int { return len(strings.Fields(c.bodies())) }
		w.eventually("all messages at both", func() bool { return count(a) == 2*n && count(b) == 2*n })
		if a.bodies() != b.bodies() {
			t.Fatal("the order differs")
		}
		if count(other) != 0 {
			t.Fatal("a message went to who has not the channel")
		}
		if err := a.n.relay.Channels().Unsubscribe(t.Context(), a.session, "c:x"); err != nil {
			t.Fatal(err)
		}
		w.nodes[0].publish("c:x", "last")
		w.eventually("the last one at b", func() bool { return count(b) == 2*n+1 })
		if count(a) != 2*n {
			t.Fatal("a message came after the channel was given up")
		}
		w.nodes[0].publish("c:user:u", "mine")
		w.eventually("the user's channel", func() bool { return count(a) == 2*n+1 && count(other) == 1 })
		w.eventually("interest ends with the last subscriber", func() bool {
			w.nodes[0].relay.Channels().mu.RLock()
			defer w.nodes[0].relay.Channels().mu.RUnlock()
			return w.nodes[0].relay.Channels().topics["c:x"] == nil
		})
	})
}

func TestRecoveryGivesWhatWasMissed(t *testing.T) {
	eachSetting(t, func(t *testing.T, in setting) {
		w := newWorldIn(t, 2, in)
		n1, n2 := w.nodes[0], w.nodes[1]
		pub := func(bodies ...string) {
			for _, b := range bodies {
				n2.publish("c:"+b[:1], b)
			}
		}
		a := n1.come("a", "", "")
		a.subscribe("c:x")
		a.subscribe("c:y")
		a.drop(true)
		pub("x1", "y1")
		// Before it ever received anything, and on another replica.
		a = a.again(n2).wantRecovered(true)
		want := "x1 y1"
		if in.partitions > 1 {
			w.eventually("both", func() bool { return len(strings.Fields(a.bodies())) == 2 })
		} else {
			a.gets(want)
		}
		// A second time, half open: nobody was told of the end.
		a.drop(false)
		pub("x2", "x3")
		a = a.again(n1).wantRecovered(true)
		a.gets("x2 x3")
		pub("x4")
		a.gets("x2 x3 x4")
		// A third time, without having missed anything; then what comes goes on.
		a.drop(true)
		b := a.again(n2).wantRecovered(true)
		pub("y2")
		b.gets("y2")
		// An attempt that fails destroys nothing.
		b.drop(true)
		pub("x5")
		plan, err := n1.relay.Channels().Prepare(t.Context(), b.session.PID, b.offset())
		if err != nil || plan == nil {
			t.Fatal(plan, err)
		}
		b.again(n1).wantRecovered(true).gets("x5")
	})
}

func TestKilledReplicasClientsRecover(t *testing.T) {
	eachSetting(t, func(t *testing.T, in setting) {
		w := newWorldIn(t, 2, in)
		a := w.nodes[0].come("a", "", "")
		a.subscribe("c:x")
		w.nodes[1].publish("c:x", "1")
		a.gets("1")
		w.nodes[0].kill()
		a.cut()
		w.nodes[1].publish("c:x", "2", "3")
		a = a.again(w.nodes[1]).wantRecovered(true)
		a.gets("2 3")
		w.nodes[1].publish("c:x", "4")
		a.gets("2 3 4")
	})
}

func TestOffsetsThatAreNotOurs(t *testing.T) {
	w := newWorld(t, 1)
	n := w.nodes[0]
	a := n.come("a", "", "")
	a.subscribe("c:x")
	a.drop(true)
	a.last = "some app's text"
	a = a.again(n).wantRecovered(true) // nothing was there to miss
	n.publish("c:x", "1")
	a.gets("1")
	a.drop(true)
	b := n.come("a", a.session.PID, "some app's text").wantRecovered(false) // it may have got the message, or not
	b.gets("")
	b.subscribe("c:x")
	b.drop(true)
	n.publish("c:x", "2")
	// The offset of an epoch that is no more: it got nothing in this one.
	c := n.come("a", b.session.PID, n.relay.Channels().offset(cursor{{Epoch: "0badcafe", Seq: 77}})).wantRecovered(true)
	c.gets("2")
	// Further than the store has ever been.
	c.drop(true)
	at, _ := n.relay.Channels().place(c.offset())
	at[0].Seq += 10
	n.come("a", c.session.PID, n.relay.Channels().offset(at)).wantRecovered(false)
}

func TestExceededHistoryIsNoticed(t *testing.T) {
	w := newWorldOf(t, 0, long)
	w.channels = ChannelConfig{History: 10}
	n := w.start("r1")
	a, b := n.come("a", "", ""), n.come("b", "", "")
	a.subscribe("c:x")
	b.subscribe("c:x")
	a.drop(true)
	b.drop(true)
	for i := range 10 {
		n.publish("c:x", fmt.Sprint(i))
	}
	a = a.again(n).wantRecovered(true)
	a.gets("0 1 2 3 4 5 6 7 8 9")
	for i := range 20 {
		n.publish("c:x", fmt.Sprint(i))
	}
	b.again(n).wantRecovered(false).gets("")
}

func TestEmptiedStoreBeginsAnew(t *testing.T) {
	eachSetting(t, func(t *testing.T, in setting) {
		w := newWorldIn(t, 2, in)
		a, idle := w.nodes[0].come("a", "", ""), w.nodes[0].come("idle", "", "")
		a.subscribe("c:x")
		w.nodes[1].publish("c:x", "1")
		a.gets("1")
		w.flush()
		w.eventually("the client with a channel is sent away", func() bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.gone
		})
		a.drop(true)
		a = a.again(w.nodes[1]).wantRecovered(false)
		a.subscribe("c:x")
		w.nodes[0].publish("c:x", "2")
		a.gets("2")
		w.nodes[1].publish("c:user:u", "3")
		idle.gets("3")
		idle.mu.Lock()
		gone := idle.gone
		idle.mu.Unlock()
		if gone {
			t.Fatal("a client without channels was sent away")
		}
		idle.drop(true)
		w.nodes[1].publish("c:user:u", "4")
		idle.again(w.nodes[1]).wantRecovered(true).gets("4")
	})
}

func TestVanishedInboxIsRepaired(t *testing.T) {
	eachSetting(t, func(t *testing.T, in setting) {
		w := newWorldIn(t, 2, in)
		a := w.nodes[0].come("a", "", "")
		a.subscribe("c:x")
		w.nodes[1].publish("c:x", "1")
		a.gets("1")
		box, _, _ := w.nodes[0].rep.Self()
		box.Partition = store.PartitionOf("c:x", in.partitions)
		if err := w.nodes[1].st.DropInbox(t.Context(), box); err != nil {
			t.Fatal(err)
		}
		w.nodes[1].publish("c:x", "2", "3")
		a.gets("1 2 3")
		w.nodes[1].publish("c:x", "4")
		a.gets("1 2 3 4")
	})
}

func TestRoomMessagesForSome(t *testing.T) {
	w := newWorldOf(t, 0, long)
	w.channels = ChannelConfig{For: func(s *replica.Session, room, to string) bool { return room == "r" && (to == "" || s.Peer == to) }}
	n := w.start("r1")
	a, b := n.come("a", "", ""), n.come("b", "", "")
	a.subscribe("r:r")
	b.subscribe("r:r")
	send := func(to, body string) {
		done := make(chan error, 1)
		n.relay.Channels().Publish(Publication{Channel: "r:r", Event: "e", To: to, Data: replica.Payload{JSON: []byte(body)}}, func(_ string, err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	send("a", "1")
	send("", "2")
	send("b", "3")
	a.gets("1 2")
	b.gets("2 3")
	a.drop(true)
	send("b", "4")
	send("a", "5")
	a.again(n).wantRecovered(true).gets("5")
}

// The store comes back without its last messages, and has given their numbers to others before any replica speaks.
func TestRolledBackStoreIsNoticed(t *testing.T) {
	for _, fill := range []int{1, 2, 9} { // fewer, as many and more messages than were lost
		for _, returns := range []bool{true, false} {
			t.Run(fmt.Sprintf("fill=%d, returns=%v", fill, returns), func(t *testing.T) { rollBack(t, fill, returns) })
		}
	}
}

// rollBack has a client return to another replica than its own before that speaks with the store again, or not.
func rollBack(t *testing.T, fill int, returns bool) {
	w := newWorldOf(t, 0, long)
	w.server = redistest.Start(t)
	proxy := redistest.NewProxy(t, w.server)
	w.url = proxy.URL
	n := w.start("r1")
	a, quiet := n.come("a", "", ""), n.come("quiet", "", "")
	a.subscribe("c:x")
	quiet.subscribe("c:y")
	away := n.come("away", "", "")
	away.subscribe("c:x")
	away.drop(true)
	n.publish("c:x", "1")
	a.gets("1")
	w.server.Do(t, "SAVE")
	n.publish("c:x", "2", "3")
	a.gets("1 2 3")
	seen := a.offset()
	proxy.Cut(true)
	w.server.Kill(t)
	w.server.Restart(t)
	w.url = w.server.URL
	raw := w.open()
	defer raw.Close()
	for i := range fill {
		msg := message{Channel: "c:x", Event: "e", Data: replica.Payload{JSON: fmt.Append(nil, "new", i)}}
		if _, err := raw.Publish(t.Context(), 0, store.Known{}, n.relay.Channels().keep, []store.Publication{{Channel: "c:x", Body: msg.encode()}}); err != nil {
			t.Fatal(err)
		}
	}
	// Another replica, which knows nothing of all this.
	other := w.start("r2")
	if returns {
		plan, err := other.relay.Channels().Prepare(t.Context(), a.session.PID, seen)
		if err != nil || plan != nil {
			t.Fatalf("a session could be recovered with a gap: %+v %v", plan, err)
		}
	}
	proxy.Cut(false)
	w.eventually("the clients are sent away", func() bool { return a.left() && quiet.left() })
	if got := a.bodies(); got != "1 2 3" {
		t.Fatalf("got %q, which has a gap", got)
	}
	a.drop(true)
	a = a.again(n).wantRecovered(false)
	a.subscribe("c:x")
	other.publish("c:x", "last")
	a.gets("last")
}

func (c *testClient) left() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}
