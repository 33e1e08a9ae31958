package store

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/oklog/ulid/v2"
)

// The keys of a namespace ns. Everything under {ns} shares one slot of a Redis Cluster, everything under
// {ns.0} another one, so that messages and the log may live on different nodes. Channels are spread over the
// partitions {ns.0}, {ns.1}, …; N below is the number of one.
//
//	{ns}:log                                stream  the log. One entry for each event, its fields:
//	                                                t type, s schema, u token (ULID), p token of the entry
//	                                                before ("" for the first), c command (ULID), r replica,
//	                                                k aggregates with spaces between, for people, d data (JSON)
//	{ns}:versions                           hash    aggregate → position of its last event;
//	                                                @head → position and token of the last entry of the log
//	{ns}:layout                             hash    version of the layout of all keys; oldest: the least version
//	                                                that a program must know; partitions: how many there are
//	{ns}:layout-lock                        string  who changes the layout; expires
//	{ns}:lease:<instance>                   string  the incarnation that lives; expires with its lease
//	{ns}:snapshots                          list    manifests of the snapshots (JSON), the newest first
//	{ns}:snapshot:<id>                      hash    a snapshot: number of the chunk, from 0 → chunk of the packed
//	                                                bytes; expires until its manifest is in the list
//	{ns}:keeper                             string  <instance>:<incarnation> of the replica that writes snapshots,
//	                                                trims and tidies; expires with its lease
//	{ns}:hook                               hash    room → <ms> <instance>:<incarnation> <record>: until when who
//	                                                tells the room hook of it ("0 -": nobody), and what that was told
//	{ns}:secret                             string  what replicas sign requests with that they hand to each other,
//	                                                unless --cluster-key is set
//	{ns.N}:inbox:<instance>:<incarnation>   stream  messages to one incarnation; ids are <epoch>-<n> with the
//	                                                time of the incarnation's ULID as epoch and n dense;
//	                                                one field m; an empty m fills a number and says nothing
//	{ns.N}:meta                             hash    of the partition: epoch, 8 hex digits that are made anew when it
//	                                                has lost something; seq of the last message; token of the call
//	                                                that published it; base, seq when the epoch began
//	{ns.N}:trail                            stream  calls that published in the partition: ids are <seq of the last
//	                                                message>-<token>; n, messages of it
//	{ns.N}:channel:<name>                   stream  history of a channel: ids are <seq>-<token>, one field m; expires
//	{ns.N}:state:<name>                     hash    of that history: bytes, about; trimmed, up to which seq messages
//	                                                are not in it any more; expires with it
//	{ns.N}:interest:<name>                  set     <epoch of its inbox> <instance>:<incarnation> of those whose inbox
//	                                                gets the channel's messages
//	{ns.N}:session:<pid>                    hash    name of each channel that the session has → seq after which it
//	                                                gets its messages; @epoch, which those are of; expires unless
//	                                                it is renewed
//	{ns.0}:call:<user>:<id>                 hash    a repeatable call: o owner's instance, i its incarnation,
//	                                                m method, t target, d "1" when done, r result,
//	                                                j<joiner> one field for each joiner
//	{ns.0}:ack:<user>:<peer>:<ack id>       string  the call whose request went out with that ack id, as
//	                                                <length of user>:<user><id>
//
// In the last two, % and : within user and peer are written %25 and %3A.
type keys struct {
	control                     string // prefix of what shares the slot of the log
	log, versions, lease        string
	layout, layoutLock          string
	snapshots, snapshot, keeper string
	hook, secret                string
	call, ack                   string
	data                        string // prefix of the partitions, without number and end
}

const headField = "@head"

func newKeys(namespace string) keys {
	control, data := "{"+namespace+"}:", "{"+namespace+".0}:" // calls are in partition 0
	return keys{
		control:    control,
		layout:     control + "layout",
		layoutLock: control + "layout-lock",
		log:        control + "log",
		versions:   control + "versions",
		lease:      control + "lease:",
		snapshots:  control + "snapshots",
		snapshot:   control + "snapshot:",
		keeper:     control + "keeper",
		hook:       control + "hook",
		secret:     control + "secret",
		call:       data + "call:",
		ack:        data + "ack:",
		data:       "{" + namespace + ".",
	}
}

var keyEscape = strings.NewReplacer("%", "%25", ":", "%3A")

func (k keys) snapshotOf(id string) string { return k.snapshot + id }

func (k keys) leaseOf(instance string) string { return k.lease + instance }

func (k keys) inboxOf(in Inbox) string {
	return k.inboxes(in.Partition) + in.Instance + ":" + in.Incarnation
}

func (k keys) partition(p int) string { return k.data + strconv.Itoa(p) + "}:" }

func (k keys) inboxes(p int) string { return k.partition(p) + "inbox:" }

// The id comes last and is therefore unambiguous as it is.
func (k keys) callOf(key CallKey) string {
	return k.call + keyEscape.Replace(key.User) + ":" + key.ID
}

func (k keys) ackOf(key AckKey) string {
	return k.ack + keyEscape.Replace(key.User) + ":" + keyEscape.Replace(key.Peer) + ":" +
		strconv.FormatUint(uint64(key.ID), 10)
}

func formatCallPointer(key CallKey) string {
	return strconv.Itoa(len(key.User)) + ":" + key.User + key.ID
}

func parseCallPointer(s string) (CallKey, error) {
	length, rest, ok := strings.Cut(s, ":")
	n, err := strconv.Atoi(length)
	if !ok || err != nil || n < 0 || n > len(rest) {
		return CallKey{}, fmt.Errorf("call pointer %q: %w", s, ErrDamaged)
	}
	return CallKey{User: rest[:n], ID: rest[n:]}, nil
}

// epoch is the part of all ids of the inbox that comes before the dash.
func (in Inbox) epoch() (string, error) {
	id, err := ulid.ParseStrict(in.Incarnation)
	if err != nil {
		return "", fmt.Errorf("incarnation %q: %w", in.Incarnation, err)
	}
	return strconv.FormatUint(id.Time(), 10), nil
}

const groupPrefix = "replica:"

func groupOf(instance string) string { return groupPrefix + instance }

// instanceOf is empty for a group that groupOf does not make.
func instanceOf(group string) string {
	instance, ok := strings.CutPrefix(group, groupPrefix)
	if !ok {
		return ""
	}
	return instance
}

func validNamespace(ns string) error {
	if ns == "" || strings.ContainsAny(ns, "{}: \t\r\n") {
		return fmt.Errorf("namespace %q: must be a word without braces, colons and spaces", ns)
	}
	return nil
}
