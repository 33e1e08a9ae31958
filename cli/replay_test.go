package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/oklog/ulid/v2"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
)

var writeGolden = flag.Bool("write-golden", false, "write the expected output of replay anew")

const historyStart = 1767323045000 // 2026-01-02T03:04:05Z

// historyID is a ULID that tells its number.
func historyID(kind byte, n int) ulid.ULID {
	id := ulid.ULID{6: kind, 15: byte(n)}
	_ = id.SetTime(historyStart)
	return id
}

// step is one event of a history.
type step struct {
	seconds int // since the last one
	replica string
	event   events.Event
}

// history is a daemon that survives its replica, and a client with odd names.
func history(t testing.TB) []store.Entry {
	t.Helper()
	return historyOf(t, storySteps())
}

func storySteps() []step {
	incarnation := func(n int) string { return historyID('I', n).String() }
	connection := func(n int) string { return historyID('C', n).String() }
	odd, phone := "a/b", "phone 1"
	return []step{
		{0, "r1", events.ReplicaStarted{Instance: "r1", Incarnation: incarnation(1), URL: "http://r1:8080", Slot: 0, Understands: 1}},
		{0, "r2", events.ReplicaStarted{Instance: "r2", Incarnation: incarnation(2), URL: "http://r2:8080", Slot: 1, Understands: 1}},
		{5, "r1", events.PeerConnected{User: "me", Peer: "daemon", Connection: connection(1), Instance: "r1", Session: "s1", Recovery: "pid1"}},
		{0, "r1", events.MethodRegistered{User: "me", Method: "greet", Peer: "daemon", Session: "s1", Connection: connection(1), Delivery: events.DeliverAgain}},
		{1, "r2", events.PeerConnected{User: odd, Peer: phone, Connection: connection(2), Instance: "r2", Session: "s2", Recovery: "pid2", Anonymous: true}},
		{0, "r2", events.MethodRegistered{User: odd, Method: "ring", Peer: phone, Session: "s2", Connection: connection(2), Delivery: events.DeliverOnce}},
		{10, "r2", events.PeerDisconnected{User: odd, Peer: phone, Connection: connection(2), Reason: "transport-close"}},
		{6, "r2", events.ReplicaLost{Instance: "r1", Incarnation: incarnation(1), SilentMs: 4000, Reason: "lease"}},
		{6, "r2", events.PeerGone{User: "me", Peer: "daemon", Connection: connection(1)}},
		{4, "r2", events.PeerConnected{User: "me", Peer: "daemon", Connection: connection(3), Instance: "r2", Session: "s1", Recovery: "pid1", Recovered: true}},
		{60, "r2", events.PeerForgotten{User: odd, Peer: phone, Connection: connection(2), Methods: []string{"ring"}}},
		{10, "r2", events.MethodUnregistered{User: "me", Method: "greet", Peer: "daemon", Session: "s1", Reason: "client"}},
	}
}

// roomHistory goes on with a room whose owner is lost while its host moves in.
func roomHistory(t testing.TB) []store.Entry {
	t.Helper()
	incarnation := func(n int) string { return historyID('I', n).String() }
	connection := func(n int) string { return historyID('C', n).String() }
	join := events.RoomJoined{Room: "lobby", User: "me", Peer: "daemon", Connection: connection(3), Session: "s1", Role: events.Monitor}
	host := join
	host.Was, host.Role, host.Name, host.Meta = events.Monitor, events.Host, "The host", json.RawMessage(`{"seat":1}`)
	return historyOf(t, append(storySteps(),
		step{10, "r2", events.RoomSettingsChanged{Room: "lobby", User: "me", Peer: "daemon", Patch: json.RawMessage(`{"isTest":true}`)}},
		step{1, "r1", events.ReplicaStarted{Instance: "r1", Incarnation: incarnation(3), URL: "http://r1:8080", Slot: 2, Understands: 3}},
		step{1, "r1", events.RoomOpened{Room: "lobby", Instance: "r1"}},
		step{0, "r1", join},
		step{1, "r2", host},
		step{1, "r2", events.RoomOpened{Room: "attic", Instance: "r2"}},
		step{1, "r2", events.RoomGuestChanged{Room: "lobby", User: "me", Peer: "daemon", Patch: json.RawMessage(`{"muted":true}`)}},
		step{5, "r2", events.ReplicaLost{Instance: "r1", Incarnation: incarnation(3), SilentMs: 4000, Reason: "lease"}},
		step{1, "r2", events.SettingChanged{Key: "noise", Value: json.RawMessage(`true`), User: "me", Peer: "daemon"}},
		step{1, "r2", events.RoomMoved{RoomJoined: events.RoomJoined{
			Room: "attic", User: "me", Peer: "daemon", Connection: connection(3), Session: "s1", Role: events.Guest,
		}, From: "lobby", FromRole: events.Host}},
		step{5, "r2", events.RoomClosed{Room: "lobby", Reason: "empty"}},
	))
}

func historyOf(t testing.TB, steps []step) []store.Entry {
	t.Helper()
	var entries []store.Entry
	for i, step := range steps {
		encoded, err := events.Encode(step.event)
		if err != nil {
			t.Fatal(err)
		}
		e := store.Entry{
			Token: historyID('T', i+1), Cause: historyID('D', i+1), Replica: step.replica,
			Type: encoded.Type, Schema: encoded.Schema, Data: encoded.Data,
		}
		if i == 0 {
			e.Position = events.Position{Ms: historyStart}
		} else {
			e.Previous = entries[i-1].Token
			e.Position = entries[i-1].Position.Next()
			if step.seconds > 0 {
				e.Position = events.Position{Ms: e.Position.Ms + uint64(step.seconds)*1000}
			}
		}
		e.Touches = touchesOf(e)
		entries = append(entries, e)
	}
	return entries
}

// newerEntry is of a version of the program to come.
func newerEntry(after store.Entry) store.Entry {
	return store.Entry{
		Position: events.Position{Ms: after.Position.Ms + 1000}, Token: historyID('T', 99), Previous: after.Token,
		Cause: historyID('D', 99), Replica: "r3", Touches: "room:lobby", Type: "room-praised", Schema: 1,
		Data: []byte(`{"room":"lobby","user":"me","limits":{"members":7}}`),
	}
}

// sliceOf writes entries that follow a state into a file, exported 10 s after the last of them.
func sliceOf(t testing.TB, base *projections.State, entries []store.Entry) string {
	t.Helper()
	var b bytes.Buffer
	last := entries[len(entries)-1].Position
	w, err := newSliceWriter(&b, sliceHeader{
		Exported: last.Time().Add(10 * time.Second), After: base.Position, State: base.Encode(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := w.add(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.end(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "log.slice")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func foldOf(t testing.TB, entries []store.Entry) *projections.State {
	t.Helper()
	f := folding{state: projections.New()}
	for _, e := range entries {
		if err := f.apply(e); err != nil {
			t.Fatal(err)
		}
	}
	return f.state
}

// replay runs the command, which must succeed.
func replay(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := run(t, append([]string{"replay"}, args...)...)
	if code != 0 {
		t.Fatalf("replay %v: code %d: %s", args, code, stderr)
	}
	return stdout
}

// positions are those of the entries that the command prints.
func positions(t *testing.T, args ...string) []events.Position {
	t.Helper()
	all := []events.Position{}
	for line := range strings.Lines(replay(t, append(args, "--format", "json")...)) {
		var e storedEntry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, e.Position)
	}
	return all
}

func TestReplayOutput(t *testing.T) {
	entries := history(t)
	file := sliceOf(t, projections.New(), append(slices.Clone(entries), newerEntry(entries[11])))
	rooms := roomHistory(t)
	roomFile := sliceOf(t, projections.New(), rooms)
	for name, args := range map[string][]string{
		"rooms-list.txt": {roomFile, "--room", "lobby"},
		"rooms-at.txt":   {roomFile, "--at", rooms[len(rooms)-3].Position.String()},
		"rooms-at.json":  {roomFile, "--at", rooms[len(rooms)-3].Position.String(), "--format", "json"},
		"rooms-diff.txt": {roomFile, "--diff", rooms[12].Position.String(), rooms[len(rooms)-1].Position.String()},
		"why-room.txt":   {roomFile, "--why", "room:lobby"},
		"list.txt":       nil,
		"list.json":      {"--format", "json", "--type", "method-registered", "--type", "room-praised"},
		"at.txt":         {"--at", "2026-01-02T03:04:40Z"},
		"at.json":        {"--at", entries[6].Position.String(), "--format", "json"},
		"at-filter.txt":  {"--at", entries[6].Position.String(), "--user", "me"},
		"diff.txt":       {"--diff", entries[6].Position.String(), entries[10].Position.String()},
		"diff.json":      {"--diff", entries[6].Position.String(), entries[7].Position.String(), "--format", "json"},
		"why-method.txt": {"--why", "method:me/greet", "--to", entries[11].Position.String()},
		"why-peer.txt":   {"--why", "peer:a%2Fb/phone 1", "--to", entries[11].Position.String()},
		"why-lost.txt":   {"--why", "replica:r1", "--to", entries[11].Position.String()},
		"why-lost.json":  {"--why", "incarnation:r1", "--from", "2026-01-02T03:04:20Z", "--to", entries[11].Position.String(), "--format", "json"},
		"nothing.txt":    {"--why", "peer:nobody/x", "--to", entries[11].Position.String()},
	} {
		if len(args) == 0 || args[0] != roomFile {
			args = append([]string{file}, args...)
		}
		got := replay(t, args...)
		golden := filepath.Join("testdata", "replay", name)
		if *writeGolden {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Errorf("%v (go test ./cli -write-golden)", err)
			continue
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestReplayFilters(t *testing.T) {
	entries := history(t)
	file := sliceOf(t, projections.New(), entries)
	at := func(n int) string { return entries[n-1].Position.String() }
	for _, c := range []struct {
		args []string
		want []int // numbers of entries
	}{
		{nil, []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
		{[]string{"--peer", "daemon"}, []int{3, 4, 9, 10, 12}},
		{[]string{"--peer", "me/daemon"}, []int{3, 4, 9, 10, 12}},
		{[]string{"--peer", "you/daemon"}, nil},
		{[]string{"--peer", "a%2Fb/phone 1"}, []int{5, 6, 7, 11}},
		{[]string{"--peer", "daemon", "--peer", "phone 1", "--type", "peer-connected"}, []int{3, 5, 10}},
		{[]string{"--user", "a/b"}, []int{5, 6, 7, 11}},
		{[]string{"--method", "ring"}, []int{6, 11}},
		{[]string{"--method", "me/greet", "--type", "method-unregistered"}, []int{12}},
		{[]string{"--replica", "r1"}, []int{1, 3, 4, 8}},
		{[]string{"--from", at(4), "--to", at(6)}, []int{4, 5, 6}},
		{[]string{"--from", "2026-01-02T03:04:10Z", "--to", "2026-01-02T04:04:11+01:00"}, []int{3, 4, 5, 6}},
		{[]string{"--from", "-19s"}, []int{12}},
		{[]string{"--from", "-80s", "--to", "-80s"}, []int{10}},
		{[]string{"--to=-1m31s"}, []int{1, 2, 3, 4, 5, 6, 7}},
	} {
		want := []events.Position{}
		for _, n := range c.want {
			want = append(want, entries[n-1].Position)
		}
		if diff := cmp.Diff(want, positions(t, append([]string{file}, c.args...)...)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.args, diff)
		}
	}
}

// What was true at any position is the fold of the entries up to there, and no more.
func TestTimeTravelIsAFoldUpToThere(t *testing.T) {
	entries := history(t)
	file := sliceOf(t, projections.New(), entries)
	later := sliceOf(t, foldOf(t, entries[:5]), entries[5:])
	for n := 1; n <= len(entries); n++ {
		want, err := json.Marshal(viewState(foldOf(t, entries[:n]), filter{}))
		if err != nil {
			t.Fatal(err)
		}
		at := entries[n-1].Position.String()
		for name, args := range map[string][]string{
			"--at": {file, "--at", at}, "--state --to": {file, "--state", "--to", at}, "after a state": {later, "--at", at},
		} {
			if name == "after a state" && n < 5 {
				if code, _, stderr := run(t, "replay", later, "--at", at); code != 1 || !strings.Contains(stderr, "begins after") {
					t.Errorf("before the slice: code %d, %q", code, stderr)
				}
				continue
			}
			if got := replay(t, append(args, "--format", "json")...); strings.TrimSpace(got) != string(want) {
				t.Errorf("%s at %s:\n%s\nwant\n%s", name, at, got, want)
			}
		}
	}
}

func TestUnknownEventsAreShownAndNotFolded(t *testing.T) {
	entries := history(t)
	newer := newerEntry(entries[11])
	damaged := store.Entry{
		Position: events.Position{Ms: newer.Position.Ms + 1}, Type: "peer-gone", Data: []byte("\x1b[2Jboo"),
		Damage: fmt.Errorf("%w: a field is missing", store.ErrDamaged),
	}
	file := sliceOf(t, projections.New(), append(slices.Clone(entries), newer, damaged))
	list := replay(t, file)
	for _, want := range []string{"room-praised", "room:lobby", `limits={"members":7}`, "not known to this version", "a field is missing"} {
		if !strings.Contains(list, want) {
			t.Errorf("the list lacks %q:\n%s", want, list)
		}
	}
	if strings.Contains(list, "\x1b") {
		t.Error("the list brings control characters of the log to the terminal")
	}
	if got := positions(t, file, "--user", "me", "--type", "room-praised"); len(got) != 1 || got[0] != newer.Position {
		t.Errorf("a filter finds %v", got)
	}
	for _, args := range [][]string{{"--state"}, {"--at", "-0s"}, {"--diff", "-1h", "-0s"}, {"--why", "peer:me/daemon"}} {
		code, _, stderr := run(t, append([]string{"replay", file}, args...)...)
		if code != 1 || !strings.Contains(stderr, newer.Position.String()) || !strings.Contains(stderr, "room-praised") {
			t.Errorf("%v: code %d, %q", args, code, stderr)
		}
	}
	replay(t, file, "--state", "--to", entries[11].Position.String())
}

// A list shows what is there; what it adds up to is not known past a hole.
func TestAHoleInTheLogIsNoticed(t *testing.T) {
	entries := history(t)
	file := sliceOf(t, projections.New(), slices.Delete(slices.Clone(entries), 4, 5))
	code, _, stderr := run(t, "replay", file)
	if code != 0 || !strings.Contains(stderr, entries[5].Position.String()) || !strings.Contains(stderr, "chain is broken") {
		t.Errorf("list: code %d, %q", code, stderr)
	}
	if code, _, stderr := run(t, "replay", file, "--state"); code != 1 || !strings.Contains(stderr, "chain is broken") {
		t.Errorf("--state: code %d, %q", code, stderr)
	}
	if code, _, stderr := run(t, "replay", file, "--export", file+".2"); code != 1 || !strings.Contains(stderr, "chain is broken") {
		t.Errorf("--export: code %d, %q", code, stderr)
	}
	left, _ := filepath.Glob(file + ".*")
	if len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

func TestReplayChecksItsCommandLine(t *testing.T) {
	file := sliceOf(t, projections.New(), history(t))
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "HOLDFAST_REDIS"},
		{[]string{"--redis", "http://x"}, "--redis"},
		{[]string{"--redis", "redis://x", "--namespace", "a:b"}, "--namespace"},
		{[]string{file + ".not"}, file},
		{[]string{file, "--from", "yesterday"}, "--from"},
		{[]string{file, "--from"}, "--from"},
		{[]string{file, "--from", "-0s", "--to", "-1h"}, "--to is before --from"},
		{[]string{file, "--diff", "-1h"}, "--diff"},
		{[]string{file, "--diff", "-0s", "-1h"}, "--diff"},
		{[]string{file, "--diff", "-1h", "-0s", "--to", "-1m"}, "--to"},
		{[]string{file, "--why", "daemon"}, "peer:USER/PEER"},
		{[]string{file, "--why", "aisle:x"}, "peer:USER/PEER"},
		{[]string{file, "--why", "peer:a/b", "--user", "a"}, "filters"},
		{[]string{file, "--state", "--why", "peer:a/b"}, "exclude"},
		{[]string{file, "--state", "--from", "-1h"}, "--from"},
		{[]string{file, "--at", "-1h", "--to", "-1h"}, "--at"},
		{[]string{file, "--state", "--type", "peer-gone"}, "--type"},
		{[]string{file, "--follow"}, "--follow"},
		{[]string{file, "--redact"}, "--export"},
		{[]string{file, "--export", file}, "exists"},
		{[]string{file, "--format", "xml"}, "--format"},
	} {
		code, _, stderr := run(t, append([]string{"replay"}, c.args...)...)
		if code != 2 || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: code %d, %q, want 2 and %q", c.args, code, stderr, c.want)
		}
	}
}

func TestColoursAreForTerminalsOnly(t *testing.T) {
	if coloured(&bytes.Buffer{}) {
		t.Error("colours into a pipe")
	}
	device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if !coloured(device) {
		t.Error("no colours on a device")
	}
	t.Setenv("NO_COLOR", "1")
	if coloured(device) {
		t.Error("NO_COLOR is not respected")
	}
	var b bytes.Buffer
	printer := entryPrinter{w: &b, paint: true}
	_ = printer.print(history(t)[7])
	if !strings.Contains(b.String(), "\x1b["+red+"mreplica-lost") {
		t.Errorf("%q has no colour", b.String())
	}
}

func TestMoments(t *testing.T) {
	now := time.UnixMilli(10_000_000).UTC()
	for text, want := range map[string][2]events.Position{
		"5-3":                  {{Ms: 5, Seq: 3}, {Ms: 5, Seq: 3}},
		"-1h":                  {{Ms: 6_400_000}, {Ms: 6_400_000, Seq: store.Last.Seq}},
		"-1000h":               {{}, {Seq: store.Last.Seq}},
		"1970-01-01T00:00:01Z": {{Ms: 1000}, {Ms: 1000, Seq: store.Last.Seq}},
	} {
		m, err := parseMoment(text)
		if err != nil || m.first(now) != want[0] || m.last(now) != want[1] {
			t.Errorf("%s: %v to %v, %v", text, m.first(now), m.last(now), err)
		}
	}
	for _, bad := range []string{"", "-", "1h", "--1h", "2026-01-02", "5-", "now", "1900-01-01T00:00:00Z"} {
		if m, err := parseMoment(bad); err == nil {
			t.Errorf("%q is taken for %+v", bad, m)
		}
	}
	for d, want := range map[time.Duration]string{
		5 * time.Millisecond: "5ms", 1500 * time.Millisecond: "1.5s", 61 * time.Second: "1m01s",
		25 * time.Hour: "1d01h", 90 * time.Minute: "1h30m", -time.Second: "-1.0s",
	} {
		if got := age(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestSlicesThatAreNotWholeAreRefused(t *testing.T) {
	file := sliceOf(t, projections.New(), history(t))
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openSlice(file); !errors.Is(err, errSlice) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for n := range len(whole) {
		refused(fmt.Sprintf("cut at %d of %d", n, len(whole)), whole[:n])
	}
	refused("with a byte more", append(slices.Clone(whole), 'x'))
	refused("of another version", bytes.Replace(whole, []byte("slice 1\n"), []byte("slice 2\n"), 1))
	begin := bytes.IndexByte(whole, '\n') + 1
	for n := begin + 10; n < len(whole); n += 7 { // gzip's own header has bytes that mean nothing
		other := slices.Clone(whole)
		other[n] ^= 0x10
		refused(fmt.Sprintf("byte %d changed", n), other)
	}
	if code, _, stderr := run(t, "replay", file); code != 1 || !strings.Contains(stderr, file) {
		t.Errorf("code %d, %q", code, stderr)
	}
}

// A file that any version has written must be read for ever.
func TestStoredSliceIsRead(t *testing.T) {
	file := filepath.Join("testdata", "replay", "log.1.slice")
	if *writeGolden {
		if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
			b, err := os.ReadFile(sliceOf(t, projections.New(), history(t)))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	var want []events.Position
	for _, e := range history(t) {
		want = append(want, e.Position)
	}
	if diff := cmp.Diff(want, positions(t, file)); diff != "" {
		t.Error(diff)
	}
	replay(t, file, "--state")
}

// A room is chosen by its name in whatever event holds one, also in those of a newer version.
func TestReplayFiltersByRoom(t *testing.T) {
	opened := store.Entry{Type: "room-praised", Data: []byte(`{"room":"lobby","user":"me"}`)}
	for room, want := range map[string]bool{"lobby": true, "lob": false, "": false} {
		if got := (filter{Room: []string{room}}).matches(aboutEntry(opened)); got != want {
			t.Errorf("--room %q: %v", room, got)
		}
	}
	if (filter{Room: []string{"lobby"}}).matches(aboutEntry(store.Entry{Data: []byte(`{"user":"lobby"}`)})) {
		t.Error("--room takes an event that names no room")
	}
}
