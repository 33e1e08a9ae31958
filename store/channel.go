package store

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

var (
	//go:embed channel_mark.lua
	channelMarkSource string
	//go:embed channel_publish.lua
	channelPublishSource string
	//go:embed channel_subscribe.lua
	channelSubscribeSource string

	channelPublishScript   = rueidis.NewLuaScript(channelMarkSource + channelPublishSource)
	channelSubscribeScript = rueidis.NewLuaScript(channelMarkSource + channelSubscribeSource)
)

const (
	// MaxPublish is how many messages one call of Publish takes. The script holds up everything else in Redis.
	MaxPublish = 128
	// ChannelByte begins each channel message in an inbox: it is followed by the 8 hex digits of the epoch, the
	// sequence and the token in decimal with a dash between, a space, and the body that was published.
	ChannelByte = 0x20
	// MaxPartitions bounds the partitions of a namespace: offsets name the place in each.
	MaxPartitions = 32
	// EpochLength is that of an epoch, in hex digits.
	EpochLength = 8

	// trailCap is about how many calls of Publish the trail of a partition remembers: 10 MB. That is the time for
	// which a session can be recovered at 3,000 calls a second; after that, a loss is noticed by less.
	trailCap = "500000"

	epochField = "@epoch"
)

// Mark is a place in a partition: the sequence of a message, in the epoch in which it was given, and the token of the
// call that published it. A store that has lost its last messages gives their sequences again, with other tokens.
type Mark struct {
	Epoch string
	Seq   uint64
	Token uint32 // 0: not known
}

// Known is what the caller of a script knows of the partition. A partition that is behind it, or has another message
// there, has lost messages: it goes on under a new epoch.
type Known struct {
	Mark
	Broken bool // the caller has seen the sequence go back in this epoch
}

func (k Known) args() []string {
	var epoch [EpochLength / 2]byte
	_, _ = rand.Read(epoch[:])
	broken := ""
	if k.Broken {
		broken = "1"
	}
	return []string{hex.EncodeToString(epoch[:]), k.Epoch, strconv.FormatUint(k.Seq, 10), formatToken(k.Token), broken}
}

func formatToken(t uint32) string { return strconv.FormatUint(uint64(t), 10) }

// newToken is never 0.
func newToken() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:])
	return max(1, binary.BigEndian.Uint32(b[:]))
}

// Publication is a message to a channel. The body must say by itself how long it is: an inbox joins messages.
type Publication struct {
	Channel string
	Body    []byte
}

// Histories says what the channels' histories keep.
type Histories struct {
	Messages int           // so many at least, of each channel
	Bytes    int           // so many at most, about, of each channel; goes before Messages
	Life     time.Duration // after the channel's last message
	Session  time.Duration // how long a session's record lasts after it was last renewed
}

// PartitionOf is the partition of a channel.
func PartitionOf(channel string, partitions int) int {
	if partitions <= 1 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(channel))
	return int(h.Sum32() % uint32(partitions))
}

// ClaimPartitions says how many partitions the namespace has: as many as stored, or else n from now on.
func (s *Store) ClaimPartitions(ctx context.Context, n int) (int, error) {
	const op = "claim partitions"
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res := s.client.DoMulti(ctx,
		s.client.B().Hsetnx().Key(s.keys.layout).Field("partitions").Value(strconv.Itoa(n)).Build(),
		s.client.B().Hget().Key(s.keys.layout).Field("partitions").Build())
	for _, r := range res {
		if err := s.check(ctx, op, r); err != nil {
			return 0, err
		}
	}
	text, err := res[1].ToString()
	if err != nil {
		return 0, malformed(op, err)
	}
	stored, err := strconv.Atoi(text)
	if err != nil || stored < 1 {
		return 0, fmt.Errorf("store: %s: %w: %s has %q partitions", op, ErrDamaged, s.keys.layout, text)
	}
	return stored, nil
}

// Publish numbers messages of one partition, in order, and puts them into their channels' histories and into the
// inboxes of the interested incarnations, in one atomic step. It returns the mark of the last message; the others
// have the numbers before it. After ErrUnavailable without ErrRefused, all of them may have been published, or none.
func (s *Store) Publish(ctx context.Context, p int, known Known, keep Histories, batch []Publication) (Mark, error) {
	const op = "publish"
	if len(batch) == 0 || len(batch) > MaxPublish {
		return Mark{}, fmt.Errorf("store: %s: %d messages, 1 to %d are allowed", op, len(batch), MaxPublish)
	}
	prefix := s.keys.partition(p)
	keys := append(make([]string, 0, 2+3*len(batch)), prefix+"meta", prefix+"trail")
	args := append(make([]string, 0, 13+2*len(batch)), known.args()...)
	args = append(args, strconv.Itoa(keep.Messages), strconv.Itoa(keep.Bytes), millis(keep.Life), s.keys.inboxes(p), inboxCap,
		string(rune(ChannelByte)), formatToken(newToken()), trailCap)
	numbers := make(map[string]string, len(batch))
	for _, m := range batch {
		number, ok := numbers[m.Channel]
		if !ok {
			number = strconv.Itoa(len(numbers) + 1)
			numbers[m.Channel] = number
			keys = append(keys, prefix+"channel:"+m.Channel, prefix+"state:"+m.Channel, prefix+"interest:"+m.Channel)
		}
		args = append(args, number, rueidis.BinaryString(m.Body))
	}
	res := s.run(ctx, channelPublishScript, keys, args)
	if err := s.check(ctx, op, res); err != nil {
		return Mark{}, err
	}
	parts, err := res.AsStrSlice()
	if err != nil {
		return Mark{}, malformed(op, err)
	}
	mark, err := parseMark(parts)
	if err != nil {
		return Mark{}, malformed(op, err)
	}
	return mark, nil
}

func parseMark(parts []string) (Mark, error) {
	if len(parts) < 3 {
		return Mark{}, fmt.Errorf("%d parts", len(parts))
	}
	seq, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return Mark{}, err
	}
	token, err := strconv.ParseUint(parts[2], 10, 32)
	return Mark{Epoch: parts[0], Seq: seq, Token: uint32(token)}, err
}

// SubscribeMode says from where on a session gets channels.
type SubscribeMode string

// The modes.
const (
	SubscribeNew  SubscribeMode = "new"  // from now on
	SubscribeBase SubscribeMode = "base" // from the beginning of the epoch on
	SubscribeKeep SubscribeMode = "keep" // as its record says; without one of this epoch nothing is done
	SubscribeNone SubscribeMode = "none" // there is no session, only the incarnation is interested
)

// Subscribed is the answer to Subscribe.
type Subscribed struct {
	Mark          // the last message of the partition
	Base   uint64 // where the epoch began
	Done   bool
	Record map[string]uint64 // with SubscribeKeep: the session's channels, and the sequences after which it gets them
}

// Subscribe makes an incarnation interested in channels of one partition, and notes in the session's record from
// where on it gets them, in one atomic step with the answer: every later message is in the incarnation's inbox. A
// record of another epoch is replaced.
func (s *Store) Subscribe(ctx context.Context, who Inbox, known Known, mode SubscribeMode, pid string, channels []string, life time.Duration) (Subscribed, error) {
	const op = "subscribe"
	member, err := who.member()
	if err != nil {
		return Subscribed{}, fmt.Errorf("store: %s: %w", op, err)
	}
	prefix := s.keys.partition(who.Partition)
	keys := append(make([]string, 0, 3+len(channels)), prefix+"meta", prefix+"trail", prefix+"session:"+pid)
	args := append(make([]string, 0, 8+len(channels)), known.args()...)
	args = append(args, string(mode), millis(life), member)
	for _, name := range channels {
		keys = append(keys, prefix+"interest:"+name)
		args = append(args, name)
	}
	res := s.run(ctx, channelSubscribeScript, keys, args)
	if err := s.check(ctx, op, res); err != nil {
		return Subscribed{}, err
	}
	parts, err := res.ToArray()
	if err != nil {
		return Subscribed{}, malformed(op, err)
	}
	got, err := parseSubscribed(parts)
	if err != nil {
		return Subscribed{}, malformed(op, err)
	}
	return got, nil
}

func parseSubscribed(parts []rueidis.RedisMessage) (Subscribed, error) {
	if len(parts) < 5 {
		return Subscribed{}, fmt.Errorf("%d parts", len(parts))
	}
	texts := make([]string, len(parts))
	for i := range parts {
		var err error
		if i == 4 {
			continue
		}
		if texts[i], err = parts[i].ToString(); err != nil {
			return Subscribed{}, err
		}
	}
	mark, err := parseMark(texts)
	if err != nil {
		return Subscribed{}, err
	}
	done, err := parts[4].AsInt64()
	if err != nil {
		return Subscribed{}, err
	}
	got := Subscribed{Mark: mark, Done: done == 1}
	if got.Base, err = strconv.ParseUint(texts[3], 10, 64); err != nil {
		return Subscribed{}, err
	}
	if len(texts) > 5 {
		_, got.Record, err = parseRecord(texts[5:])
	}
	return got, err
}

// parseRecord reads fields and values of a session.
func parseRecord(list []string) (epoch string, record map[string]uint64, err error) {
	record = make(map[string]uint64, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		if list[i] == epochField {
			epoch = list[i+1]
			continue
		}
		if record[list[i]], err = strconv.ParseUint(list[i+1], 10, 64); err != nil {
			return "", nil, fmt.Errorf("%w: session: %w", ErrDamaged, err)
		}
	}
	return epoch, record, nil
}

// Unsubscribe takes a channel out of the record of a session.
func (s *Store) Unsubscribe(ctx context.Context, p int, pid, channel string) error {
	return s.check(ctx, "unsubscribe", s.do(ctx, s.client.B().Hdel().Key(s.keys.partition(p)+"session:"+pid).Field(channel).Build()))
}

// Uninterest ends the interest of an incarnation in channels of one partition.
func (s *Store) Uninterest(ctx context.Context, who Inbox, channels []string) error {
	const op = "uninterest"
	member, err := who.member()
	if err != nil {
		return fmt.Errorf("store: %s: %w", op, err)
	}
	cmds := make(rueidis.Commands, len(channels))
	for i, name := range channels {
		cmds[i] = s.client.B().Srem().Key(s.keys.partition(who.Partition) + "interest:" + name).Member(member).Build()
	}
	return s.all(ctx, op, cmds)
}

func (s *Store) all(ctx context.Context, op string, cmds rueidis.Commands) error {
	if len(cmds) == 0 {
		return nil
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	for _, res := range s.client.DoMulti(ctx, cmds...) {
		if err := s.check(ctx, op, res); err != nil {
			return err
		}
	}
	return nil
}

// RenewSessions has the records of sessions last again for life.
func (s *Store) RenewSessions(ctx context.Context, p int, pids []string, life time.Duration) error {
	cmds := make(rueidis.Commands, len(pids))
	for i, pid := range pids {
		cmds[i] = s.client.B().Pexpire().Key(s.keys.partition(p) + "session:" + pid).Milliseconds(max(1, life.Milliseconds())).Build()
	}
	return s.all(ctx, "renew sessions", cmds)
}

// DropSessions removes the records of sessions.
func (s *Store) DropSessions(ctx context.Context, p int, pids []string) error {
	cmds := make(rueidis.Commands, len(pids))
	for i, pid := range pids {
		cmds[i] = s.client.B().Unlink().Key(s.keys.partition(p) + "session:" + pid).Build()
	}
	return s.all(ctx, "drop sessions", cmds)
}

// SessionRecord is what a partition knows of a session.
type SessionRecord struct {
	Other    bool              // the partition has another message at the place that was asked about
	Mark                       // of the partition; no epoch: nothing was ever in it
	Epoch    string            // of the record; empty: there is none
	Channels map[string]uint64 // name → sequence after which the session gets it
}

// Session reads the record of a session in one partition, and looks whether a mark is one of this history, as far back
// as that is remembered. It changes nothing.
func (s *Store) Session(ctx context.Context, p int, pid string, at Mark) (SessionRecord, error) {
	const op = "session"
	prefix := s.keys.partition(p)
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	res := s.client.DoMulti(ctx,
		s.client.B().Hgetall().Key(prefix+"session:"+pid).Build(),
		metaOf(s, prefix),
		trailOf(s, prefix, at))
	for _, r := range res {
		if err := s.check(ctx, op, r); err != nil {
			return SessionRecord{}, err
		}
	}
	fields, err := res[0].AsStrMap()
	if err != nil {
		return SessionRecord{}, malformed(op, err)
	}
	list := make([]string, 0, 2*len(fields))
	for field, value := range fields {
		list = append(list, field, value)
	}
	var rec SessionRecord
	if rec.Epoch, rec.Channels, err = parseRecord(list); err != nil {
		return SessionRecord{}, fmt.Errorf("store: %s: %w", op, err)
	}
	if rec.Mark, err = metaMark(res[1]); err != nil {
		return SessionRecord{}, malformed(op, err)
	}
	if at.Epoch == rec.Mark.Epoch && at.Token != 0 {
		if rec.Other, err = another(res[2], at); err != nil {
			return SessionRecord{}, malformed(op, err)
		}
	}
	return rec, nil
}

// another reads from the first entry of the trail that is not before a mark whether it denies that.
func another(res rueidis.RedisResult, at Mark) (bool, error) {
	entries, err := res.ToArray()
	if err != nil || len(entries) == 0 {
		return false, err
	}
	id, fields, err := splitEntry(&entries[0])
	if err != nil || len(fields) != 2 {
		return false, fmt.Errorf("trail %s: %w", id, err)
	}
	last, token, err := parseStreamID(id)
	if err != nil {
		return false, err
	}
	count, err := fields[1].AsUint64()
	return at.Seq+count > last && token != at.Token, err
}

// parseStreamID reads the id of a message in a history or of a call in the trail.
func parseStreamID(id string) (seq uint64, token uint32, err error) {
	number, rest, _ := strings.Cut(id, "-")
	if seq, err = strconv.ParseUint(number, 10, 64); err != nil {
		return 0, 0, err
	}
	t, err := strconv.ParseUint(rest, 10, 32)
	return seq, uint32(t), err
}

func metaOf(s *Store, prefix string) rueidis.Completed {
	return s.client.B().Hmget().Key(prefix+"meta").Field("epoch", "seq", "token").Build()
}

// trailOf reads the call that published the message of a mark, or the first one after it.
func trailOf(s *Store, prefix string, at Mark) rueidis.Completed {
	return s.client.B().Xrange().Key(prefix + "trail").Start(strconv.FormatUint(at.Seq, 10) + "-0").End("+").Count(1).Build()
}

func metaMark(res rueidis.RedisResult) (Mark, error) {
	parts, err := res.ToArray()
	if err != nil || len(parts) != 3 {
		return Mark{}, fmt.Errorf("%d parts: %w", len(parts), err)
	}
	texts := []string{"", "", "0"}
	for i := range parts {
		if parts[i].IsNil() {
			if i < 2 {
				return Mark{}, nil
			}
			continue
		}
		if texts[i], err = parts[i].ToString(); err != nil {
			return Mark{}, err
		}
	}
	return parseMark(texts)
}

// Look reads the mark of a partition, and whether the partition has lost messages since it had these marks of one epoch:
// it is behind one, has another message there as far as that is remembered, or another epoch. It changes nothing.
func (s *Store) Look(ctx context.Context, p int, seen ...Mark) (at Mark, lost bool, err error) {
	const op = "look"
	prefix := s.keys.partition(p)
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	cmds := append(make(rueidis.Commands, 0, 1+len(seen)), metaOf(s, prefix))
	for _, m := range seen {
		cmds = append(cmds, trailOf(s, prefix, m))
	}
	res := s.client.DoMulti(ctx, cmds...)
	for _, r := range res {
		if err := s.check(ctx, op, r); err != nil {
			return at, false, err
		}
	}
	if at, err = metaMark(res[0]); err != nil {
		return at, false, malformed(op, err)
	}
	for i, m := range seen {
		other := m.Epoch != at.Epoch || m.Seq > at.Seq
		if !other && m.Token != 0 {
			if other, err = another(res[1+i], m); err != nil {
				return at, false, malformed(op, err)
			}
		}
		lost = lost || other
	}
	return at, lost, nil
}

// BeatInbox looks after an inbox of another partition than Beat does, which beats for partition 0. It returns the
// entries in the inbox, and whether it had vanished.
func (s *Store) BeatInbox(ctx context.Context, in Inbox, consumed uint64) (depth int64, healed bool, err error) {
	const op = "beat inbox"
	clock, err := in.epoch()
	if err != nil {
		return 0, false, fmt.Errorf("store: %s: %w", op, err)
	}
	res := s.run(ctx, inboxBeatScript, []string{s.keys.inboxOf(in)}, []string{clock, strconv.FormatUint(consumed+1, 10)})
	if err := s.check(ctx, op, res); err != nil {
		return 0, false, err
	}
	parts, err := res.AsIntSlice()
	if err != nil || len(parts) != 2 {
		return 0, false, malformed(op, fmt.Errorf("%d parts: %w", len(parts), err))
	}
	return parts[1], parts[0] == 1, nil
}

// member names the incarnation in an interest set, with what the ids of its inbox begin with.
func (in Inbox) member() (string, error) {
	clock, err := in.epoch()
	if err != nil {
		return "", err
	}
	return clock + " " + in.Instance + ":" + in.Incarnation, nil
}
