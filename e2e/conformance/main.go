// Command conformance is the server that the official test suites of Engine.IO v4 and Socket.IO v5 run against: the
// transport package of Holdfast with the options and the behaviour that they expect, and nothing else.
//
//	go run ./e2e/conformance [--listen localhost:3000]
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"holdfast/transport"
)

func main() {
	listen := flag.String("listen", "localhost:3000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen string) error {
	opt := transport.Options{
		PingInterval: 300 * time.Millisecond, PingTimeout: 200 * time.Millisecond,
		ConnectTimeout: time.Second, MaxPayload: 1_000_000, Origins: []string{"*"},
	}
	engine, sockets := opt, opt
	engine.Paths = []string{"/engine.io/"}
	sockets.Paths, sockets.Namespaces = []string{"/socket.io/"}, []string{"/", "/custom"}
	servers := map[string]*transport.Server{
		"/engine.io": transport.NewEngineServer(engine, echo),
		"/socket.io": transport.NewServer(sockets, app{}),
	}
	mux := http.NewServeMux()
	for path, s := range servers {
		mux.Handle(path, s)
		mux.Handle(path+"/", s)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("listen on --listen %s: %w", listen, err)
	}
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	fmt.Println("listening on", l.Addr())
	served := make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, s := range servers {
		err = errors.Join(err, s.Close(closing))
	}
	return errors.Join(err, web.Close())
}

func echo(s transport.EngineSession, data []byte, binary bool) { s.Send(data, binary) }

// app answers as the Socket.IO suite expects.
type app struct{}

func (app) Connect(_ context.Context, s *transport.Socket, auth json.RawMessage) (transport.Admission, error) {
	if auth == nil {
		auth = json.RawMessage("{}")
	}
	s.SetData(auth)
	return transport.Admission{SID: rand.Text()}, nil
}

func (app) Connected(s *transport.Socket) {
	s.Emit("auth", s.Data().(json.RawMessage))
}

func (app) Event(s *transport.Socket, name string, args []json.RawMessage, attachments [][]byte, ack transport.Ack) {
	raw := make([][]byte, len(args))
	for i, arg := range args {
		raw[i] = arg
	}
	switch name {
	case "message":
		s.EmitBinary("message-back", attachments, raw...)
	case "message-with-ack":
		ack.ReplyBinary(attachments, raw...)
	}
}

func (app) Ack(*transport.Socket, uint64, []json.RawMessage, [][]byte) {}

func (app) Disconnected(*transport.Socket, transport.Reason) {}
