package engineio

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

func TestDecode(t *testing.T) {
	for text, want := range map[string]Packet{
		"0{}":    {Type: Open, Data: []byte("{}")},
		"1":      {Type: Close, Data: []byte{}},
		"2probe": {Type: Ping, Data: []byte("probe")},
		"3":      {Type: Pong, Data: []byte{}},
		"4é":     {Type: Message, Data: []byte("é")},
		"5":      {Type: Upgrade, Data: []byte{}},
		"6":      {Type: Noop, Data: []byte{}},
	} {
		got, err := Decode([]byte(text))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
		if s := string(got.Append(nil)); s != text {
			t.Errorf("%s: appended %s", text, s)
		}
	}
	for text, want := range map[string]error{"": ErrEmpty, "7": ErrType, "b": ErrType, "abc": ErrType} {
		if _, err := Decode([]byte(text)); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", text, err, want)
		}
	}
}

func TestHandshake(t *testing.T) {
	h := Handshake{SID: "x", PingInterval: 25000, PingTimeout: 20000, MaxPayload: 1e6}
	const want = `0{"sid":"x","upgrades":[],"pingInterval":25000,"pingTimeout":20000,"maxPayload":1000000}`
	if got := string(h.Append(nil)); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	h.Upgrades = []string{"websocket"}
	got, err := DecodeHandshake(h.Append(nil)[1:])
	if err != nil || !reflect.DeepEqual(got, h) {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := DecodeHandshake([]byte("x")); err == nil {
		t.Fatal("no error")
	}
}

func TestCodes(t *testing.T) {
	for code, want := range map[Code]string{
		0: `{"code":0,"message":"Transport unknown"}`,
		1: `{"code":1,"message":"Session ID unknown"}`,
		2: `{"code":2,"message":"Bad handshake method"}`,
		3: `{"code":3,"message":"Bad request"}`,
		4: `{"code":4,"message":"Forbidden"}`,
		5: `{"code":5,"message":"Unsupported protocol version"}`,
	} {
		if got := string(code.Body()); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got := code.Status(); got != 400 && code != Forbidden || code == Forbidden && got != 403 {
			t.Errorf("%v: status %d", code, got)
		}
	}
}

func TestPayload(t *testing.T) {
	packets := []Packet{
		{Type: Message, Data: []byte("hello")},
		{Type: Message, Binary: true, Data: []byte{1, 2, 3, 4}},
		{Type: Ping, Data: []byte{}},
	}
	const want = "4hello\x1ebAQIDBA==\x1e2"
	body := AppendPayload(nil, packets...)
	if string(body) != want {
		t.Fatalf("got %q, want %q", body, want)
	}
	got, err := decodeAll(body)
	if err != nil || !reflect.DeepEqual(got, packets) {
		t.Fatalf("got %+v, %v", got, err)
	}
	for body, want := range map[string]error{
		"":        ErrEmpty,
		"4a\x1e":  ErrEmpty,
		"\x1e4a":  ErrEmpty,
		"4a\x1e9": ErrType,
	} {
		if _, err := decodeAll([]byte(body)); !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", body, err, want)
		}
	}
	for _, body := range []string{"bA", "b***", "bAQ=", "bAR=="} {
		if _, err := decodeAll([]byte(body)); err == nil {
			t.Errorf("%q: no error", body)
		}
	}
}

func decodeAll(body []byte) (packets []Packet, err error) {
	err = EachPacket(body, func(p Packet) bool { packets = append(packets, p); return true })
	return packets, err
}

func TestEachPacketStops(t *testing.T) {
	n := 0
	if err := EachPacket([]byte("1\x1e4a\x1e9"), func(Packet) bool { n++; return n < 2 }); err != nil || n != 2 {
		t.Fatal(n, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "0{}", "2probe", "4x", "b", "7"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Decode(text)
		if err == nil && !bytes.Equal(p.Append(nil), text) {
			t.Fatalf("%q: appended %q", text, p.Append(nil))
		}
	})
}

func FuzzPayload(f *testing.F) {
	for _, s := range []string{"", "4a\x1e4b", "bAQIDBA==\x1e6", "b", "\x1e", "bAQ=", "bA\nQ=="} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		packets, err := decodeAll(body)
		if err != nil {
			return
		}
		again, err := decodeAll(AppendPayload(nil, packets...))
		if err != nil || len(again) != len(packets) {
			t.Fatalf("%q: %v", body, err)
		}
		for i, p := range packets {
			q := again[i]
			if p.Type != q.Type || p.Binary != q.Binary || !bytes.Equal(p.Data, q.Data) {
				t.Fatalf("%q: got %+v, want %+v", body, q, p)
			}
		}
	})
}
