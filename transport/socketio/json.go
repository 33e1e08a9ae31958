package socketio

import (
	"bytes"
	"encoding/json"
)

// maxDepth is the nesting that encoding/json takes, too.
const maxDepth = 10_000

// SplitArgs splits a JSON array into its raw elements, which alias data. The data must have been
// validated, as that of a decoded packet is; an error says that it is no array.
func SplitArgs(data []byte) ([]json.RawMessage, error) {
	if len(data) == 0 || data[0] != '[' {
		return nil, ErrPayload
	}
	return splitElements(data, skipSpace(data, 1))
}

// SplitEvent splits the data of a decoded event into its name and its raw arguments, which alias
// data. The name of an event named by a number is the number's text.
func SplitEvent(data []byte) (name string, args []json.RawMessage, err error) {
	raw, i, err := cutName(data)
	if err != nil {
		return "", nil, err
	}
	i = skipSpace(data, i)
	if i < len(data) && data[i] == ',' {
		i = skipSpace(data, i+1)
	}
	args, err = splitElements(data, i)
	return string(raw), args, err
}

// EachField calls f with the raw key, without its quotes, and the raw value of each field of an object, until f
// returns false. The object must have been validated. false: f did, or it is no object.
func EachField(object []byte, f func(key, value []byte) bool) bool {
	if len(object) == 0 || object[0] != '{' {
		return false
	}
	for i := skipSpace(object, 1); i < len(object) && object[i] == '"'; i = skipSpace(object, i+1) {
		end := skipString(object, i)
		value := skipSpace(object, min(skipSpace(object, end)+1, len(object)))
		after := skipValid(object, value)
		if end-i < 2 || after <= value || !f(object[i+1:end-1], object[value:after:after]) {
			return false
		}
		i = skipSpace(object, after)
		if i < len(object) && object[i] == '}' {
			return true
		}
	}
	return false
}

// Plain is what is between the quotes of a validated JSON value, if that is a string without escapes.
func Plain(value []byte) ([]byte, bool) {
	if len(value) < 2 || value[0] != '"' || bytes.IndexByte(value, '\\') >= 0 {
		return nil, false
	}
	return value[1 : len(value)-1], true
}

// cutName reads the first element of an event's data and returns the index after it.
func cutName(data []byte) ([]byte, int, error) {
	if len(data) == 0 || data[0] != '[' {
		return nil, 0, ErrPayload
	}
	i := skipSpace(data, 1)
	end := skipValid(data, i)
	if end <= i {
		return nil, 0, ErrPayload
	}
	raw := data[i:end]
	if raw[0] != '"' {
		return raw, end, nil
	}
	if len(raw) < 2 {
		return nil, 0, ErrPayload
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1], end, nil
	}
	var name string
	if err := json.Unmarshal(raw, &name); err != nil {
		return nil, 0, ErrPayload
	}
	return []byte(name), end, nil
}

// splitElements collects the elements of a validated array from i, the first byte of an element
// or the closing bracket.
func splitElements(data []byte, i int) ([]json.RawMessage, error) {
	if i < len(data) && data[i] == ']' {
		return nil, nil
	}
	elems := make([]json.RawMessage, 0, 2)
	for i < len(data) {
		end := skipValid(data, i)
		if end <= i {
			break
		}
		elems = append(elems, json.RawMessage(data[i:end:end]))
		i = skipSpace(data, end)
		if i >= len(data) {
			break
		}
		if data[i] == ']' {
			return elems, nil
		}
		i = skipSpace(data, i+1)
	}
	return nil, ErrPayload
}

// skipValid returns the index after the value at i of validated JSON. On other input the result
// is some index between i and len(b).
func skipValid(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = skipString(b, i)
		case '[', '{':
			depth++
			i++
			continue
		case ']', '}':
			if depth == 0 {
				return i
			}
			depth--
			i++
		case ',', ':', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
			i++
			continue
		default: // a number or a literal
			for i < len(b) && !delimiter(b[i]) {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return len(b)
}

func skipString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return len(b)
}

func delimiter(c byte) bool {
	switch c {
	case ',', ':', ']', '}', '[', '{', '"', ' ', '\t', '\r', '\n':
		return true
	}
	return false
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// scan returns the index after the JSON value that starts at i, or -1 if there is none. It takes
// what encoding/json takes, at a third of the cost, and does not recurse.
func scan(b []byte, i int) int {
	var local [64]byte
	open := local[:0] // the brackets around i
	for {
		// A value, or the first bracket of one.
		i = skipSpace(b, i)
		if i >= len(b) {
			return -1
		}
		switch c := b[i]; c {
		case '{', '[':
			if len(open) == maxDepth {
				return -1
			}
			open = append(open, c)
			i = skipSpace(b, i+1)
			if i < len(b) && b[i] == c+2 { // ']' and '}' are two after their openers
				break
			}
			if c == '{' {
				i = scanKey(b, i)
				if i < 0 {
					return -1
				}
			}
			continue
		case '"':
			i = scanString(b, i)
		case 't':
			i = scanLiteral(b, i, "true")
		case 'f':
			i = scanLiteral(b, i, "false")
		case 'n':
			i = scanLiteral(b, i, "null")
		default:
			i = scanNumber(b, i)
		}
		if i < 0 {
			return -1
		}
		// After a value: the closing brackets that follow, then a comma.
		for {
			if len(open) == 0 {
				return i
			}
			i = skipSpace(b, i)
			if i >= len(b) {
				return -1
			}
			if b[i] != open[len(open)-1]+2 {
				break
			}
			open = open[:len(open)-1]
			i++
		}
		if b[i] != ',' {
			return -1
		}
		i++
		if open[len(open)-1] == '{' {
			if i = scanKey(b, i); i < 0 {
				return -1
			}
		}
	}
}

// scanKey reads `"key":`.
func scanKey(b []byte, i int) int {
	i = skipSpace(b, i)
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	if i = scanString(b, i); i < 0 {
		return -1
	}
	i = skipSpace(b, i)
	if i >= len(b) || b[i] != ':' {
		return -1
	}
	return i + 1
}

func scanString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < ' ':
			return -1
		case c != '\\':
			continue
		}
		i++
		if i >= len(b) {
			return -1
		}
		switch b[i] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		case 'u':
			if i+4 >= len(b) {
				return -1
			}
			for _, c := range b[i+1 : i+5] {
				if !hex(c) {
					return -1
				}
			}
			i += 4
		default:
			return -1
		}
	}
	return -1
}

func hex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func scanLiteral(b []byte, i int, lit string) int {
	if len(b)-i < len(lit) || string(b[i:i+len(lit)]) != lit {
		return -1
	}
	return i + len(lit)
}

func scanNumber(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	n := digits(b[i:])
	if n == 0 || n > 1 && b[i] == '0' {
		return -1
	}
	i += n
	if i < len(b) && b[i] == '.' {
		n = digits(b[i+1:])
		if n == 0 {
			return -1
		}
		i += 1 + n
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		n = digits(b[i:])
		if n == 0 {
			return -1
		}
		i += n
	}
	return i
}
