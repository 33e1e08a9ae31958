package commands

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func claims(t *testing.T, text string) Claims {
	t.Helper()
	if text == "everything" {
		return Everything()
	}
	var c Claims
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return c
}

// Who may take which role in which room, change its settings from outside, before it is open and then, and see it in
// a list.
func TestRightsToRooms(t *testing.T) {
	const (
		two   = `{"rooms":[{"pattern":"team-*","roles":["guest","member"]},{"pattern":"team-1","roles":["host"]}]}`
		watch = `{"rooms":[{"pattern":"*","roles":["monitor"]}]}`
	)
	for _, c := range []struct {
		claims, room  string
		roles         string // that may be taken
		early, update bool
		watch         bool
	}{
		{`{}`, "a", "", false, false, false},
		{`{"rooms":[]}`, "a", "", false, false, false},
		{`{"admin":true}`, "a", "", false, false, true},
		{`{"settings":"write"}`, "a", "", false, false, false},
		{`{"rooms":[{"pattern":"a","roles":["host"]}]}`, "a", "host", true, true, true},
		{`{"rooms":[{"pattern":"a","roles":["host"]}]}`, "ab", "", false, false, false},
		{`{"rooms":[{"pattern":"a","roles":["host"]}]}`, "A", "", false, false, false},
		{`{"rooms":[{"pattern":"a","roles":["guest"]}]}`, "a", "guest", false, false, true},
		{`{"rooms":[{"pattern":"a","roles":[]}]}`, "a", "", false, false, false},
		{`{"rooms":[{"pattern":"a"}]}`, "a", "", false, false, false},
		{`{"rooms":[{"pattern":"","roles":["host"]}]}`, "a", "", false, false, false},
		{`{"rooms":[{"pattern":"a","roles":["owner"]}]}`, "a", "", false, false, true},
		{two, "team-1", "host guest member", true, true, true},
		{two, "team-2", "guest member", false, false, true},
		{two, "team", "", false, false, false},
		{watch, "anything", "monitor", false, false, true},
		{watch, "with/a slash", "monitor", false, false, true},
		{`{"rooms":[{"pattern":"r?","roles":["member"]}]}`, "r1", "member", false, false, true},
		{`{"rooms":[{"pattern":"r?","roles":["member"]}]}`, "r12", "", false, false, false},
		{`{"rooms":[{"pattern":"r?","roles":["member"]}]}`, "ré", "member", false, false, true},
		{`{"rooms":[{"pattern":"a\\*","roles":["member"]}]}`, "ab", "", false, false, false},
		{`{"rooms":[{"pattern":"a\\*","roles":["member"]}]}`, "a*", "member", false, false, true},
		{`{"rooms":[{"pattern":"*-*-x","roles":["member"]}]}`, "a-b-x", "member", false, false, true},
		{"everything", "a", "host guest member monitor", true, false, true},
	} {
		got := claims(t, c.claims)
		for _, role := range []Role{Host, Guest, Member, Monitor} {
			want := strings.Contains(" "+c.roles+" ", " "+string(role)+" ")
			if may := got.MayJoin(c.room, role); may != want {
				t.Errorf("%s: room %q may be joined as %s: %t, want %t", c.claims, c.room, role, may, want)
			}
		}
		if early, update := got.MayUpdate(c.room, false), got.MayUpdate(c.room, true); early != c.early || update != c.update {
			t.Errorf("%s: room %q may be updated before it is open: %t, and then: %t; want %t, %t", c.claims, c.room, early, update, c.early, c.update)
		}
		if may := got.MayWatch(c.room); may != c.watch {
			t.Errorf("%s: room %q may be watched: %t, want %t", c.claims, c.room, may, c.watch)
		}
	}
}

func TestRightsToChannels(t *testing.T) {
	for _, c := range []struct {
		claims, user, channel string
		subscribe, publish    bool
	}{
		{`{}`, "u", "user:u", true, false},
		{`{}`, "u", "user:v", false, false},
		{`{}`, "u", "news", false, false},
		{`{}`, "", "user:", true, false},
		{`{}`, "*", "user:v", false, false}, // a name is not a pattern
		{`{"admin":true}`, "u", "news", false, false},
		{`{"channels":{"subscribe":["news*"]}}`, "u", "news-1", true, false},
		{`{"channels":{"publish":["news*"]}}`, "u", "news-1", false, true},
		{`{"channels":{"publish":["user:*"]}}`, "u", "user:v", false, true},
		{`{"channels":{"subscribe":["*"]}}`, "u", "user:v", true, false},
		{"everything", "u", "news", true, true},
	} {
		got := claims(t, c.claims)
		if may := got.MaySubscribe(c.user, c.channel); may != c.subscribe {
			t.Errorf("%s: %s may subscribe to %s: %t, want %t", c.claims, c.user, c.channel, may, c.subscribe)
		}
		if may := got.MayPublish(c.channel); may != c.publish {
			t.Errorf("%s: %s may publish to %s: %t, want %t", c.claims, c.user, c.channel, may, c.publish)
		}
	}
}

func TestRightsToSettings(t *testing.T) {
	for _, c := range []struct {
		claims      string
		read, write bool
	}{
		{`{}`, false, false},
		{`{"settings":"read"}`, true, false},
		{`{"settings":"write"}`, true, true},
		{`{"settings":"everything"}`, false, false},
		{`{"admin":true}`, true, false},
		{`{"rooms":[{"pattern":"*","roles":["host"]}]}`, false, false},
		{"everything", true, true},
	} {
		got := claims(t, c.claims)
		if read, write := got.MayReadSettings(), got.MayWriteSettings(); read != c.read || write != c.write {
			t.Errorf("%s: settings may be read: %t, written: %t; want %t, %t", c.claims, read, write, c.read, c.write)
		}
	}
}

// That nobody trusts the client is no right that a token can grant.
func TestATokenCannotSayThatThereIsNone(t *testing.T) {
	if claims(t, `{"Untold":true,"untold":true}`).Untold {
		t.Error("a token made its server trust everybody")
	}
}

// Which events of a room each role may send under which policy.
func TestRightsToEmit(t *testing.T) {
	for _, c := range []struct {
		policy EmitPolicy
		roles  string // that may send "e"
	}{
		{nil, "host guest member"},
		{EmitPolicy{"other": {Host}}, "host guest member"},
		{EmitPolicy{"e": {Host}}, "host"},
		{EmitPolicy{"e": {Guest, Member}}, "guest member"},
		{EmitPolicy{"e": {Monitor}}, ""},
		{EmitPolicy{"e": {Monitor, Host}}, "host"},
		{EmitPolicy{"e": {}}, ""},
	} {
		for _, role := range []Role{Host, Guest, Member, Monitor} {
			h := newHistory()
			h.must(t, StartReplica{Instance: "r1", Incarnation: "I1", PreferredSlot: -1})
			h.must(t, ConnectPeer{User: "u", Peer: "p", Connection: "C1", Instance: "r1", NewSession: "s", NewPid: "pid", Graces: historyGraces})
			h.must(t, JoinRoom{User: "u", Peer: "p", Connection: "C1", Instance: "r1", Room: "R", Role: role, Claims: Everything()})
			_, err := Speak{User: "u", Peer: "p", Connection: "C1", Room: "R", Event: "e", Policy: c.policy}.Decide(h.state)
			if want := strings.Contains(" "+c.roles+" ", " "+string(role)+" "); (err == nil) != want {
				t.Errorf("with %v a %s may send it: %t (%v), want %t", c.policy, role, err == nil, err, want)
			}
		}
	}
}

// A pattern that would take for ever does not match, soon.
func TestPatternsAreBounded(t *testing.T) {
	pattern := strings.Repeat("*a", 60) + "b"
	room := strings.Repeat("a", MaxNameLength)
	c := claims(t, fmt.Sprintf(`{"rooms":[{"pattern":%q,"roles":["host"]}]}`, pattern))
	started := time.Now()
	if c.MayJoin(room, Host) {
		t.Error("it matches")
	}
	if took := time.Since(started); took > time.Second {
		t.Errorf("one comparison took %s", took)
	}
	if !c.MayJoin(strings.Repeat("a", 60)+"b", Host) {
		t.Error("a pattern of many stars does not match what it should")
	}
}
