package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/hammer"
)

// long skips what takes more than a few seconds, unless it was asked for.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("HOLDFAST_LONG") == "" {
		t.Skip("takes long: HOLDFAST_LONG=1, or make chaos")
	}
}

var built struct {
	sync.Mutex
	at map[string]string
}

// binary builds the program as it is, or as it was at a commit. It is skipped when that commit is not here.
func binary(t *testing.T, commit string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if bin, ok := built.at[commit]; ok {
		return bin
	}
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "holdfast-built-")
	if err != nil {
		t.Fatal(err)
	}
	source := top
	if commit != "" {
		if err := exec.Command("git", "-C", top, "cat-file", "-e", commit+"^{commit}").Run(); err != nil {
			t.Skipf("commit %s is not in this copy of the repository: fetch its whole history (git fetch --unshallow)", commit)
		}
		source = filepath.Join(dir, "source")
		if err := os.Mkdir(source, 0o755); err != nil {
			t.Fatal(err)
		}
		archive := exec.Command("git", "-C", top, "archive", commit)
		unpack := exec.Command("tar", "-x", "-C", source)
		if unpack.Stdin, err = archive.StdoutPipe(); err != nil {
			t.Fatal(err)
		}
		if err := unpack.Start(); err != nil {
			t.Fatal(err)
		}
		if err := archive.Run(); err != nil {
			t.Fatal(err)
		}
		if err := unpack.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "holdfast")
	build := exec.Command("go", "build", "-o", bin, ".")
	build.Dir = source
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if built.at == nil {
		built.at = map[string]string{}
	}
	built.at[commit] = bin
	return bin
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, bin := range built.at {
		_ = os.RemoveAll(filepath.Dir(bin))
	}
	os.Exit(code)
}

// process is one running `serve`.
type process struct {
	t        *testing.T
	instance string
	URL      string
	admin    string
	cmd      *exec.Cmd
	log      logBuffer
	exited   chan struct{}
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// launch starts a replica. It is killed with the test, if it has not ended by then.
func launch(t *testing.T, bin, redis, instance string, more ...string) *process {
	t.Helper()
	return launchAt(t, bin, redis, instance, "127.0.0.1:0", more...)
}

// launchAt is launch on an address. Port 0 is a free one, which the process itself takes and tells in its log: a
// port looked up beforehand may be another test's by then.
func launchAt(t *testing.T, bin, redis, instance, address string, more ...string) *process {
	t.Helper()
	p := &process{t: t, instance: instance, exited: make(chan struct{})}
	args := []string{"serve", "--insecure", "--redis", redis, "--listen", address, "--instance", instance, "--drain", "0s"}
	administered := bin == binary(t, "")
	if administered {
		args = append(args, "--admin-listen", "127.0.0.1:0")
	}
	p.cmd = exec.Command(bin, append(args, more...)...)
	p.cmd.Stderr = &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.exited) }()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		p.signal(syscall.SIGCONT)
		<-p.exited
		if t.Failed() {
			t.Logf("log of %s:\n%s", instance, p.log.String())
		}
	})
	eventually(t, instance+" listens, or has ended", func() bool {
		select {
		case <-p.exited:
			return true
		default:
		}
		p.URL = "http://" + p.log.address("listening")
		if administered {
			p.admin = p.log.address("digest and profiles are served")
		}
		return p.URL != "http://" && (!administered || p.admin != "")
	})
	return p
}

// address is that of the line with the message; "" before it is there.
func (l *logBuffer) address(message string) string {
	for line := range strings.Lines(l.String()) {
		var said struct{ Message, Address string }
		if json.Unmarshal([]byte(line), &said) == nil && said.Message == message {
			return said.Address
		}
	}
	return ""
}

func serve(t *testing.T, bin, redis, instance string, more ...string) *process {
	t.Helper()
	p := launch(t, bin, redis, instance, more...)
	p.ready()
	return p
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// pause freezes it, and returns once it stands still: a signal may take its time, and one to go on would undo it.
func (p *process) pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	eventually(p.t, p.instance+" stands still", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			p.t.Skipf("whether a process stands still is read in /proc: %v", err)
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(rest, "T")
	})
}

func (p *process) ready() {
	p.t.Helper()
	eventually(p.t, p.instance+" is ready", func() bool { code, _ := p.get(p.URL + "/readyz"); return code == 200 })
}

// stop ends it in order.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(15 * time.Second):
		p.t.Fatalf("%s does not end", p.instance)
	}
}

func (p *process) get(url string) (int, string) {
	client := http.Client{Timeout: 2 * time.Second}
	res, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

type digest struct {
	Position, Digest string
	Generation       int
	Understood       int
	Replicas, Peers  int
	Registrations    int
}

func (p *process) digest() (d digest) {
	p.t.Helper()
	code, text := p.get("http://" + p.admin + "/admin/digest")
	if code != 200 || json.Unmarshal([]byte(text), &d) != nil {
		p.t.Fatalf("digest of %s: %d %s", p.instance, code, text)
	}
	return d
}

// metric is the value of a metric with its labels, as text; "" when it is not shown.
func (p *process) metric(name string) string {
	_, text := p.get(p.URL + "/metrics")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func (p *process) anomaly(kind string) bool {
	return p.metric(fmt.Sprintf("holdfast_store_anomalies_total{kind=%q}", kind)) != ""
}

// agree waits until the replicas show one digest at one position.
func agree(t *testing.T, all ...*process) digest {
	t.Helper()
	var first digest
	eventually(t, "the replicas agree at one position", func() bool {
		first = all[0].digest()
		for _, p := range all[1:] {
			d := p.digest()
			if d.Position != first.Position {
				return false
			}
			if d.Digest != first.Digest {
				t.Fatalf("at %s %s and %s do not agree: %+v, %+v", d.Position, all[0].instance, p.instance, first, d)
			}
		}
		return first.Position != "0-0"
	})
	return first
}

// peer is a client that answers the methods which it registers with its own name.
type peer struct {
	*hammer.Client
	t    *testing.T
	name string
	lost atomic.Int64 // connections that ended
}

func dial(t *testing.T, p *process, name string, methods ...string) *peer {
	t.Helper()
	c := &peer{t: t, name: name}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	answer, _ := json.Marshal(name)
	var err error
	c.Client, err = hammer.Dial(ctx, p.URL, map[string]string{"user": "u", "peer": name}, hammer.Options{
		Reconnect: true, ReconnectDelay: 50 * time.Millisecond, ReconnectDelayMax: 200 * time.Millisecond,
		OnDisconnect: func(*hammer.Client, error) { c.lost.Add(1) },
		Handlers:     map[string]hammer.Handler{"rpc-request": func(_ []json.RawMessage, ack hammer.Ack) { _ = ack.Reply(answer) }},
	})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	t.Cleanup(c.Close)
	for _, m := range methods {
		if err := c.register(m); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// ask emits an event and gives the ack; one that is not ok is an error.
func (c *peer) ask(event string, arg any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 15*time.Second)
	defer cancel()
	b, _ := json.Marshal(arg)
	ack, err := c.EmitWithAck(ctx, event, b)
	if err != nil {
		return nil, err
	}
	var a struct{ OK *bool }
	if json.Unmarshal(ack, &a) != nil || a.OK == nil || !*a.OK {
		return nil, fmt.Errorf("%s of %s: %s", event, c.name, ack)
	}
	return ack, nil
}

func (c *peer) register(method string) error {
	_, err := c.ask("rpc-register", map[string]any{"method": method, "replaySafe": true})
	return err
}

// calls makes a call that must be answered by the peer named.
func (c *peer) calls(method, by string) error {
	ack, err := c.ask("rpc-call", map[string]any{"method": method, "params": 1})
	if err == nil && !bytes.Contains(ack, []byte(`"`+by+`"`)) {
		err = fmt.Errorf("call of %s by %s: %s, want the answer of %s", method, c.name, ack, by)
	}
	return err
}
