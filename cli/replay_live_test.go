package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
	"holdfast/store/redistest"
)

// record appends the history to the log in Redis, as replicas do.
func record(t testing.TB, st *store.Store, entries []store.Entry) {
	t.Helper()
	for _, e := range entries {
		r, err := e.Record()
		if err != nil {
			t.Fatal(err)
		}
		verdicts, err := st.Append(t.Context(), store.Fence{Instance: e.Replica}, []store.Append{{Command: e.Cause, Events: []events.Event{r.Event}}})
		if err != nil || verdicts[0].Positions == nil {
			t.Fatalf("%+v: %v", verdicts, err)
		}
	}
}

// recorded starts a Redis that holds the history, with one group.
func recorded(t testing.TB) (*redistest.Server, *store.Store) {
	t.Helper()
	redis := redistest.Start(t)
	st, err := store.Open(store.Options{URL: redis.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	entries := history(t)
	record(t, st, entries[:8])
	head, err := st.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.EnsureGroup(t.Context(), "r2", head.Position); err != nil {
		t.Fatal(err)
	}
	record(t, st, entries[8:])
	return redis, st
}

// Both commands do all that they can as a user who may only read, and leave every key as it was.
func TestReplayAndLogChangeNothing(t *testing.T) {
	redis, _ := recorded(t)
	redis.Do(t, "ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+@connection", "+time", "+info", "+cluster|slots")
	url := strings.Replace(redis.URL, "redis://", "redis://reader:secret@", 1)
	look := func() string {
		all := redis.Do(t, "DBSIZE") + redis.Do(t, "XINFO", "GROUPS", "{holdfast}:log")
		for _, key := range []string{"{holdfast}:log", "{holdfast}:versions"} {
			all += redis.Do(t, "DUMP", key)
		}
		return all
	}
	before := look()
	file := filepath.Join(t.TempDir(), "f")
	for _, args := range [][]string{
		{"replay"}, {"replay", "--format", "json"}, {"replay", "--state"}, {"replay", "--at", "-0s"},
		{"replay", "--diff", "-1h", "-0s"}, {"replay", "--why", "peer:me/daemon"}, {"replay", "--export", file},
		{"replay", "--export", file + ".redacted", "--redact"}, {"log"}, {"log", "--json"}, {"log", "--scan", "0"},
	} {
		if code, _, stderr := run(t, append(args, "--redis", url)...); code != 0 {
			t.Errorf("%v: code %d: %s", args, code, stderr)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	out := &watched{}
	ended := make(chan int, 1)
	go func() { ended <- Run(ctx, []string{"replay", "--follow", "--redis", url}, out, &bytes.Buffer{}) }()
	eventually(t, "the last entry is followed", func() bool { return strings.Contains(out.String(), "method-unregistered") })
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("--follow ended with %d", code)
	}
	if look() != before {
		t.Error("something in Redis has changed")
	}
}

// watched is a writer that can be looked at meanwhile.
type watched struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

func TestFollowGoesOn(t *testing.T) {
	redis, st := recorded(t)
	head, err := st.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, errs := &watched{}, &watched{}
	ended := make(chan int, 1)
	go func() {
		ended <- Run(ctx, []string{"replay", "--follow", "--from", head.Position.Next().String(), "--peer", "late", "--redis", redis.URL}, out, errs)
	}()
	lines := func() int { return strings.Count(out.String(), "peer-connected") }
	connect := func(peer string) {
		e := events.PeerConnected{User: "u", Peer: peer, Connection: ulid.Make().String(), Instance: "r2"}
		if _, err := st.Append(t.Context(), store.Fence{Instance: "r2"}, []store.Append{{Command: ulid.Make(), Events: []events.Event{e}}}); err != nil {
			t.Fatal(err)
		}
	}
	connect("other")
	connect("late")
	eventually(t, "the first one is shown", func() bool { return lines() == 1 })
	connect("late")
	eventually(t, "the second one is shown", func() bool { return lines() == 2 })
	cancel()
	if code := <-ended; code != 0 || strings.Contains(out.String(), "other") || errs.String() != "" {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
}

func TestExportedLogReplaysTheSame(t *testing.T) {
	redis, _ := recorded(t)
	live := func(args ...string) string { return replay(t, append(args, "--redis", redis.URL)...) }
	dir := t.TempDir()
	whole, part, again := filepath.Join(dir, "whole"), filepath.Join(dir, "part"), filepath.Join(dir, "again")
	all := positions(t, "--redis", redis.URL)
	from, to := all[4].String(), all[9].String()
	live("--export", whole)
	live("--export", part, "--from", from, "--to", to)
	replay(t, part, "--export", again)
	for name, pair := range map[string][2]string{
		"list of the whole":     {live("--format", "json"), replay(t, whole, "--format", "json")},
		"state of the whole":    {live("--state", "--format", "json"), replay(t, whole, "--state", "--format", "json")},
		"list of a part":        {live("--format", "json", "--from", from, "--to", to), replay(t, part, "--format", "json")},
		"state after a part":    {live("--at", to, "--format", "json"), replay(t, part, "--state", "--format", "json")},
		"state within a part":   {live("--at", all[6].String(), "--format", "json"), replay(t, part, "--at", all[6].String(), "--format", "json")},
		"part of a part, list":  {replay(t, part, "--format", "json"), replay(t, again, "--format", "json")},
		"part of a part, state": {replay(t, part, "--state", "--format", "json"), replay(t, again, "--state", "--format", "json")},
	} {
		if pair[0] != pair[1] || pair[0] == "" {
			t.Errorf("%s:\n%s\nfrom the file\n%s", name, pair[0], pair[1])
		}
	}
	for _, file := range []string{whole, part, again} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v: others may read it", file, info.Mode(), err)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 3 {
		t.Errorf("files are left over: %v", files)
	}
}

// Of a log that was trimmed, the entries that are left can be seen, and what they add up to is not guessed.
func TestTrimmedLog(t *testing.T) {
	redis, _ := recorded(t)
	redis.Do(t, "XTRIM", "{holdfast}:log", "MAXLEN", "5")
	if got := positions(t, "--redis", redis.URL); len(got) != 5 {
		t.Errorf("%d entries", len(got))
	}
	for _, args := range [][]string{{"--state"}, {"--export", filepath.Join(t.TempDir(), "f")}} {
		code, _, stderr := run(t, append([]string{"replay", "--redis", redis.URL}, args...)...)
		if code != 1 || !strings.Contains(stderr, "removed") {
			t.Errorf("%v: code %d, %q", args, code, stderr)
		}
	}
	_, stdout, _ := run(t, "log", "--redis", redis.URL)
	if !strings.Contains(stdout, "entries before the first have been removed") {
		t.Errorf("log does not tell:\n%s", stdout)
	}
}

// After a trim, everything from the oldest snapshot on is known as before. A snapshot that cannot be used is passed over.
func TestTrimmedLogWithSnapshots(t *testing.T) {
	redis, st := recorded(t)
	file := filepath.Join(t.TempDir(), "whole")
	replay(t, "--redis", redis.URL, "--export", file)
	src, err := openSlice(file)
	if err != nil {
		t.Fatal(err)
	}
	all := positions(t, file)
	keeper := store.Inbox{Instance: "r2", Incarnation: ulid.Make().String()}
	if mine, err := st.Keep(t.Context(), keeper, time.Minute); !mine || err != nil {
		t.Fatal(mine, err)
	}
	for _, at := range []events.Position{all[5], all[8]} {
		state, err := foldTo(t.Context(), src, at)
		if err != nil {
			t.Fatal(err)
		}
		snap := store.Snapshot{
			ID: ulid.Make().String(), Position: state.Position, Token: state.Token, Schema: projections.SnapshotSchema,
			Instance: "r2", Time: time.Now(),
		}
		if _, err := st.WriteSnapshot(t.Context(), keeper, snap, state.Encode()); err != nil {
			t.Fatal(err)
		}
	}
	redis.Do(t, "XTRIM", "{holdfast}:log", "MAXLEN", "6")
	same := func() {
		t.Helper()
		for _, args := range [][]string{
			{"--state"}, {"--at", all[5].String()}, {"--at", all[7].String()}, {"--at", all[9].String()},
			{"--diff", all[6].String(), all[10].String()}, {"--why", "peer:me/daemon", "--from", all[6].String()},
		} {
			args = append(args, "--format", "json")
			live, whole := replay(t, append(args, "--redis", redis.URL)...), replay(t, append(args, file)...)
			ages := regexp.MustCompile(`"ageMs":\d+`)
			if ages.ReplaceAllString(live, "") != ages.ReplaceAllString(whole, "") {
				t.Errorf("%v:\n%s\nbefore the trim\n%s", args, live, whole)
			}
		}
	}
	same()
	part := filepath.Join(t.TempDir(), "part")
	replay(t, "--redis", redis.URL, "--export", part)
	if got := positions(t, part); fmt.Sprint(got) != fmt.Sprint(all[6:]) {
		t.Errorf("the export has %v", got)
	}
	if code, _, stderr := run(t, "replay", "--redis", redis.URL, "--at", all[4].String()); code != 1 || !strings.Contains(stderr, "before what can be known") {
		t.Errorf("before the oldest snapshot: code %d, %q", code, stderr)
	}
	_, stdout, _ := run(t, "log", "--redis", redis.URL)
	if !regexp.MustCompile(`(?m)^SNAPSHOT AT .*\n` + all[8].String() + ` .*r2\n` + all[5].String() + ` .*r2$`).MatchString(stdout) {
		t.Errorf("log shows no snapshots:\n%s", stdout)
	}
	list, err := st.Snapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	redis.Do(t, "DEL", "{holdfast}:snapshot:"+list[0].ID)
	same()
	if now, err := st.Snapshots(t.Context()); err != nil || len(now) != 2 {
		t.Errorf("replay has removed a snapshot: %v %v", now, err)
	}
}

func TestLog(t *testing.T) {
	redis, _ := recorded(t)
	token := ulid.Make().String()
	redis.Do(t, "XADD", "{holdfast}:log", "*", "t", "room-praised", "s", "3", "u", token, "p", token, "c", token, "r", "b", "k", "room:r", "d", "{}")
	code, stdout, stderr := run(t, "log", "--redis", redis.URL)
	if code != 0 {
		t.Fatalf("code %d: %s", code, stderr)
	}
	for _, want := range []string{
		`(?m)^log +\{holdfast\}:log$`,
		`(?m)^length +13 entries, [0-9.]+ KiB, [0-9]+ B an entry$`,
		`(?m)^first +[0-9]+-0  20.* ago$`,
		`(?m)^last +[0-9]+-[0-9]+  20.* ago$`,
		`(?m)^replica:r2 +[0-9]+-[0-9]+ +[0-9.]+m?s +5 +0$`,
		`(?m)^peer-connected +1 +3 +[0-9]+-[0-9]+$`,
		`(?m)^room-praised +3 +1 +[0-9]+-[0-9]+ +cannot be read by this version$`,
	} {
		if !regexp.MustCompile(want).MatchString(stdout) {
			t.Errorf("no line is like %s:\n%s", want, stdout)
		}
	}
	if n := strings.Count(stdout, "\n"); n > 24 {
		t.Errorf("%d lines are more than a screen", n)
	}
	_, stdout, _ = run(t, "log", "--redis", redis.URL, "--json", "--scan", "2")
	var v logView
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		t.Fatalf("%s: %v", stdout, err)
	}
	if v.Length != 13 || v.Bytes == nil || !v.Whole || v.Scanned != 2 || len(v.Types) != 2 || len(v.Groups) != 1 || v.Groups[0].Lag != 5 {
		t.Errorf("%+v", v)
	}
	if code, stdout, stderr := run(t, "log", "--redis", redis.URL, "--namespace", "empty"); code != 0 || !strings.Contains(stdout, "0 entries") {
		t.Errorf("an empty one: code %d, %s%s", code, stdout, stderr)
	}
	for _, args := range [][]string{{"log"}, {"log", "--redis", redis.URL, "--scan", "-1"}, {"log", "--redis", "x"}} {
		if code, _, stderr := run(t, args...); code != 2 || stderr == "" {
			t.Errorf("%v: code %d, %q", args, code, stderr)
		}
	}
	redis.Kill(t)
	if code, _, stderr := run(t, "log", "--redis", redis.URL); code != 1 || stderr == "" {
		t.Errorf("no Redis: code %d, %q", code, stderr)
	}
}

// More than a page of entries is read whole and in order, from Redis as from a file.
func TestLongLog(t *testing.T) {
	redis, st := recorded(t)
	var group []store.Append
	for i := range 2*replayPage + 7 {
		e := events.PeerConnected{User: "u", Peer: "p" + strconv.Itoa(i), Connection: ulid.Make().String(), Instance: "r2", Recovery: strconv.Itoa(i)}
		group = append(group, store.Append{Command: ulid.Make(), Events: []events.Event{e}})
		if len(group) == store.MaxGroup || i == 2*replayPage+6 {
			if _, err := st.Append(t.Context(), store.Fence{Instance: "r2"}, group); err != nil {
				t.Fatal(err)
			}
			group = group[:0]
		}
	}
	all := positions(t, "--redis", redis.URL)
	if want := 12 + 2*replayPage + 7; len(all) != want {
		t.Fatalf("%d entries, want %d", len(all), want)
	}
	file := filepath.Join(t.TempDir(), "f")
	replay(t, "--redis", redis.URL, "--export", file)
	if got := positions(t, file); fmt.Sprint(got) != fmt.Sprint(all) {
		t.Error("the file has others")
	}
	if state := replay(t, file, "--state", "--format", "json"); state != replay(t, "--redis", redis.URL, "--state", "--format", "json") {
		t.Error("the file adds up to something else")
	}
	_, stdout, _ := run(t, "log", "--redis", redis.URL, "--json")
	var v logView
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || v.Groups[0].Lag != int64(len(all)-8) || v.Scanned != len(all) {
		t.Errorf("%+v, %v", v, err)
	}
}
