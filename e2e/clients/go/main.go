// Command client is the Go client of zishang520/socket.io, led by lines of JSON.
package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/zishang520/socket.io/clients/engine/v3/transports"
	"github.com/zishang520/socket.io/clients/socket/v3"
	"github.com/zishang520/socket.io/v3/pkg/types"
)

// first is what to connect to. Transports is nil for the client's own choice.
type first struct {
	URL        string         `json:"url"`
	Auth       map[string]any `json:"auth"`
	Transports []string       `json:"transports"`
	Methods    []string       `json:"methods"`
}

// order is one of: an event to be sent, with the number of the question; a question for the transport.
type order struct {
	Ask       int    `json:"ask"`
	Event     string `json:"event"`
	Data      any    `json:"data"`
	Transport int    `json:"transport"`
}

func main() {
	if err := run(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run returns at the end of the input, without a goodbye to the server.
func run(input io.Reader) error {
	lines := json.NewDecoder(bufio.NewReader(input))
	var want first
	if err := lines.Decode(&want); err != nil {
		return fmt.Errorf("read what to connect to: %w", err)
	}
	client, err := connect(want)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	for {
		var o order
		if err := lines.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read an order: %w", err)
		}
		if o.Transport != 0 {
			say(map[string]any{"answer": o.Transport, "data": client.Io().Engine().Transport().Name()})
			continue
		}
		err := client.Emit(o.Event, unpack(o.Data), func(args []any, err error) {
			say(map[string]any{"answer": o.Ask, "data": answer(args, err)})
		})
		if err != nil {
			return fmt.Errorf("emit %s: %w", o.Event, err)
		}
	}
}

func connect(want first) (*socket.Socket, error) {
	opts := socket.DefaultOptions()
	opts.SetAuth(want.Auth)
	if want.Transports != nil {
		set := types.NewSet[transports.TransportCtor]()
		for _, name := range want.Transports {
			switch name {
			case "polling":
				set.Add(transports.Polling)
			case "websocket":
				set.Add(transports.WebSocket)
			default:
				return nil, fmt.Errorf("transport %q is not known: use polling or websocket", name)
			}
		}
		opts.SetTransports(set)
	}
	// With any server it misses now and then that its WebSocket has opened. It tries again after this time, 20 s by default.
	opts.SetTimeout(3 * time.Second)
	// The client begins to connect at once, and says what comes of it only to who listens by then.
	opts.SetAutoConnect(false)
	client, err := socket.Connect(want.URL, opts)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		client.On("connect", func(...any) {
			say(map[string]any{"connect": map[string]any{"sid": client.Id(), "recovered": client.Recovered()}})
			for _, method := range want.Methods {
				_ = client.Emit("rpc-register", map[string]any{"method": method}, func(args []any, err error) {
					say(map[string]any{"registered": method, "answer": answer(args, err)})
				})
			}
		}),
		client.On("disconnect", func(args ...any) { say(map[string]any{"disconnect": fmt.Sprint(args[0])}) }),
		client.On("connect_error", func(args ...any) { say(map[string]any{"refused": fmt.Sprint(args...)}) }),
		client.On("rpc-request", func(args ...any) {
			request, _ := args[0].(map[string]any)
			args[len(args)-1].(func([]any, error))([]any{request["params"]}, nil)
		}),
	)
	client.OnAny(func(args ...any) {
		if name, _ := args[0].(string); name != "rpc-request" {
			say(map[string]any{"event": name, "args": args[1:]})
		}
	})
	client.Connect()
	return client, err
}

func answer(args []any, err error) any {
	switch {
	case err != nil:
		return map[string]any{"ok": false, "code": "NO_ANSWER", "error": err.Error()}
	case len(args) == 0:
		return nil
	}
	return args[0]
}

var oneAtATime sync.Mutex

func say(line map[string]any) {
	text, err := json.Marshal(pack(line))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	oneAtATime.Lock()
	defer oneAtATime.Unlock()
	fmt.Println(string(text))
}

// pack writes bytes, which the client hands over as buffers, as {"$bytes": base64}.
func pack(value any) any {
	switch v := value.(type) {
	case types.BufferInterface:
		return map[string]any{"$bytes": base64.StdEncoding.EncodeToString(v.Bytes())}
	case map[string]any:
		packed := make(map[string]any, len(v))
		for k, inner := range v {
			packed[k] = pack(inner)
		}
		return packed
	case []any:
		packed := make([]any, len(v))
		for i, inner := range v {
			packed[i] = pack(inner)
		}
		return packed
	}
	return value
}

// unpack is the way back.
func unpack(value any) any {
	switch v := value.(type) {
	case map[string]any:
		if text, ok := v["$bytes"].(string); ok && len(v) == 1 {
			bytes, _ := base64.StdEncoding.DecodeString(text)
			return bytes
		}
		for k, inner := range v {
			v[k] = unpack(inner)
		}
	case []any:
		for i, inner := range v {
			v[i] = unpack(inner)
		}
	}
	return value
}
