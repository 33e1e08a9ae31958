package socketio

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestExtract(t *testing.T) {
	all := [][]byte{[]byte("a"), []byte("b"), []byte("c")}
	for _, tc := range []struct{ part, want, used string }{
		{`{"x":1}`, `{"x":1}`, ""},
		{`{"_placeholder":true,"num":0}`, `{"_placeholder":true,"num":0}`, "a"},
		{`[{"_placeholder":true,"num":2}]`, `[{"_placeholder":true,"num":0}]`, "c"},
		{`[{"num": 2 , "_placeholder" : true},{"_placeholder":true,"num":1},"é"]`,
			`[{"_placeholder":true,"num":0},{"_placeholder":true,"num":1},"é"]`, "cb"},
		{`{"a":{"_placeholder":true,"num":1},"b":{"_placeholder":true,"num":1}}`,
			`{"a":{"_placeholder":true,"num":0},"b":{"_placeholder":true,"num":0}}`, "b"},
		{`[{"_placeholder":true,"num":0},{"_placeholder":true,"num":1}]`, `[{"_placeholder":true,"num":0},{"_placeholder":true,"num":1}]`, "ab"},
		{`{"_placeholder":false,"num":1}`, `{"_placeholder":false,"num":1}`, ""},
		{`"{\"_placeholder\":true,\"num\":1}"`, `"{\"_placeholder\":true,\"num\":1}"`, ""},
		{`["_placeholder",true,"num",1]`, `["_placeholder",true,"num",1]`, ""},
		{`{"\u005fplaceholder":true,"n\u0075m":1}`, `{"_placeholder":true,"num":0}`, "b"},
		{`{"_placeholder":true,"num":9,"num":1.0}`, `{"_placeholder":true,"num":0}`, "b"},
		{`{"_placeholder":true,"num":1,"x":{"_placeholder":true,"num":0}}`, `{"_placeholder":true,"num":0}`, "b"},
	} {
		part, used, err := Extract([]byte(tc.part), all)
		if err != nil || string(part) != tc.want || string(joined(used)) != tc.used {
			t.Errorf("%s: got %s, %q, %v", tc.part, part, used, err)
		}
	}
	for _, bad := range []string{
		`{"_placeholder":true,"num":3}`, `{"_placeholder":true,"num":-1}`, `{"_placeholder":true}`,
		`{"_placeholder":true,"num":"1"}`, `{"_placeholder":true,"num":0.5}`, `[[{"_placeholder":true,"num":1e99}]]`,
	} {
		if _, _, err := Extract([]byte(bad), all); !errors.Is(err, ErrPlaceholder) {
			t.Errorf("%s: %v", bad, err)
		}
		if err := CheckPlaceholders([]byte(bad), 3); !errors.Is(err, ErrPlaceholder) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	deep := strings.Repeat(`{"a":`, 9_000) + `{"_placeholder":true,"num":2}` + strings.Repeat("}", 9_000)
	if part, used, err := Extract([]byte(deep), all); err != nil || len(used) != 1 || !json.Valid(part) {
		t.Error(used, err)
	}
}

func joined(parts [][]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func TestBinaryPackets(t *testing.T) {
	arg := []byte(`{"_placeholder":true,"num":0}`)
	for want, got := range map[string][]byte{
		`51-["e",{"_placeholder":true,"num":0}]`:       AppendBinaryEvent(nil, 1, "e", arg),
		`51-7["e",{"_placeholder":true,"num":0}]`:      AppendBinaryRequest(nil, 1, 7, "e", arg),
		`61-7[{"_placeholder":true,"num":0},2]`:        AppendBinaryAck(nil, 1, 7, arg, []byte("2")),
		`x51-/n,7["e",{"_placeholder":true,"num":0}]`:  InNamespace(AppendBinaryRequest([]byte("x"), 1, 7, "e", arg), 1, "/n"),
		`2/n,["e",{"_placeholder":true,"num":0}]`:      InNamespace(AppendEvent(nil, "e", arg), 0, "/n"),
		`3/n,12[{"_placeholder":true,"num":0}]`:        InNamespace(AppendAck(nil, 12, arg), 0, "/n"),
		`610-/n,0[{"_placeholder":true,"num":0},true]`: InNamespace(AppendBinaryAck(nil, 10, 0, arg, []byte("true")), 0, "/n"),
	} {
		if string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// What is extracted is complete: all its placeholders stand for what came along, and it is still JSON.
func FuzzExtract(f *testing.F) {
	for _, s := range []string{
		`{"_placeholder":true,"num":1}`, `[1,{"_placeholder":true,"num":0,"a":[{"_placeholder":true,"num":2}]}]`,
		`{"\u005fplaceholder":true,"num":1e0}`, `{"a":"\"","_placeholder":true,"num":2}`, `"x"`, `-1.5e3`, `[]`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, part []byte) {
		if end := scan(part, 0); end != len(part) {
			return
		}
		all := [][]byte{[]byte("a"), []byte("b"), []byte("c")}
		got, used, err := Extract(part, all)
		if (err == nil) != (CheckPlaceholders(part, 3) == nil) {
			t.Fatalf("%q: %v, checked otherwise", part, err)
		}
		if err != nil {
			return
		}
		if !json.Valid(got) || CheckPlaceholders(got, len(used)) != nil {
			t.Fatalf("%q: got %q with %d attachments", part, got, len(used))
		}
		if before, after := resolve(t, part, all), resolve(t, got, used); before != after {
			t.Fatalf("%q became %q: %s became %s", part, got, before, after)
		}
	})
}

// resolve puts attachments in the place of placeholders the way the stock parser does.
func resolve(t *testing.T, data []byte, attachments [][]byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Skip("numbers out of range")
	}
	var walk func(any) any
	walk = func(v any) any {
		switch v := v.(type) {
		case []any:
			for i := range v {
				v[i] = walk(v[i])
			}
		case map[string]any:
			if v["_placeholder"] == true {
				return "\x00" + string(attachments[int(v["num"].(float64))])
			}
			for k := range v {
				v[k] = walk(v[k])
			}
		}
		return v
	}
	return fmt.Sprint(walk(v))
}
