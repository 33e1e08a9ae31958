package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/oklog/ulid/v2"

	"holdfast/events"
	"holdfast/store"
)

// storedEntry is an entry as JSON, for programs and for files.
type storedEntry struct {
	Position events.Position `json:"position"`
	Time     string          `json:"time,omitempty"`
	Token    ulid.ULID       `json:"token"`
	Previous *ulid.ULID      `json:"previous,omitempty"`
	Cause    ulid.ULID       `json:"cause"`
	Replica  string          `json:"replica"`
	Touches  string          `json:"touches"`
	Type     string          `json:"type"`
	Schema   int             `json:"schema"`
	Data     json.RawMessage `json:"data,omitempty"`
	Text     *string         `json:"text,omitempty"` // instead of Data, when JSON would not give back the same bytes
	Damage   string          `json:"damage,omitempty"`
	Unknown  bool            `json:"unknown,omitempty"` // this build does not know type or schema
}

func storedOf(e store.Entry) storedEntry {
	s := storedEntry{
		Position: e.Position, Token: e.Token, Cause: e.Cause, Replica: e.Replica,
		Touches: e.Touches, Type: e.Type, Schema: e.Schema,
	}
	if !e.Previous.IsZero() {
		s.Previous = &e.Previous
	}
	if again, err := json.Marshal(json.RawMessage(e.Data)); err == nil && bytes.Equal(again, e.Data) {
		s.Data = e.Data
	} else {
		text := string(e.Data)
		s.Text = &text
	}
	if e.Damage != nil {
		s.Damage = e.Damage.Error()
	}
	return s
}

func (s storedEntry) entry() store.Entry {
	e := store.Entry{
		Position: s.Position, Token: s.Token, Cause: s.Cause, Replica: s.Replica,
		Touches: s.Touches, Type: s.Type, Schema: s.Schema, Data: s.Data,
	}
	if s.Previous != nil {
		e.Previous = *s.Previous
	}
	if s.Text != nil {
		e.Data = []byte(*s.Text)
	}
	if s.Damage != "" {
		e.Damage = fmt.Errorf("%w: %s", store.ErrDamaged, strings.TrimPrefix(s.Damage, store.ErrDamaged.Error()+": "))
	}
	return e
}

// shown is an entry as --format json prints it.
func shown(e store.Entry) storedEntry {
	s := storedOf(e)
	s.Time = clock(e.Position.Time())
	_, err := e.Record()
	s.Unknown = errors.Is(err, events.ErrUnknown)
	return s
}

// clock is a time as it can be given to --at.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// paint puts colour around text on a terminal, and leaves it as it is elsewhere.
type paint bool

const (
	red     = "31"
	green   = "32"
	yellow  = "33"
	magenta = "35"
	dim     = "2"
)

func (p paint) in(colour, text string) string {
	if !p || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// coloured says whether w is a terminal whose user wants colours (no-color.org).
func coloured(w io.Writer) paint {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return paint(err == nil && info.Mode()&os.ModeCharDevice != 0)
}

func colourOf(kind string) string {
	switch kind {
	case "replica-started", "peer-connected", "method-registered", "room-opened", "room-joined":
		return green
	case "replica-lost", "peer-gone", "peer-forgotten", "registrations-lapsed", "method-unregistered", "room-closed":
		return red
	case "replica-stopped", "replica-draining", "peer-disconnected", "room-left", "room-moved":
		return yellow
	}
	return magenta
}

// plain is text from the log as it may be written to a terminal.
func plain(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool {
		return r == ' ' || r == '"' || r == unicode.ReplacementChar || !unicode.IsPrint(r)
	}) {
		return strconv.Quote(s)
	}
	return s
}

// details are the fields of an entry's data that its subject does not tell already.
func details(e store.Entry) string {
	kind, names := events.Aggregate(subject(e)).Parts()
	told := map[string]bool{}
	switch {
	case kind == "peer" && len(names) == 2:
		told["user"], told["peer"] = true, true
	case kind == "method" && len(names) == 2:
		told["user"], told["method"] = true, true
	case kind == "incarnation":
		told["instance"] = true
	case kind == "room" && len(names) == 1:
		told["room"] = true
	}
	var parts []string
	fields, ok := fieldsOf(e.Data)
	if !ok {
		parts = append(parts, plain(string(e.Data)))
	}
	for _, f := range fields {
		if told[f.name] {
			continue
		}
		value := string(f.raw)
		var text string
		if json.Unmarshal(f.raw, &text) == nil {
			value = plain(text)
		} else if strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) {
			value = strconv.Quote(value)
		}
		parts = append(parts, plainName(f.name)+"="+value)
	}
	switch _, err := e.Record(); {
	case e.Damage != nil:
		parts = append(parts, plain("("+e.Damage.Error()+")"))
	case errors.Is(err, events.ErrUnknown):
		parts = append(parts, fmt.Sprintf("(schema %d, not known to this version)", e.Schema))
	case err != nil:
		parts = append(parts, plain("("+err.Error()+")"))
	}
	return strings.Join(parts, " ")
}

func plainName(s string) string {
	if s == "" {
		return s
	}
	return plain(s)
}

// entryPrinter writes entries one after the other, as they are read.
type entryPrinter struct {
	w      io.Writer
	json   bool
	paint  paint
	headed bool
}

func (p *entryPrinter) print(e store.Entry) error {
	if p.json {
		return writeJSON(p.w, shown(e))
	}
	if !p.headed {
		p.headed = true
		p.row("", "TIME", "POSITION", "REPLICA", "EVENT", "ABOUT", "")
	}
	p.row(colourOf(e.Type), clock(e.Position.Time()), e.Position.String(), plain(e.Replica), plain(e.Type), plain(subject(e)), details(e))
	return nil
}

func (p *entryPrinter) row(colour, at, position, replica, kind, about, details string) {
	line := p.paint.in(dim, fmt.Sprintf("%-24s  %-17s", at, position)) +
		fmt.Sprintf("  %-12s  ", replica) + p.paint.in(colour, fmt.Sprintf("%-20s", kind)) +
		fmt.Sprintf("  %-24s  %s", about, details)
	fmt.Fprintln(p.w, strings.TrimRight(line, " "))
}

func writeJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}
