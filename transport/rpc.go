package transport

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"holdfast/relay"
	"holdfast/replica"
	"holdfast/transport/socketio"
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

func (g *Gateway) rpcCall(m *member, args []json.RawMessage, attachments [][]byte, ack Ack) {
	req, ok := plainCall(args)
	if !ok {
		var problem string
		if req, problem = anyCall(args); problem != "" {
			fail(ack, "BAD_REQUEST", problem)
			return
		}
	}
	if len(attachments) > 0 {
		req.Params = payload(req.Params.JSON, attachments)
	}
	g.relay.Call(m.session, req, func(o relay.Outcome) {
		if o.Alone && len(o.Ack.Attachments) == 0 {
			ack.replyNow(o.Ack.JSON)
			return
		}
		ack.ReplyBinary(o.Ack.Attachments, o.Ack.JSON)
	})
}

// anyCall reads the argument of a call, or says what is wrong with it.
func anyCall(args []json.RawMessage) (req relay.Request, problem string) {
	var a callArgs
	err := argument(args, &a)
	method, isText := a.Method.(string)
	switch {
	case err == nil && !isText, method == "" && isText:
		return req, "Invalid parameters: method is required"
	case err != nil && len(args) > 0 && args[0][0] == '{':
		return req, "Invalid parameters: " + err.Error()
	case err != nil:
		return req, "Invalid parameters: method is required"
	}
	req = relay.Request{Method: method, Params: replica.Payload{JSON: a.Params}}
	if a.Timeout != nil {
		if *a.Timeout <= 0 || math.IsNaN(*a.Timeout) {
			return req, "Invalid parameters: timeout must be more than 0 ms"
		}
		req.Timeout = callTimeout(*a.Timeout)
	}
	if a.ID != nil {
		if *a.ID == "" || len(*a.ID) > relay.MaxIDBytes {
			return req, "Invalid parameters: id must have 1 to 256 bytes"
		}
		req.ID = *a.ID
	}
	return req, ""
}

// plainCall reads what nearly every call is like, at a fifth of the cost: only the keys above, written so and
// once, strings without escapes, a timeout of a few digits. false: it is not like that, and may be anything.
// The packet is valid JSON; Params aliases it.
func plainCall(args []json.RawMessage) (req relay.Request, ok bool) {
	if len(args) == 0 {
		return req, false
	}
	var method, params, timeout, id []byte
	ok = socketio.EachField(args[0], func(key, value []byte) bool {
		var field *[]byte
		switch string(key) {
		case "method":
			field = &method
		case "params":
			field = &params
		case "timeout":
			field = &timeout
		case "id":
			field = &id
		}
		if field == nil || *field != nil {
			return false
		}
		*field = value
		return true
	})
	if !ok {
		return req, false
	}
	text, ok := socketio.Plain(method)
	if !ok || len(text) == 0 {
		return req, false
	}
	req = relay.Request{Method: string(text), Params: replica.Payload{JSON: params}}
	if timeout != nil {
		ms, ok := smallNumber(timeout)
		if !ok || ms == 0 {
			return req, false
		}
		req.Timeout = callTimeout(float64(ms))
	}
	if id != nil {
		text, ok := socketio.Plain(id)
		if !ok || len(text) == 0 || len(text) > relay.MaxIDBytes {
			return req, false
		}
		req.ID = string(text)
	}
	return req, true
}

// smallNumber reads what has at most nine digits and nothing else.
func smallNumber(b []byte) (n int, ok bool) {
	if len(b) > 9 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, len(b) > 0
}

func callTimeout(ms float64) time.Duration {
	if ms < float64(relay.MaxTimeout.Milliseconds()) {
		return max(1, time.Duration(ms*float64(time.Millisecond)))
	}
	return relay.MaxTimeout
}
