package store

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/redis/rueidis"

	"holdfast/events"
)

const (
	// KeptSnapshots is how many there are: the newest, and one to go back to should that be unusable.
	KeptSnapshots = 2

	// chunkSize is what one command carries of a snapshot: the commands of others wait for a millisecond at most.
	chunkSize = 512 << 10
	// halfWritten is how long the chunks of a snapshot that was never finished stay.
	halfWritten = 5 * time.Minute
	// maxSnapshot bounds what a manifest may claim, so that a damaged one takes no memory.
	maxSnapshot = 4 << 30
)

var (
	//go:embed snapshot_commit.lua
	snapshotCommitSource string
	//go:embed snapshot_drop.lua
	snapshotDropSource string

	snapshotCommitScript = rueidis.NewLuaScript(snapshotCommitSource)
	snapshotDropScript   = rueidis.NewLuaScript(snapshotDropSource)
)

// Snapshot is the manifest of a stored snapshot. What the bytes mean is the caller's business.
type Snapshot struct {
	ID       string          `json:"id"` // ULID
	Position events.Position `json:"position"`
	Token    ulid.ULID       `json:"token"`  // of the entry at Position
	Schema   int             `json:"schema"` // of the bytes
	Instance string          `json:"instance"`
	Time     time.Time       `json:"time"` // by the clock of the instance that wrote it
	Size     int             `json:"size"` // bytes, as given
	Packed   int             `json:"packed"`
	Chunks   int             `json:"chunks"`
	Sum      string          `json:"sum"` // SHA-256 of the packed bytes, hex

	text string // as it is stored
}

// Snapshots lists the manifests, the newest first. One that cannot be read is given without an ID; DropSnapshot
// takes it all the same.
func (s *Store) Snapshots(ctx context.Context) ([]Snapshot, error) {
	const op = "snapshots"
	res := s.do(ctx, s.client.B().Lrange().Key(s.keys.snapshots).Start(0).Stop(-1).Build())
	if err := s.check(ctx, op, res); err != nil {
		return nil, err
	}
	texts, err := res.AsStrSlice()
	if err != nil {
		return nil, malformed(op, err)
	}
	list := make([]Snapshot, len(texts))
	for i, text := range texts {
		var snap Snapshot
		if err := json.Unmarshal([]byte(text), &snap); err != nil {
			snap = Snapshot{}
		}
		snap.text = text
		list[i] = snap
	}
	return list, nil
}

// WriteSnapshot stores data under a manifest of which ID, Position, Token, Schema, Instance and Time are given, and
// returns that with the rest filled in. The chunks are written first and the manifest last, in one step with the
// removal of the snapshots beyond KeptSnapshots: what was not written to its end is never listed, and goes by
// itself. ErrNotKeeper when the keeper's lease is not (any more) the writer's: then it is not listed either.
func (s *Store) WriteSnapshot(ctx context.Context, keeper Inbox, snap Snapshot, data []byte) (Snapshot, error) {
	const op = "write snapshot"
	packed, err := pack(data)
	if err != nil {
		return snap, fmt.Errorf("store: %s: %w", op, err)
	}
	sum := sha256.Sum256(packed)
	snap.Size, snap.Packed, snap.Sum = len(data), len(packed), hex.EncodeToString(sum[:])
	snap.Chunks = (len(packed) + chunkSize - 1) / chunkSize
	key := s.keys.snapshotOf(snap.ID)
	for i := range snap.Chunks {
		chunk := packed[i*chunkSize : min((i+1)*chunkSize, len(packed))]
		bounded, cancel := s.bounded(ctx)
		answers := s.client.DoMulti(bounded,
			s.client.B().Hset().Key(key).FieldValue().FieldValue(strconv.Itoa(i), rueidis.BinaryString(chunk)).Build(),
			s.client.B().Pexpire().Key(key).Milliseconds(halfWritten.Milliseconds()).Build())
		cancel()
		for _, res := range answers {
			if err := s.check(ctx, op, res); err != nil {
				return snap, err
			}
		}
	}
	manifest, err := json.Marshal(snap)
	if err != nil {
		return snap, fmt.Errorf("store: %s: %w", op, err)
	}
	snap.text = string(manifest)
	res := s.run(ctx, snapshotCommitScript, []string{s.keys.snapshots, key, s.keys.keeper},
		[]string{snap.text, strconv.Itoa(snap.Chunks), keeper.holder(), strconv.Itoa(KeptSnapshots), s.keys.snapshot})
	if err := s.check(ctx, op, res); err != nil {
		return snap, err
	}
	state, err := res.ToString()
	switch {
	case err != nil:
		return snap, malformed(op, err)
	case state == "lost":
		return snap, fmt.Errorf("store: %s: %w", op, ErrNotKeeper)
	case state != "listed":
		return snap, fmt.Errorf("store: %s: %w: its chunks are gone", op, ErrDamaged)
	}
	return snap, nil
}

// ReadSnapshot gives the bytes of a listed snapshot. ErrDamaged when they are not those that were written.
func (s *Store) ReadSnapshot(ctx context.Context, snap Snapshot) ([]byte, error) {
	const op = "read snapshot"
	damaged := func(what string) error { return fmt.Errorf("store: %s: %w: %s", op, ErrDamaged, what) }
	if snap.ID == "" || snap.Packed < 0 || snap.Packed > maxSnapshot || snap.Size < 0 || snap.Size > maxSnapshot {
		return nil, damaged("its manifest")
	}
	// Not made at the size that is claimed: it grows with what is there.
	var packed bytes.Buffer
	for i := range snap.Chunks {
		res := s.do(ctx, s.client.B().Hget().Key(s.keys.snapshotOf(snap.ID)).Field(strconv.Itoa(i)).Build())
		if err := s.check(ctx, op, res); err != nil {
			return nil, err
		}
		chunk, err := res.AsBytes()
		if err != nil {
			return nil, damaged(fmt.Sprintf("chunk %d of %d is missing", i+1, snap.Chunks))
		}
		packed.Write(chunk)
	}
	sum := sha256.Sum256(packed.Bytes())
	if packed.Len() != snap.Packed || hex.EncodeToString(sum[:]) != snap.Sum {
		return nil, damaged("its checksum does not fit")
	}
	data := make([]byte, snap.Size)
	if _, err := io.ReadFull(flate.NewReader(&packed), data); err != nil {
		return nil, damaged("it cannot be unpacked")
	}
	return data, nil
}

// DropSnapshot takes a snapshot off the list and removes its chunks.
func (s *Store) DropSnapshot(ctx context.Context, snap Snapshot) error {
	res := s.run(ctx, snapshotDropScript, []string{s.keys.snapshots, s.keys.snapshotOf(snap.ID)}, []string{snap.text})
	return s.check(ctx, "drop snapshot", res)
}

// Holds reports whether the log as it stands goes on from an entry: that entry is in it, or the first entry after
// it names it as its predecessor, or it is the head of a log that holds nothing after it.
func (s *Store) Holds(ctx context.Context, at events.Position, token ulid.ULID) (bool, error) {
	const op = "look for an entry"
	res := s.do(ctx, s.client.B().Xrange().Key(s.keys.log).Start(at.String()).End("+").Count(1).Build())
	if err := s.check(ctx, op, res); err != nil {
		return false, err
	}
	entries, err := res.ToArray()
	if err != nil {
		return false, malformed(op, err)
	}
	if len(entries) == 0 {
		head, err := s.Head(ctx)
		return err == nil && head.Position == at && head.Token == token, err
	}
	id, fields, err := splitEntry(&entries[0])
	if err != nil {
		return false, malformed(op, err)
	}
	field := "p"
	if id == at.String() {
		field = "u"
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if name, _ := fields[i].ToString(); name == field {
			value, _ := fields[i+1].ToString()
			return value == token.String(), nil
		}
	}
	return false, nil
}

// pack favours speed: a replica that starts waits for the unpacking.
func pack(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, errors.Join(errors.New("pack"), err)
	}
	return b.Bytes(), nil
}
