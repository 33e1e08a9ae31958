package transport

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"holdfast/relay"
)

type registerArgs struct {
	Method     string `json:"method"`
	ReplaySafe bool   `json:"replaySafe"`
}

func (g *Gateway) rpcRegister(m *member, args []json.RawMessage, ack Ack) {
	var a registerArgs
	if argument(args, &a) != nil || a.Method == "" {
		rpcError(m, "register", "Invalid method name")
		fail(ack, "BAD_REQUEST", "Invalid method name")
		return
	}
	m.change(ack, func() {
		version, err := g.rep.Register(context.Background(), m.session, a.Method, a.ReplaySafe)
		if err != nil {
			rpcError(m, "register", failWith(ack, err))
			return
		}
		m.Emit("rpc-registered", methodNotice(a.Method))
		b, _ := json.Marshal(struct {
			OK      bool   `json:"ok"`
			Version string `json:"version"`
		}{true, version.String()})
		ack.Reply(b)
	})
}

func (g *Gateway) rpcUnregister(m *member, args []json.RawMessage, ack Ack) {
	var a registerArgs
	if argument(args, &a) != nil || a.Method == "" {
		rpcError(m, "unregister", "Invalid method name")
		fail(ack, "BAD_REQUEST", "Invalid method name")
		return
	}
	m.change(ack, func() {
		if err := g.rep.Unregister(context.Background(), m.session, a.Method); err != nil {
			rpcError(m, "unregister", failWith(ack, err))
			return
		}
		m.Emit("rpc-unregistered", methodNotice(a.Method))
		ack.Reply(okAck)
	})
}

func rpcError(m *member, kind, text string) {
	b, _ := json.Marshal(struct {
		Type  string `json:"type"`
		Error string `json:"error"`
	}{kind, text})
	m.Emit("rpc-error", b)
}

func methodNotice(method string) []byte {
	b, _ := json.Marshal(struct {
		Method string `json:"method"`
	}{method})
	return b
}

type callArgs struct {
	Method  any             `json:"method"`
	Params  json.RawMessage `json:"params"`
	Timeout *float64        `json:"timeout"` // ms
	ID      *string         `json:"id"`
}

func (g *Gateway) rpcCall(m *member, args []json.RawMessage, ack Ack) {
	var a callArgs
	err := argument(args, &a)
	method, isText := a.Method.(string)
	switch {
	case err == nil && !isText, method == "" && isText:
		fail(ack, "BAD_REQUEST", "Invalid parameters: method is required")
		return
	case err != nil && len(args) > 0 && args[0][0] == '{':
		fail(ack, "BAD_REQUEST", "Invalid parameters: "+err.Error())
		return
	case err != nil:
		fail(ack, "BAD_REQUEST", "Invalid parameters: method is required")
		return
	}
	req := relay.Request{Method: method, Params: a.Params}
	if a.Timeout != nil {
		if *a.Timeout <= 0 || math.IsNaN(*a.Timeout) {
			fail(ack, "BAD_REQUEST", "Invalid parameters: timeout must be more than 0 ms")
			return
		}
		req.Timeout = relay.MaxTimeout
		if *a.Timeout < float64(relay.MaxTimeout.Milliseconds()) {
			req.Timeout = max(1, time.Duration(*a.Timeout*float64(time.Millisecond)))
		}
	}
	if a.ID != nil {
		if *a.ID == "" || len(*a.ID) > relay.MaxIDBytes {
			fail(ack, "BAD_REQUEST", "Invalid parameters: id must have 1 to 256 bytes")
			return
		}
		req.ID = *a.ID
	}
	g.relay.Call(m.session, req, func(o relay.Outcome) { ack.Reply(o.Ack) })
}
