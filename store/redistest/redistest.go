// Package redistest runs real Redis servers for tests: each on a free port with a folder of its own, and ended
// with the test. It can kill, restart and freeze them. It ends only processes that it has started.
package redistest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const startTimeout = 10 * time.Second

// Server is one redis-server. Its methods are not to be called at the same time.
type Server struct {
	URL  string
	Addr string
	Port int
	Dir  string

	args    []string
	config  string    // of a Sentinel, which writes into it; else empty
	process *exec.Cmd // nil while it is down
	exited  chan struct{}
}

// Start runs redis-server and waits until it answers. It keeps nothing on disk unless args say so (for example
// "--appendonly", "yes"). The server ends with the test.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatal("redis-server is not installed: `make test` installs it")
	}
	dir, err := os.MkdirTemp("", "redistest-") // not t.TempDir: its paths are too long for logs and sockets
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Dir: dir, args: args}
	t.Cleanup(func() {
		s.Kill(t)
		_ = os.RemoveAll(dir)
	})
	// Another process may take the port between the look and the start.
	for try := 0; ; try++ {
		s.Port = freePort(t)
		s.address()
		if err = s.launch(); err == nil {
			return s
		}
		if try == 2 {
			t.Fatal(err)
		}
	}
}

func (s *Server) address() {
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
	s.URL = "redis://" + s.Addr
}

// Follow runs another server that replicates this one, and waits until it is in step.
func (s *Server) Follow(t testing.TB, args ...string) *Server {
	t.Helper()
	s.Do(t, "CONFIG", "SET", "repl-diskless-sync-delay", "0") // or the first copy begins after 5 s
	f := Start(t, append([]string{"--replicaof", "127.0.0.1", strconv.Itoa(s.Port)}, args...)...)
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
		info := s.Do(t, "INFO", "replication")
		if strings.Contains(info, fmt.Sprintf("port=%d,state=online", f.Port)) {
			return f
		}
		if time.Now().After(deadline) {
			t.Fatalf("the replica is not in step within %s: %s", startTimeout, info)
		}
	}
}

// Restart ends the server if it runs, and starts it again on the same port and folder.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop(t)
	if err := s.launch(); err != nil {
		t.Fatal(err)
	}
}

// Stop ends the server in order (SIGTERM), and waits for its end.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.end(t, syscall.SIGTERM)
}

// Kill ends the server at once (SIGKILL), and waits for its end.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.end(t, syscall.SIGKILL)
}

// Pause freezes the server (SIGSTOP): connections stay open and nothing answers.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGSTOP)
}

// Resume lets a frozen server go on (SIGCONT).
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	s.signal(t, syscall.SIGCONT)
}

// Do sends one command on a connection of its own and returns the first line of the answer, or the text when
// the answer is one.
func (s *Server) Do(t testing.TB, args ...string) string {
	t.Helper()
	answer, err := s.do(args...)
	if err != nil {
		t.Fatalf("redis %s: %v", args[0], err)
	}
	return answer
}

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if s.process == nil {
		t.Fatal("redis-server is not running")
	}
	if err := s.process.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) end(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if s.process == nil {
		return
	}
	_ = s.process.Process.Signal(sig)
	_ = s.process.Process.Signal(syscall.SIGCONT) // a frozen one would not end in order
	select {
	case <-s.exited:
	case <-time.After(startTimeout):
		_ = s.process.Process.Kill()
		<-s.exited
	}
	s.process = nil
}

func (s *Server) launch() error {
	logfile := filepath.Join(s.Dir, "redis.log")
	args := []string{
		"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--dir", s.Dir, "--logfile", logfile,
		"--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--daemonize", "no",
	}
	if s.config != "" {
		logfile = filepath.Join(s.Dir, "sentinel.log")
		args = []string{s.config, "--sentinel", "--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--logfile", logfile}
	}
	cmd := exec.CommandContext(context.Background(), "redis-server", append(args, s.args...)...)
	endWithParent(cmd)
	started, exited := make(chan error, 1), make(chan struct{})
	go func() {
		// To the kernel the parent is the thread, so it has to last as long as the server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("redis-server: %w", err)
	}
	deadline := time.Now().Add(startTimeout)
	for time.Now().Before(deadline) {
		select {
		case <-exited:
			return fmt.Errorf("redis-server ended at once: %s", tail(logfile))
		case <-time.After(5 * time.Millisecond):
		}
		// The process id shows that it is this server which answers on the port.
		if info, err := s.do("INFO", "server"); err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r", cmd.Process.Pid)) {
			s.process, s.exited = cmd, exited
			return nil
		}
	}
	_ = cmd.Process.Kill()
	<-exited
	return fmt.Errorf("redis-server does not answer within %s: %s", startTimeout, tail(logfile))
}

func (s *Server) do(args ...string) (string, error) {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", s.Addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(startTimeout)); err != nil {
		return "", err
	}
	var request bytes.Buffer
	fmt.Fprintf(&request, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := conn.Write(request.Bytes()); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	switch {
	case strings.HasPrefix(line, "-"):
		return "", errors.New(line[1:])
	case strings.HasPrefix(line, "$") && line != "$-1":
		n, err := strconv.Atoi(line[1:])
		if err != nil {
			return "", err
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(r, text); err != nil {
			return "", err
		}
		return string(text), nil
	}
	return line[1:], nil
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	if len(b) > 1000 {
		b = b[len(b)-1000:]
	}
	return string(b)
}
