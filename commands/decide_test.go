package commands

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
	"holdfast/projections"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the then-parts of the scripts in testdata with what is decided now")

// The scripts read as
//
//	== what the scenario shows
//	given +0s peer-connected {"user":"u",…}
//	when +5s register-method {"method":"m",…}
//	then method-registered {…}
//	reads peer:u/p method:u/m
//
// or, in place of then and reads: "then nothing", "then refused CODE text". " (in doubt)" after nothing or the
// code means that a replica catches up with the log before it trusts the answer; "now {…}" is what a client is told
// with a refusal. Times count from the start of the scenario; graces are 10 s, 2 min for recovery, 5 s for a room and a
// day for one that nobody has joined. Without Claims everything is granted, as by a server that trusts everybody.
func TestDecisions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

var scriptGraces = Graces{
	Peer: 10 * time.Second, RPC: 10 * time.Second, Recovery: 2 * time.Minute, Room: 5 * time.Second, Unused: 24 * time.Hour,
}

const scriptStart = 1_700_000_000_000

var commandTypes = map[string]func() Command{
	"start-replica":     func() Command { return &StartReplica{PreferredSlot: -1} },
	"stop-replica":      func() Command { return &StopReplica{} },
	"lose-replica":      func() Command { return &LoseReplica{} },
	"connect-peer":      func() Command { return &ConnectPeer{} },
	"reassert-peer":     func() Command { return &ReassertPeer{} },
	"disconnect-peer":   func() Command { return &DisconnectPeer{} },
	"expire-peer":       func() Command { return &ExpirePeer{} },
	"register-method":   func() Command { return &RegisterMethod{} },
	"unregister-method": func() Command { return &UnregisterMethod{} },
	"drain-replica":     func() Command { return &DrainReplica{} },
	"join-room":         func() Command { return &JoinRoom{Instance: "r1", Claims: Everything()} },
	"leave-room":        func() Command { return &LeaveRoom{} },
	"close-room":        func() Command { return &CloseRoom{} },
	"restore-room":      func() Command { return &RestoreRoom{} },
	"expire-room":       func() Command { return &ExpireRoom{} },
	"update-room":       func() Command { return &UpdateRoom{Claims: Everything()} },
	"update-guest":      func() Command { return &UpdateGuest{} },
	"speak":             func() Command { return &Speak{Policy: EmitPolicy{"ambient-noise-alert": {Host}}} },
	"set-setting":       func() Command { return &SetSetting{Claims: Everything()} },
}

type scenario struct {
	title string
	given []string
	when  string
	then  []string
	lines []string // all but then and reads, as they stand
}

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, sc := range parseScript(t, text) {
		got := decide(t, sc)
		for _, l := range sc.lines {
			fmt.Fprintln(&out, l)
		}
		for _, l := range got {
			fmt.Fprintln(&out, l)
		}
		fmt.Fprintln(&out)
		if *rewrite {
			continue
		}
		t.Run(sc.title, func(t *testing.T) {
			if want, have := strings.Join(sc.then, "\n"), strings.Join(got, "\n"); want != have {
				t.Errorf("want\n%s\ndecided\n%s", want, have)
			}
		})
	}
	if *rewrite {
		if err := os.WriteFile(file, append(bytes.TrimRight(out.Bytes(), "\n"), '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func parseScript(t *testing.T, text []byte) []scenario {
	var all []scenario
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		word, rest, _ := strings.Cut(line, " ")
		if word == "==" {
			all = append(all, scenario{title: rest})
		}
		if line == "" {
			continue
		}
		if len(all) == 0 {
			t.Fatalf("a script begins with ==, not %q", line)
		}
		sc := &all[len(all)-1]
		switch word {
		case "==", "#":
		case "given":
			sc.given = append(sc.given, rest)
		case "when":
			sc.when = rest
		case "then", "reads", "now":
			sc.then = append(sc.then, line)
			continue
		default:
			t.Fatalf("%q: unknown word %q", line, word)
		}
		sc.lines = append(sc.lines, line)
	}
	return all
}

func decide(t *testing.T, sc scenario) []string {
	t.Helper()
	s := projections.New()
	var token ulid.ULID
	for i, g := range sc.given {
		after, name, data := parseStep(t, g)
		e, err := events.Decode(events.Encoded{Type: name, Schema: events.Schema(name), Data: data})
		if err != nil {
			t.Fatalf("%s: %v", g, err)
		}
		rec := events.Record{
			Position: events.Position{Ms: uint64(scriptStart + after.Milliseconds()), Seq: uint64(i)},
			Token:    ulid.ULID{15: byte(i + 1)}, Previous: token, Event: e,
		}
		token = rec.Token
		s.Apply(rec)
	}
	after, name, data := parseStep(t, sc.when)
	newCommand, ok := commandTypes[name]
	if !ok {
		t.Fatalf("%s: unknown command", name)
	}
	c := newCommand()
	v := reflect.ValueOf(c).Elem()
	var told struct{ Claims json.RawMessage }
	if err := json.Unmarshal(data, &told); err == nil && told.Claims != nil {
		v.FieldByName("Claims").SetZero() // these and no others
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(c); err != nil {
		t.Fatalf("%s: %v", sc.when, err)
	}
	if f := v.FieldByName("Now"); f.IsValid() {
		f.Set(reflect.ValueOf(time.UnixMilli(scriptStart + after.Milliseconds()).UTC()))
	}
	if f := v.FieldByName("Graces"); f.IsValid() && f.IsZero() {
		f.Set(reflect.ValueOf(scriptGraces))
	}
	d, err := c.Decide(s)
	inDoubt := func(yes bool) string {
		if yes {
			return " (in doubt)"
		}
		return ""
	}
	var refusal *Refusal
	if errors.As(err, &refusal) {
		lines := []string{fmt.Sprintf("then refused %s%s %s", refusal.Code, inDoubt(refusal.Doubt), refusal.Text)}
		if refusal.Now != nil {
			now, err := json.Marshal(refusal.Now)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, fmt.Sprintf("now %s", now))
		}
		return lines
	}
	if err != nil {
		t.Fatalf("%s: %v is not a Refusal", sc.when, err)
	}
	if len(d.Events) == 0 {
		return []string{"then nothing" + inDoubt(d.Doubt)}
	}
	var lines []string
	for _, e := range d.Events {
		enc, err := events.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("then %s %s%s", enc.Type, enc.Data, inDoubt(d.Doubt)))
	}
	reads := "reads"
	for _, a := range d.Reads {
		reads += " " + string(a)
	}
	return append(lines, reads)
}

func parseStep(t *testing.T, s string) (after time.Duration, name string, data []byte) {
	t.Helper()
	parts := strings.SplitN(s, " ", 3)
	if len(parts) != 3 {
		t.Fatalf("%q: want +time name {json}", s)
	}
	after, err := time.ParseDuration(strings.TrimPrefix(parts[0], "+"))
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return after, parts[1], []byte(parts[2])
}
