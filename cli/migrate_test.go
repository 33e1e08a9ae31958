package cli

import (
	"strings"
	"testing"

	"holdfast/store/redistest"
)

func TestMigrate(t *testing.T) {
	redis := redistest.Start(t)
	migrate := func(what string, code int, want ...string) {
		t.Helper()
		got, stdout, stderr := run(t, "migrate", what, "--redis", redis.URL)
		if got != code {
			t.Errorf("migrate %s: code %d, want %d: %s", what, got, code, stderr)
		}
		for _, w := range want {
			if !strings.Contains(stdout+stderr, w) {
				t.Errorf("migrate %s says %q%q, without %q", what, stdout, stderr, w)
			}
		}
	}
	migrate("status", 0, "no layout is marked", "knows layout 1", "events of generation 3", "pending   1 steps")
	migrate("plan", 0, "1 mark the layout")
	if redis.Do(t, "EXISTS", "{holdfast}:layout") != "0" {
		t.Error("status or plan changed something")
	}
	migrate("up", 0, "done: 1 mark the layout")
	migrate("up", 0, "nothing to do")
	migrate("plan", 0, "nothing to do")
	migrate("status", 0, "layout 1; programs must know layout 0", "pending   0 steps")

	// A newer program has added something, and then something that this one cannot work with.
	redis.Do(t, "HSET", "{holdfast}:layout", "version", "7")
	migrate("status", 0, "layout 7", "pending   0 steps")
	redis.Do(t, "HSET", "{holdfast}:layout", "oldest", "6")
	for _, what := range []string{"status", "plan", "up"} {
		migrate(what, 1, "newer version of this program", "layout 6")
	}
	code, _, stderr := run(t, "serve", "--insecure", "--redis", redis.URL, "--listen", "127.0.0.1:0", "--instance", "t")
	if code != 1 || !strings.Contains(stderr, "newer version of this program") {
		t.Errorf("serve ended with code %d: %s", code, stderr)
	}
	if redis.Do(t, "EXISTS", "{holdfast}:log") != "0" {
		t.Error("serve wrote to a log that it must not touch")
	}

	if code, _, stderr := run(t, "migrate", "up"); code != 2 || !strings.Contains(stderr, "--redis") {
		t.Errorf("without a Redis: code %d, %s", code, stderr)
	}
}

func TestAdminDigest(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	w := newWorld(t, redis, redis.URL)
	d := agree(t, w.a, w.b)
	if len(d.Digest) != 64 || d.Understood != 3 {
		t.Errorf("%+v", d)
	}
	for _, name := range []string{"holdfast_state_digest", "holdfast_state_digest_position_ms", "holdfast_state_digest_position_seq"} {
		if w.a.metric(name) == "" {
			t.Errorf("%s is not shown", name)
		}
	}
	if code, _ := w.a.get("http://" + w.a.admin + "/debug/pprof/"); code != 200 {
		t.Errorf("profiles: %d", code)
	}
	for _, path := range []string{"/admin/digest", "/debug/pprof/"} {
		if code, _ := w.a.get(w.a.URL + path); code != 404 {
			t.Errorf("%s is served to clients: %d", path, code)
		}
	}
}
