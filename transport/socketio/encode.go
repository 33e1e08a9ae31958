package socketio

import (
	"encoding/json"
	"strconv"
)

// Append adds the packet's text to dst. It is the inverse of Decode.
func (p Packet) Append(dst []byte) []byte {
	dst = append(dst, '0'+byte(p.Type))
	if p.Type == BinaryEvent || p.Type == BinaryAck {
		dst = strconv.AppendInt(dst, int64(p.Attachments), 10)
		dst = append(dst, '-')
	}
	if p.Namespace != "" && p.Namespace != "/" {
		dst = append(dst, p.Namespace...)
		dst = append(dst, ',')
	}
	if p.HasID {
		dst = strconv.AppendUint(dst, p.ID, 10)
	}
	return append(dst, p.Data...)
}

// AppendEvent adds an event of the default namespace that wants no ack: `2["name",args…]`.
// The args are raw JSON values and are not checked.
func AppendEvent(dst []byte, name string, args ...[]byte) []byte {
	return appendEventData(append(dst, '0'+byte(Event)), name, args)
}

// AppendRequest adds an event of the default namespace that wants the ack id.
func AppendRequest(dst []byte, id uint64, name string, args ...[]byte) []byte {
	dst = append(dst, '0'+byte(Event))
	dst = strconv.AppendUint(dst, id, 10)
	return appendEventData(dst, name, args)
}

// AppendAck adds an ack of the default namespace: `3id[args…]`.
func AppendAck(dst []byte, id uint64, args ...[]byte) []byte {
	dst = append(dst, '0'+byte(Ack))
	return appendAckData(strconv.AppendUint(dst, id, 10), args)
}

// AppendBinaryEvent is AppendEvent for args with placeholders of so many attachments, which must follow.
func AppendBinaryEvent(dst []byte, attachments int, name string, args ...[]byte) []byte {
	return appendEventData(appendBinaryType(dst, BinaryEvent, attachments), name, args)
}

// AppendBinaryRequest is AppendRequest for args with placeholders of so many attachments, which must follow.
func AppendBinaryRequest(dst []byte, attachments int, id uint64, name string, args ...[]byte) []byte {
	dst = strconv.AppendUint(appendBinaryType(dst, BinaryEvent, attachments), id, 10)
	return appendEventData(dst, name, args)
}

// AppendBinaryAck is AppendAck for args with placeholders of so many attachments, which must follow.
func AppendBinaryAck(dst []byte, attachments int, id uint64, args ...[]byte) []byte {
	dst = strconv.AppendUint(appendBinaryType(dst, BinaryAck, attachments), id, 10)
	return appendAckData(dst, args)
}

// InNamespace makes a packet of the default namespace, which any of the above begun at the index start has added,
// one of another.
func InNamespace(dst []byte, start int, namespace string) []byte {
	at := start + 1
	if t := Type(dst[start] - '0'); t == BinaryEvent || t == BinaryAck {
		for dst[at] != '-' {
			at++
		}
		at++
	}
	rest := string(dst[at:])
	dst = append(dst[:at], namespace...)
	dst = append(dst, ',')
	return append(dst, rest...)
}

func appendBinaryType(dst []byte, t Type, attachments int) []byte {
	dst = strconv.AppendInt(append(dst, '0'+byte(t)), int64(attachments), 10)
	return append(dst, '-')
}

func appendAckData(dst []byte, args [][]byte) []byte {
	dst = append(dst, '[')
	for i, a := range args {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, a...)
	}
	return append(dst, ']')
}

func appendEventData(dst []byte, name string, args [][]byte) []byte {
	dst = append(dst, '[')
	dst = appendString(dst, name)
	for _, a := range args {
		dst = append(dst, ',')
		dst = append(dst, a...)
	}
	return append(dst, ']')
}

// appendString adds s as a JSON string. Event names are nearly always plain.
func appendString(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			b, err := json.Marshal(s)
			if err != nil {
				panic(err) // a string always marshals
			}
			return append(dst, b...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
