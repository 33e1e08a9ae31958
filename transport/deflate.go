package transport

import (
	"compress/flate"
	"errors"
	"io"
	"time"

	"github.com/gorilla/websocket"
	"github.com/olahol/melody"
)

// deflateFrom is the size from which on a packet is compressed. Smaller ones gain little.
const deflateFrom = 1024

// pretext is an empty text frame as a client sends it. With Options.Deflate each WebSocket seems to begin with it.
//
// melody reads whole messages, and the limit that the WebSocket keeps is of compressed bytes, which inflate to a
// thousand times as many. So melody gets no message but this one. Its handler, readInflated, reads those of the client
// itself, within the limit, for as long as the connection lasts.
var pretext = []byte{textFrame, 0x80, 0, 0, 0, 0}

// deflateSlack is how much longer compressed data may be that cannot be compressed.
func deflateSlack(n int) int { return n/1000 + 64 }

// readInflated reads the client's messages until there are no more, and ends the connection at one that is too large
// or damaged. melody's next read meets the same end.
func (s *Server) readInflated(ws *melody.Session) {
	raw := ws.WebsocketConnection()
	for {
		kind, r, err := raw.NextReader()
		if err != nil {
			return // melody is told the same
		}
		message, err := io.ReadAll(io.LimitReader(r, int64(s.opt.MaxPayload)+1))
		var damaged flate.CorruptInputError
		code := 0
		switch {
		case errors.As(err, &damaged):
			carriedOf(ws).c.srv.log.Debug().Err(err).Msg("a compressed message is damaged")
			code, err = websocket.CloseInvalidFramePayloadData, websocket.ErrReadLimit
		case err != nil:
			return // as above
		case len(message) > s.opt.MaxPayload:
			code, err = websocket.CloseMessageTooBig, websocket.ErrReadLimit
		default:
			s.message(ws, kind, message)
			continue
		}
		_ = raw.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Now().Add(cutTimeout))
		if t := carriedOf(ws); t.probe == nil {
			t.c.failed(ws, err)
		}
		raw.Close()
		return
	}
}

// deflating sets whether the next packet is compressed. One packet is with the WebSocket at a time.
func (w *webSocket) deflating(packet []byte) {
	if carriedOf((*melody.Session)(w)).deflate {
		w.raw().EnableWriteCompression(len(packet) >= deflateFrom)
	}
}
