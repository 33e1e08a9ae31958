package cli

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"holdfast/events"
	"holdfast/projections"
	"holdfast/store"
)

// A slice is a part of a log in a file, with the state that the part follows. Its first line names the format and its
// version; the rest is gzip of lines of JSON: a header, the entries in order, and a trailer that counts and sums up
// what came before it. `tail -n +2 FILE | zcat` shows it.
const (
	sliceFormat  = "holdfast-slice"
	sliceVersion = 1
)

type sliceHeader struct {
	Exported time.Time       `json:"exported"` // by Redis's clock
	Redacted bool            `json:"redacted,omitempty"`
	After    events.Position `json:"after"` // position of State
	State    []byte          `json:"state"` // projections.Encode
}

type sliceTrailer struct {
	Entries int    `json:"entries"`
	SHA256  string `json:"sha256"`
}

var errSlice = errors.New("not a whole slice of a log")

// sliceWriter writes a slice line by line.
type sliceWriter struct {
	zip     *gzip.Writer
	sum     hash.Hash
	entries int
}

func newSliceWriter(w io.Writer, h sliceHeader) (*sliceWriter, error) {
	if _, err := fmt.Fprintf(w, "%s %d\n", sliceFormat, sliceVersion); err != nil {
		return nil, err
	}
	s := &sliceWriter{zip: gzip.NewWriter(w), sum: sha256.New()}
	return s, writeJSON(io.MultiWriter(s.zip, s.sum), h)
}

func (s *sliceWriter) add(e store.Entry) error {
	s.entries++
	return writeJSON(io.MultiWriter(s.zip, s.sum), storedOf(e))
}

func (s *sliceWriter) end() error {
	if err := writeJSON(s.zip, sliceTrailer{Entries: s.entries, SHA256: hex.EncodeToString(s.sum.Sum(nil))}); err != nil {
		return err
	}
	return s.zip.Close()
}

// exportSlice writes the entries from one position to another, both included, with the state before them. It leaves
// no half-written file, and replaces none.
func exportSlice(ctx context.Context, src source, from, to events.Position, file string, redact bool) (entries int, err error) {
	base, err := src.base(ctx, before(from))
	if err != nil {
		return 0, err
	}
	if base.Position.Before(from) {
		f := folding{state: base}
		if err := src.each(ctx, base.Position.Next(), before(from), f.apply); err != nil {
			return 0, err
		}
	}
	r := redactor{}
	header := sliceHeader{Exported: src.now(), Redacted: redact, After: base.Position}
	token := base.Token
	if redact {
		r.salt = make([]byte, 32)
		_, _ = rand.Read(r.salt) // never fails
		header.State = base.Renamed(r).Encode()
	} else {
		header.State = base.Encode()
	}
	if _, err := os.Stat(file); err == nil {
		return 0, usageError{fmt.Sprintf("--export %s: the file exists; remove it, or name another one", file)}
	}
	part, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".part-*") // only its owner may read it
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = part.Close()
		if err != nil {
			_ = os.Remove(part.Name())
		}
	}()
	buffer := bufio.NewWriterSize(part, 1<<16)
	w, err := newSliceWriter(buffer, header)
	if err != nil {
		return 0, err
	}
	at := base.Position
	err = src.each(ctx, at.Next(), to, func(e store.Entry) error {
		if e.Damage == nil && e.Previous != token {
			return fmt.Errorf("%s: %w", e.Position, brokenChain(at, e))
		}
		at, token = e.Position, e.Token
		if redact {
			e = r.entry(e)
		}
		return w.add(e)
	})
	if err != nil {
		return 0, err
	}
	if err := w.end(); err != nil {
		return 0, err
	}
	if err := buffer.Flush(); err != nil {
		return 0, err
	}
	if err := part.Close(); err != nil {
		return 0, err
	}
	return w.entries, os.Rename(part.Name(), file)
}

// fileSource is a slice. It was checked as a whole when it was opened, and is read anew for each pass.
type fileSource struct {
	file   string
	header sliceHeader
	first  *store.Entry
	count  int
}

// openSlice checks a file from its first byte to its last.
func openSlice(file string) (*fileSource, error) {
	s := &fileSource{file: file}
	err := s.read(func(h sliceHeader) { s.header = h }, func(e store.Entry) error {
		if s.first == nil {
			s.first = &e
		}
		s.count++
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

func (s *fileSource) now() time.Time { return s.header.Exported }

func (s *fileSource) base(context.Context, events.Position) (*projections.State, error) {
	if s.header.After.IsZero() { // nothing came before: that is known to every version
		return projections.New(), nil
	}
	state, err := projections.Decode(s.header.State)
	if err != nil {
		return nil, fmt.Errorf("%s: the state before its first entry cannot be read (another version of the program wrote it): %w", s.file, err)
	}
	return state, nil
}

func (s *fileSource) each(ctx context.Context, from, to events.Position, f func(store.Entry) error) error {
	stop := errors.New("enough")
	err := s.read(func(sliceHeader) {}, func(e store.Entry) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case to.Before(e.Position):
			return stop
		case e.Position.Before(from):
			return nil
		}
		return f(e)
	})
	if errors.Is(err, stop) {
		return nil
	}
	return err
}

func (s *fileSource) read(header func(sliceHeader), entry func(store.Entry) error) error {
	file, err := os.Open(s.file)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	b := bufio.NewReader(file)
	if err := readFormat(b); err != nil {
		return err
	}
	zip, err := gzip.NewReader(b)
	if err != nil {
		return fmt.Errorf("%w: %w", errSlice, err)
	}
	lines := bufio.NewReaderSize(zip, 1<<16)
	sum, entries := sha256.New(), 0
	for first := true; ; first = false {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("%w: it ends without its last line, or is damaged: %w", errSlice, err)
		}
		switch {
		case first:
			var h sliceHeader
			if err := json.Unmarshal(line, &h); err != nil {
				return fmt.Errorf("%w: header: %w", errSlice, err)
			}
			header(h)
		case bytes.HasPrefix(line, []byte(`{"entries":`)):
			return checkTrailer(line, lines, entries, sum)
		default:
			var stored storedEntry
			if err := json.Unmarshal(line, &stored); err != nil {
				return fmt.Errorf("%w: entry %d: %w", errSlice, entries+1, err)
			}
			entries++
			if err := entry(stored.entry()); err != nil {
				return err
			}
		}
		sum.Write(line)
	}
}

func readFormat(b *bufio.Reader) error {
	line, err := b.ReadSlice('\n')
	name, version, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
	if err != nil || !ok || name != sliceFormat {
		return fmt.Errorf("%w: it does not begin with %q (make one with: holdfast replay --export FILE)", errSlice, sliceFormat)
	}
	if version != strconv.Itoa(sliceVersion) {
		return fmt.Errorf("%w: its format has version %q, this program reads version %d", errSlice, version, sliceVersion)
	}
	return nil
}

func checkTrailer(line []byte, rest *bufio.Reader, entries int, sum hash.Hash) error {
	var t sliceTrailer
	if err := json.Unmarshal(line, &t); err != nil {
		return fmt.Errorf("%w: trailer: %w", errSlice, err)
	}
	if t.Entries != entries || t.SHA256 != hex.EncodeToString(sum.Sum(nil)) {
		return fmt.Errorf("%w: its checksum does not fit", errSlice)
	}
	if _, err := rest.ReadByte(); !errors.Is(err, io.EOF) { // gzip's own checksum is looked at only here
		return fmt.Errorf("%w: something follows its last line, or that is damaged", errSlice)
	}
	return nil
}
