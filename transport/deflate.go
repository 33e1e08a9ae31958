package transport

import (
	"compress/flate"
	"errors"
	"io"
	"net/http"
	"strings"
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
// or damaged. melody's next read fails as well, always: what it read would have no limit.
func (s *Server) readInflated(ws *melody.Session) {
	raw := ws.WebsocketConnection()
	for {
		kind, r, err := raw.NextReader()
		if err != nil {
			return // every later read fails with it
		}
		message, err := io.ReadAll(io.LimitReader(r, int64(s.opt.MaxPayload)+1))
		if err == nil && len(message) <= s.opt.MaxPayload {
			s.message(ws, kind, message)
			continue
		}
		s.endInflated(ws, err)
		return
	}
}

// endInflated ends the connection amid a message, which is too large if err is nil.
func (s *Server) endInflated(ws *melody.Session, err error) {
	raw := ws.WebsocketConnection()
	var closed *websocket.CloseError
	switch {
	case err == nil:
		_ = raw.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseMessageTooBig, ""), time.Now().Add(cutTimeout))
		err = websocket.ErrReadLimit
	case errors.As(err, &closed), errors.Is(err, websocket.ErrReadLimit):
		return // the WebSocket's own, with which every later read fails
	case isDamage(err):
		s.log.Debug().Err(err).Msg("a compressed message is damaged")
		_ = raw.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseInvalidFramePayloadData, ""), time.Now().Add(cutTimeout))
		err = websocket.ErrReadLimit
	}
	if t := carriedOf(ws); t.probe == nil {
		t.c.failed(ws, err)
	}
	raw.Close()
}

// isDamage tells what is wrong with compressed data from what is wrong with the connection, whose end is a CloseError.
func isDamage(err error) bool {
	var corrupt flate.CorruptInputError
	return errors.As(err, &corrupt) || errors.Is(err, io.ErrUnexpectedEOF)
}

const extensionsHeader = "Sec-WebSocket-Extensions"

// agree reports whether packets for the client may be compressed. Who wants them within a smaller window is not
// offered the extension: the compressor has one of 32 KiB.
func (s *Server) agree(r *http.Request) bool {
	offered := strings.ToLower(strings.Join(r.Header.Values(extensionsHeader), ","))
	if strings.Contains(offered, "server_max_window_bits") {
		r.Header.Del(extensionsHeader)
		return false
	}
	return s.opt.Deflate && strings.Contains(offered, "permessage-deflate")
}

// deflating sets whether the next packet is compressed. One packet is with the WebSocket at a time.
func (w *webSocket) deflating(packet []byte) {
	if carriedOf((*melody.Session)(w)).deflate {
		w.raw().EnableWriteCompression(len(packet) >= deflateFrom)
	}
}

// hold keeps the frames of a compressed message until the last of them, and writes them together. The compressor,
// which is large, is given back before that one comes: a client that is slow to read does not keep it.
func (t *carried) hold(b []byte, last bool) (int, error) {
	t.held = append(t.held, b...)
	if !last {
		return len(b), nil
	}
	all := t.held
	t.held, t.holding = nil, false
	if _, err := t.write(all); err != nil {
		return 0, err
	}
	return len(b), nil
}
