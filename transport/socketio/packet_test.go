package socketio

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestDecode(t *testing.T) {
	for _, tc := range []struct {
		text string
		want Packet
	}{
		{`0`, Packet{Type: Connect, Namespace: "/"}},
		{`0{}`, Packet{Type: Connect, Namespace: "/", Data: raw(`{}`)}},
		{`0/custom`, Packet{Type: Connect, Namespace: "/custom"}},
		{`0/custom,`, Packet{Type: Connect, Namespace: "/custom"}},
		{`0/,{"a":1}`, Packet{Type: Connect, Namespace: "/", Data: raw(`{"a":1}`)}},
		{`0/custom,{"a":1}`, Packet{Type: Connect, Namespace: "/custom", Data: raw(`{"a":1}`)}},
		{`1`, Packet{Type: Disconnect, Namespace: "/"}},
		{`1/custom,`, Packet{Type: Disconnect, Namespace: "/custom"}},
		{`2["e"]`, Packet{Type: Event, Namespace: "/", Data: raw(`["e"]`)}},
		{`2[ "e" , 1 ] `, Packet{Type: Event, Namespace: "/", Data: raw(`[ "e" , 1 ]`)}},
		{`2[1,"x"]`, Packet{Type: Event, Namespace: "/", Data: raw(`[1,"x"]`)}},
		{`20["e"]`, Packet{Type: Event, Namespace: "/", HasID: true, Data: raw(`["e"]`)}},
		{`2/a,12["e"]`, Packet{Type: Event, Namespace: "/a", ID: 12, HasID: true, Data: raw(`["e"]`)}},
		{`29007199254740992["e"]`, Packet{Type: Event, Namespace: "/", ID: MaxID, HasID: true, Data: raw(`["e"]`)}},
		{`31[]`, Packet{Type: Ack, Namespace: "/", ID: 1, HasID: true, Data: raw(`[]`)}},
		{`4{"message":"m"}`, Packet{Type: ConnectError, Namespace: "/", Data: raw(`{"message":"m"}`)}},
		{`4/a,"m"`, Packet{Type: ConnectError, Namespace: "/a", Data: raw(`"m"`)}},
		{`51-["e",{"_placeholder":true,"num":0}]`, Packet{Type: BinaryEvent, Namespace: "/", Attachments: 1, Data: raw(`["e",{"_placeholder":true,"num":0}]`)}},
		{`510-/a,3["e"]`, Packet{Type: BinaryEvent, Namespace: "/a", Attachments: 10, ID: 3, HasID: true, Data: raw(`["e"]`)}},
		{`511-["e"]`, Packet{Type: BinaryEvent, Namespace: "/", Attachments: 11, Data: raw(`["e"]`)}},
		{`610000-7[1]`, Packet{Type: BinaryAck, Namespace: "/", Attachments: MaxAnnounced, ID: 7, HasID: true, Data: raw(`[1]`)}},
		{`50-["e"]`, Packet{Type: BinaryEvent, Namespace: "/", Data: raw(`["e"]`)}},
		{`62-4[1]`, Packet{Type: BinaryAck, Namespace: "/", Attachments: 2, ID: 4, HasID: true, Data: raw(`[1]`)}},
		{"2[\"\\ud800\",\"é\u2028\"]", Packet{Type: Event, Namespace: "/", Data: raw("[\"\\ud800\",\"é\u2028\"]")}},
	} {
		got, err := Decode([]byte(tc.text))
		if err != nil || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %+v, %v, want %+v", tc.text, got, err, tc.want)
			continue
		}
		again, err := Decode(got.Append(nil))
		if err != nil || !reflect.DeepEqual(again, tc.want) {
			t.Errorf("%s: appended and decoded: %+v, %v", tc.text, again, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for text, want := range map[string]error{
		``:                        ErrType,
		`7`:                       ErrType,
		`x`:                       ErrType,
		"2[\"\xff\"]":             ErrUTF8,
		`0[]`:                     ErrPayload,
		`0"x"`:                    ErrPayload,
		`0null`:                   ErrPayload,
		`01{}`:                    ErrID,
		`01`:                      ErrID,
		`1{}`:                     ErrPayload,
		`2`:                       ErrPayload,
		`2{}`:                     ErrPayload,
		`2[]`:                     ErrPayload,
		`2[ ]`:                    ErrPayload,
		`2[null]`:                 ErrPayload,
		`2[{}]`:                   ErrPayload,
		`2[["e"]]`:                ErrPayload,
		`2"e"`:                    ErrPayload,
		`2["e"`:                   ErrJSON,
		`2["e"]]`:                 ErrJSON,
		`2["e"]["e"]`:             ErrJSON,
		`2["e",]`:                 ErrJSON,
		`2["e",01]`:               ErrJSON,
		`2abc["e"]`:               ErrJSON,
		`2-1["e"]`:                ErrJSON,
		`21.5["e"]`:               ErrJSON,
		`2/a["e"]`:                ErrPayload, // all of it is the namespace
		`2/a,b["e"]`:              ErrJSON,
		`29007199254740993["e"]`:  ErrID,
		`212345678901234567["e"]`: ErrID,
		`3[]`:                     ErrID,
		`31{}`:                    ErrPayload,
		`31`:                      ErrPayload,
		`4`:                       ErrPayload,
		`4[]`:                     ErrPayload,
		`4/a,1{}`:                 ErrID,
		`5["e"]`:                  ErrAttachments,
		`5-["e"]`:                 ErrAttachments,
		`51["e"]`:                 ErrAttachments,
		`510001-["e"]`:            ErrAttachments,
		`5100000-["e"]`:           ErrAttachments,
		`5000011-["e"]`:           ErrAttachments,
		`511-{}`:                  ErrPayload,
		`5x-["e"]`:                ErrAttachments,
		`51-{}`:                   ErrPayload,
		`61-[]`:                   ErrID,
		`2["e",` + strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth) + `]`: ErrJSON,
	} {
		if _, err := Decode([]byte(text)); !errors.Is(err, want) {
			t.Errorf("%.40s: got %v, want %v", text, err, want)
		}
	}
}

func TestDecodeFromClient(t *testing.T) {
	for text, want := range map[string]error{
		`2["e"]`:                    nil,
		`2["Connect"]`:              nil,
		`2[1]`:                      nil,
		`2["message","connect"]`:    nil,
		`0{}`:                       nil,
		`4{"message":"m"}`:          ErrDirection,
		`2["connect"]`:              ErrReserved,
		`2["connect_error"]`:        ErrReserved,
		`2["disconnect"]`:           ErrReserved,
		`2["disconnecting"]`:        ErrReserved,
		`2["newListener"]`:          ErrReserved,
		`2["removeListener"]`:       ErrReserved,
		`2["\u0064isconnect",1]`:    ErrReserved,
		`51-["disconnect",{"a":1}]`: ErrReserved,
		`2[]`:                       ErrPayload,
	} {
		if _, err := DecodeFromClient([]byte(text)); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", text, err, want)
		}
	}
}

func TestAppend(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{string(AppendEvent(nil, "e")), `2["e"]`},
		{string(AppendEvent([]byte("4"), "e", raw(`1`), raw(`{"a":"b"}`))), `42["e",1,{"a":"b"}]`},
		{string(AppendRequest(nil, 7, "e", raw(`1`))), `27["e",1]`},
		{string(AppendAck(nil, 0)), `30[]`},
		{string(AppendAck(nil, MaxID, raw(`1`), raw(`2`))), `39007199254740992[1,2]`},
		{string(AppendEvent(nil, `q"\`+"\n")), `2["q\"\\\n"]`},
		{string(AppendEvent(nil, "é")), `2["é"]`},
		{string(Packet{Type: Connect}.Append(nil)), `0`},
		{string(Packet{Type: ConnectError, Namespace: "/a", Data: raw(`{}`)}.Append(nil)), `4/a,{}`},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}

func TestSplit(t *testing.T) {
	for data, want := range map[string][]string{
		`[]`:                         nil,
		` []`:                        {"error"},
		`[ ]`:                        nil,
		`[1]`:                        {`1`},
		`["a]\"",[1,[2]],{"k":"}"}]`: {`"a]\""`, `[1,[2]]`, `{"k":"}"}`},
		"[ 1 ,\n-2.5e3\t, null ]":    {`1`, `-2.5e3`, `null`},
		`{}`:                         {"error"},
		``:                           {"error"},
	} {
		elems, err := SplitArgs([]byte(data))
		var got []string
		if err != nil {
			got = []string{"error"}
		}
		for _, e := range elems {
			got = append(got, string(e))
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %q, want %q", data, got, want)
		}
	}
	for data, want := range map[string]string{
		`["e"]`:             "e []",
		`["e",1]`:           "e [1]",
		`[ "e" , [1] , 2 ]`: "e [[1] 2]",
		`["\u0065\n"]`:      "e\n []",
		`[12,1]`:            "12 [1]",
	} {
		name, args, err := SplitEvent([]byte(data))
		if err != nil {
			t.Errorf("%s: %v", data, err)
			continue
		}
		got := name + " ["
		for i, a := range args {
			if i > 0 {
				got += " "
			}
			got += string(a)
		}
		if got += "]"; got != want {
			t.Errorf("%s: got %q, want %q", data, got, want)
		}
	}
}

// Whoever appends to an argument must not overwrite the next one.
func TestSplitArgsDoNotOverlap(t *testing.T) {
	data := []byte(`[1,2]`)
	elems, err := SplitArgs(data)
	if err != nil {
		t.Fatal(err)
	}
	_ = append(elems[0], 'x')
	if string(data) != `[1,2]` {
		t.Fatalf("overwritten: %s", data)
	}
}

func raw(s string) json.RawMessage { return json.RawMessage(s) }
