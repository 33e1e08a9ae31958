package socketio

import (
	"encoding/json"
	"errors"
	"strconv"
)

// ErrPlaceholder is the answer to JSON that stands for an attachment which did not come with it.
var ErrPlaceholder = errors.New("socket.io: placeholder without attachment")

// placeholder is an object {"_placeholder":true,"num":N}, from start to end.
type placeholder struct {
	start, end, num int
}

// CheckPlaceholders reports whether all placeholders in validated JSON stand for one of so many attachments.
func CheckPlaceholders(data []byte, attachments int) error {
	return eachPlaceholder(data, func(p placeholder) error {
		if p.num < 0 || p.num >= attachments {
			return ErrPlaceholder
		}
		return nil
	})
}

// Extract makes a part of a packet's validated JSON complete in itself: the attachments that it stands for, in the
// order of their first use, and the JSON with placeholders renumbered for them. The JSON is returned as it is
// where that holds already.
func Extract(part []byte, attachments [][]byte) ([]byte, [][]byte, error) {
	if len(attachments) == 0 {
		return part, nil, nil
	}
	var found []placeholder
	same := true // as part, once all is renumbered
	err := eachPlaceholder(part, func(p placeholder) error {
		if p.num < 0 || p.num >= len(attachments) {
			return ErrPlaceholder
		}
		for len(found) > 0 && found[len(found)-1].start > p.start {
			found, same = found[:len(found)-1], false // it is within this one, where nobody looks for it
		}
		found = append(found, p)
		return nil
	})
	if err != nil || len(found) == 0 {
		return part, nil, err
	}
	var used [][]byte
	number := make([]int, len(attachments)) // what each is in used, plus 1
	for _, p := range found {
		if number[p.num] == 0 {
			used = append(used, attachments[p.num])
			number[p.num] = len(used)
		}
		same = same && number[p.num] == p.num+1
	}
	if same {
		return part, used, nil
	}
	out, at := make([]byte, 0, len(part)+len(found)), 0
	for _, p := range found {
		out = append(out, part[at:p.start]...)
		out = append(out, `{"_placeholder":true,"num":`...)
		out = strconv.AppendInt(out, int64(number[p.num]-1), 10)
		out = append(out, '}')
		at = p.end
	}
	return append(out, part[at:]...), used, nil
}

// level is an array or object that is open.
type level struct {
	start  int
	object bool
	marked bool // "_placeholder" is true
	num    int  // -1: there is none that counts
}

// eachPlaceholder calls f for each placeholder of validated JSON, in the order of their ends, until f fails. What
// is one is decided as the stock parser does: the last of equal keys counts.
func eachPlaceholder(data []byte, f func(placeholder) error) error {
	var open []level
	for i := 0; i < len(data); {
		switch data[i] {
		case '{', '[':
			open = append(open, level{start: i, object: data[i] == '{', num: -1})
			i++
		case '}', ']':
			if len(open) == 0 {
				return ErrPayload
			}
			l := open[len(open)-1]
			open = open[:len(open)-1]
			i++
			if l.marked {
				if err := f(placeholder{l.start, i, l.num}); err != nil {
					return err
				}
			}
		case '"':
			end := skipString(data, i)
			colon := skipSpace(data, end)
			if colon >= len(data) || data[colon] != ':' || len(open) == 0 || !open[len(open)-1].object {
				i = end
				continue
			}
			l, value := &open[len(open)-1], skipSpace(data, colon+1)
			switch key(data[i:end]) {
			case "_placeholder":
				l.marked = value < len(data) && data[value] == 't'
			case "num":
				l.num = index(data[value:])
			}
			i = value
		default:
			i++
		}
	}
	return nil
}

// key is the text of a key, if it may be one of a placeholder's.
func key(raw []byte) string {
	const longest = len(`"_placeholder"`)
	switch n := len(raw); {
	case n == longest && string(raw) == `"_placeholder"`:
		return "_placeholder"
	case n == len(`"num"`) && string(raw) == `"num"`:
		return "num"
	case n > len(`"num"`) && n <= 6*longest:
		for _, c := range raw {
			if c == '\\' {
				var text string
				_ = json.Unmarshal(raw, &text) // then it is neither
				return text
			}
		}
	}
	return ""
}

// index reads the number that b begins with, as far as it can be that of an attachment; else -1.
func index(b []byte) int {
	end := 0
	for end < len(b) && !delimiter(b[end]) {
		end++
	}
	f, err := strconv.ParseFloat(string(b[:min(end, 32)]), 64)
	if err != nil || end > 32 || f < 0 || f > MaxAttachments || f != float64(int(f)) {
		return -1
	}
	return int(f)
}
