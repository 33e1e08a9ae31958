package store

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"holdfast/events"
)

// MaxGroup is how many commands one call of Append takes. A script that writes cannot be stopped and holds up
// everything else in Redis, so a group has to be short: 128 commands take 2 to 3 ms.
const MaxGroup = 128

//go:embed append.lua
var appendSource string

var appendScript = rueidis.NewLuaScript(appendSource)

// Append decides a group of commands in one atomic step, one after the other: each sees what the ones before it
// have written, and is written as a whole or not at all. A refused command does not stop the later ones. There
// is one verdict for each command, in order.
//
// A group of more than MaxGroup commands, a command without events and an event that cannot be encoded are errors,
// and nothing has been written then. With ErrUnavailable, either everything that passes has been written or
// nothing: the log has the answer, under each command's ULID. With ErrNotReplicated the
// verdicts are told as well: what they call written a failover may lose.
func (s *Store) Append(ctx context.Context, fence Fence, group []Append) ([]Verdict, error) {
	const op = "append"
	if len(group) == 0 {
		return nil, nil
	}
	if len(group) > MaxGroup {
		return nil, fmt.Errorf("store: %s: %d commands, at most %d are allowed", op, len(group), MaxGroup)
	}
	args, err := s.appendArgs(fence, group)
	if err != nil {
		return nil, fmt.Errorf("store: %s: %w", op, err)
	}
	res, err := s.runAppend(ctx, op, []string{s.keys.log, s.keys.versions}, args)
	if err != nil && !errors.Is(err, ErrNotReplicated) {
		return nil, err
	}
	verdicts, malformation := parseVerdicts(res, group)
	if malformation != nil {
		return nil, malformed(op, malformation)
	}
	return verdicts, err
}

func (s *Store) runAppend(ctx context.Context, op string, keys, args []string) (rueidis.RedisResult, error) {
	if s.replicated {
		return s.appendDurable(ctx, op, keys, args)
	}
	res := s.run(ctx, appendScript, keys, args)
	return res, s.check(ctx, op, res)
}

// numbering gives each aggregate of a group a number, so that the script reads and writes each version once.
type numbering struct {
	names   []string
	numbers map[events.Aggregate]string
}

func (n *numbering) of(a events.Aggregate) string {
	number, ok := n.numbers[a]
	if !ok {
		n.names = append(n.names, string(a))
		number = strconv.Itoa(len(n.names))
		n.numbers[a] = number
	}
	return number
}

func (s *Store) appendArgs(fence Fence, group []Append) ([]string, error) {
	names := numbering{
		names:   append(make([]string, 0, 4*len(group)+2), headField),
		numbers: make(map[events.Aggregate]string, 4*len(group)+1),
	}
	fenceNumber := "0"
	if !fence.Started.IsZero() {
		fenceNumber = names.of(events.IncarnationKey(fence.Instance))
	}
	body := make([]string, 0, 20*len(group))
	for _, command := range group {
		if len(command.Events) == 0 {
			return nil, errors.New("a command without events")
		}
		body = append(body, command.Command.String(), strconv.Itoa(len(command.Checks)), strconv.Itoa(len(command.Events)), "")
		size := len(body) - 1
		for _, check := range command.Checks {
			body = append(body, names.of(check.Aggregate), versionArg(check.Version))
		}
		begin := len(body)
		for _, event := range command.Events {
			encoded, err := events.EncodeFor(event, cmp.Or(command.Generation, events.Generation))
			if err != nil {
				return nil, err
			}
			token, err := s.token()
			if err != nil {
				return nil, fmt.Errorf("token: %w", err)
			}
			writes, ends := event.Writes(), event.Ends()
			body = append(body, encoded.Type, strconv.Itoa(encoded.Schema), token.String(), touched(writes, ends),
				rueidis.BinaryString(encoded.Data))
			body = append(body, strconv.Itoa(len(writes)))
			for _, a := range writes {
				body = append(body, names.of(a))
			}
			body = append(body, strconv.Itoa(len(ends)))
			for _, a := range ends {
				body = append(body, names.of(a))
			}
		}
		body[size] = strconv.Itoa(len(body) - begin)
	}
	args := make([]string, 0, 4+len(names.names)+len(body))
	args = append(args, fence.Instance, fenceNumber, fence.Started.String(), strconv.Itoa(len(names.names)))
	args = append(args, names.names...)
	return append(args, body...), nil
}

func versionArg(p events.Position) string {
	if p.IsZero() {
		return ""
	}
	return p.String()
}

func touched(writes, ends []events.Aggregate) string {
	if len(writes) == 1 && len(ends) == 0 {
		return string(writes[0])
	}
	var b strings.Builder
	for _, list := range [2][]events.Aggregate{writes, ends} {
		for _, a := range list {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(string(a))
		}
	}
	return b.String()
}

func parseVerdicts(res rueidis.RedisResult, group []Append) ([]Verdict, error) {
	answers, err := res.ToArray()
	if err != nil {
		return nil, err
	}
	if len(answers) != len(group) {
		return nil, fmt.Errorf("%d verdicts for %d commands", len(answers), len(group))
	}
	verdicts := make([]Verdict, len(group))
	for i := range answers {
		if answers[i].IsInt64() {
			verdicts[i].Fenced = true
			continue
		}
		parts, err := answers[i].ToArray()
		if err != nil {
			return nil, err
		}
		if len(parts) == 2 && parts[0].IsInt64() {
			verdicts[i].Conflict, err = parseConflict(parts, group[i].Checks)
		} else {
			verdicts[i].Positions, err = parsePositions(parts, len(group[i].Events))
		}
		if err != nil {
			return nil, err
		}
	}
	return verdicts, nil
}

func parseConflict(parts []rueidis.RedisMessage, checks []Check) (*Conflict, error) {
	number, err := parts[0].AsInt64()
	if err != nil {
		return nil, err
	}
	if number < 1 || number > int64(len(checks)) {
		return nil, fmt.Errorf("conflict at check %d of %d", number, len(checks))
	}
	conflict := &Conflict{Check: checks[number-1]}
	actual, err := parts[1].ToString()
	if err != nil {
		return nil, err
	}
	if actual != "" {
		conflict.Actual, err = events.ParsePosition(actual)
	}
	return conflict, err
}

func parsePositions(parts []rueidis.RedisMessage, want int) ([]events.Position, error) {
	if len(parts) != want {
		return nil, fmt.Errorf("%d positions for %d events", len(parts), want)
	}
	positions := make([]events.Position, len(parts))
	for i := range parts {
		id, err := parts[i].ToString()
		if err != nil {
			return nil, err
		}
		if positions[i], err = events.ParsePosition(id); err != nil {
			return nil, err
		}
	}
	return positions, nil
}
