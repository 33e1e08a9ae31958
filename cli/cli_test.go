package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"gopkg.in/yaml.v3"

	"holdfast/store/redistest"
)

func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestWrongSettingsEndAtOnceAndSayWhatToDo(t *testing.T) {
	redis := "redis://user:hunter2@127.0.0.1:1"
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"serve"}, []string{"--redis", "HOLDFAST_REDIS"}},
		{[]string{"serve", "--redis", redis}, []string{"--token-key", "HOLDFAST_TOKEN_KEY", "--insecure"}},
		{[]string{"serve", "--redis", redis, "--token-key", "0123456789abcdef", "--insecure"}, []string{"exclude"}},
		{[]string{"serve", "--redis", redis, "--token-key", "short"}, []string{"--token-key", "16 bytes"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--listen", "8080"}, []string{"--listen"}},
		{[]string{"serve", "--redis", "http://example", "--insecure"}, []string{"--redis", "rediss://"}},
		{[]string{"serve", "--redis", "redis://:6379", "--insecure"}, []string{"--redis", "host"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--namespace", "a:b"}, []string{"--namespace"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--drain", "-1s"}, []string{"--drain"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--instance", "a b"}, []string{"--instance"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--advertise", "r1:8080"}, []string{"--advertise"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--patience", "0s"}, []string{"--patience"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--retain", "0s"}, []string{"--retain"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--retain-memory", "-1"}, []string{"--retain-memory"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--forget-replica", "0s"}, []string{"--forget-replica"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--snapshot-events", "0"}, []string{"--snapshot-events"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--snapshot-every", "-5m"}, []string{"--snapshot-every"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--rpc-grace", "-1s"}, []string{"--rpc-grace"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--paths", "socket.io"}, []string{"--paths"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--max-payload", "0"}, []string{"--max-payload"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--log-level", "loud"}, []string{"--log-level"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--durability", "maybe"}, []string{"--durability", "replicated"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--admin-listen", "6060"}, []string{"--admin-listen"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--tls-cert", "cert.pem"}, []string{"--tls-cert", "--tls-key"}},
		{[]string{"serve", "--redis", redis, "--insecure", "--tls-ca", "nothing.pem"}, []string{"--tls-ca"}},
		{[]string{"migrate", "status"}, []string{"--redis", "HOLDFAST_REDIS"}},
		{[]string{"migrate", "up", "--redis", redis, "--wait", "0s"}, []string{"--wait"}},
		{[]string{"serve", "--nonsense"}, []string{"--nonsense"}},
		{[]string{"dev", "--replicas", "0"}, []string{"--replicas"}},
		{[]string{"dev", "--listen", "x"}, []string{"--listen"}},
		{[]string{"doctor"}, []string{"--redis", "HOLDFAST_REDIS"}},
		{[]string{"frobnicate"}, []string{"frobnicate"}},
	} {
		code, _, stderr := run(t, c.args...)
		if code != 2 {
			t.Errorf("%v: code %d, want 2", c.args, code)
		}
		for _, want := range c.want {
			if !strings.Contains(stderr, want) {
				t.Errorf("%v says %q, without %q", c.args, stderr, want)
			}
		}
		if strings.Contains(stderr, "hunter2") {
			t.Errorf("%v tells the password: %q", c.args, stderr)
		}
	}
}

func TestHelpIsEnough(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"serve", "--help"}, {"dev", "--help"}, {"doctor", "--help"}, {"bench", "rpc", "--help"}, {"migrate", "--help"}, {"migrate", "up", "--help"}} {
		code, stdout, _ := run(t, args...)
		if code != 0 || !strings.Contains(stdout, "Usage: holdfast") {
			t.Errorf("%v: code %d, %q", args, code, stdout)
		}
	}
	_, stdout, _ := run(t, "serve", "--help")
	for _, want := range []string{"--redis", "HOLDFAST_REDIS", "HOLDFAST_RPC_GRACE", "HOLDFAST_TOKEN_KEY", "sentinel"} {
		if !strings.Contains(strings.ToLower(stdout), strings.ToLower(want)) {
			t.Errorf("serve --help does not mention %s", want)
		}
	}
}

// Every flag of serve has an environment variable of its own, and a help text.
func TestEverySettingHasAVariable(t *testing.T) {
	var line commandLine
	parser, err := kong.New(&line, kong.DefaultEnvars("HOLDFAST"), kong.Vars{"version": "", "hostname": "h"})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for _, node := range parser.Model.Children {
		if node.Name != "serve" {
			continue
		}
		for _, f := range node.Flags {
			if len(f.Envs) != 1 || !strings.HasPrefix(f.Envs[0], "HOLDFAST_") {
				t.Errorf("--%s has the variables %v", f.Name, f.Envs)
				continue
			}
			if want := "HOLDFAST_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_")); f.Envs[0] != want {
				t.Errorf("--%s is set by %s, want %s", f.Name, f.Envs[0], want)
			}
			if other, twice := seen[f.Envs[0]]; twice {
				t.Errorf("--%s and --%s share %s", f.Name, other, f.Envs[0])
			}
			seen[f.Envs[0]] = f.Name
			if f.Help == "" {
				t.Errorf("--%s has no help", f.Name)
			}
		}
	}
	if len(seen) < 20 {
		t.Fatalf("only %d flags of serve were seen", len(seen))
	}
}

func TestSettingsSayWhereTheyComeFromAndHideSecrets(t *testing.T) {
	t.Setenv("HOLDFAST_RPC_GRACE", "7s")
	t.Setenv("HOLDFAST_TOKEN_KEY", "0123456789abcdef-secret")
	var line commandLine
	parser, err := kong.New(&line, kong.DefaultEnvars("HOLDFAST"), kong.Vars{"version": "", "hostname": "h"})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse([]string{"serve", "--redis", "redis://user:hunter2@example:6379", "--listen", ":9"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	logSettings(newLogger(&out, "info", "json"), settingsOf(parsed))
	text := out.String()
	for _, want := range []string{`"--rpc-grace":"7s (environment)"`, `"--listen":":9 (flag)"`, `"--token-key":"*** (environment)"`, `"--patience":"5s (default)"`, "redis://user:xxxxx@example:6379 (flag)"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s\nlacks %s", text, want)
		}
	}
	for _, not := range []string{"hunter2", "0123456789abcdef"} {
		if strings.Contains(text, not) {
			t.Errorf("%s\nmust not hold %s", text, not)
		}
	}
}

// The compose file sets everything that serve requires, and only settings that exist.
func TestComposeFile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Command     []string          `yaml:"command"`
			Environment map[string]string `yaml:"environment"`
			Ports       []string          `yaml:"ports"`
			Healthcheck struct {
				Test []string `yaml:"test"`
			} `yaml:"healthcheck"`
			DependsOn map[string]struct {
				Condition string `yaml:"condition"`
			} `yaml:"depends_on"`
		} `yaml:"services"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	redis := strings.Join(file.Services["redis"].Command, " ")
	for _, want := range []string{"--appendonly yes", "--maxmemory-policy noeviction"} {
		if !strings.Contains(redis, want) {
			t.Errorf("redis runs %q, without %s", redis, want)
		}
	}
	instances := map[string]bool{}
	for name, s := range file.Services {
		if name == "redis" {
			continue
		}
		var line commandLine
		parser, err := kong.New(&line, kong.Vars{"version": "", "hostname": "h"})
		if err != nil {
			t.Fatal(err)
		}
		args := s.Command
		for env, value := range s.Environment {
			flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(env, "HOLDFAST_"), "_", "-"))
			args = append(args, fmt.Sprintf("--%s=%s", flag, value))
		}
		if _, err := parser.Parse(args); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := line.Serve.check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s.Environment["HOLDFAST_INSTANCE"] == "" || instances[s.Environment["HOLDFAST_INSTANCE"]] {
			t.Errorf("%s: its instance must be set and be its own", name)
		}
		instances[s.Environment["HOLDFAST_INSTANCE"]] = true
		if len(s.Healthcheck.Test) == 0 || s.DependsOn["redis"].Condition != "service_healthy" {
			t.Errorf("%s: no health check, or it does not wait for a healthy redis", name)
		}
		for _, p := range s.Ports {
			if line.Serve.Insecure && !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s: insecure, and port %s is open to others", name, p)
			}
		}
	}
	if len(instances) < 2 {
		t.Errorf("%d replicas, want two", len(instances))
	}
}

func TestDoctor(t *testing.T) {
	good := redistest.Start(t, "--appendonly", "yes", "--maxmemory-policy", "noeviction")
	if code, stdout, stderr := run(t, "doctor", "--redis", good.URL); code != 0 {
		t.Errorf("a good Redis: code %d\n%s%s", code, stdout, stderr)
	}
	bad := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	code, stdout, _ := run(t, "doctor", "--redis", bad.URL)
	if code != 1 || !regexp.MustCompile(`BAD .*allkeys-lru`).MatchString(stdout) || !regexp.MustCompile(`BAD .*appendonly`).MatchString(stdout) {
		t.Errorf("a bad Redis: code %d\n%s", code, stdout)
	}
	bad.Kill(t)
	if code, _, stderr := run(t, "doctor", "--redis", bad.URL); code != 1 || stderr == "" {
		t.Errorf("no Redis: code %d, %q", code, stderr)
	}
	if code, _, _ := run(t, "doctor", "--url", "http://"+bad.Addr+"/readyz"); code != 1 {
		t.Errorf("no replica: code %d", code)
	}
}

// A process that starts before its Redis is alive but not ready, and becomes ready with it.
func TestServeWaitsForItsRedis(t *testing.T) {
	redis := redistest.Start(t)
	redis.Kill(t)
	ended := make(chan int, 1)
	var stderr logBuffer
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- Run(ctx, []string{"serve", "--insecure", "--redis", redis.URL, "--listen", "127.0.0.1:0", "--instance", "t", "--drain", "0s"}, &bytes.Buffer{}, &stderr)
	}()
	address := ""
	eventually(t, "it listens", func() bool { address = stderr.address("listening"); return address != "" })
	status := func(path string) int {
		res, err := http.Get("http://" + address + path)
		if err != nil {
			return 0
		}
		defer res.Body.Close()
		return res.StatusCode
	}
	eventually(t, "it is alive and not ready", func() bool { return status("/healthz") == 200 && status("/readyz") == 503 })
	redis.Restart(t)
	eventually(t, "it is ready", func() bool { return status("/readyz") == 200 })
	if status("/metrics") != 200 {
		t.Error("no metrics")
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("it ended with code %d: %s", code, stderr.String())
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	within(t, 15*time.Second, what, f)
}

func within(t *testing.T, limit time.Duration, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("not within %s: %s", limit, what)
}
