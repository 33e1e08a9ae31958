package cli

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"holdfast/events"
)

// moment names a place in a log: a position, a time, or a time before now. The zero moment names none.
type moment struct {
	text string
	at   events.Position // when exact
	time time.Time       // when neither exact nor zero
	ago  time.Duration   // else

	exact bool
}

func parseMoment(text string) (moment, error) {
	m := moment{text: text}
	if ago, ok := strings.CutPrefix(text, "-"); ok {
		d, err := time.ParseDuration(ago)
		if err == nil && d >= 0 {
			m.ago = d
			return m, nil
		}
	} else if p, err := events.ParsePosition(text); err == nil {
		m.at, m.exact = p, true
		return m, nil
	} else if t, err := time.Parse(time.RFC3339Nano, text); err == nil && t.UnixMilli() >= 0 {
		m.time = t
		return m, nil
	}
	return moment{}, fmt.Errorf("%q is no moment: want a time such as 2006-01-02T15:04:05Z, a position such as 1136214245000-0, or a time ago such as -1h", text)
}

// Decode takes the next word whatever it begins with: -1h is no flag here.
func (m *moment) Decode(ctx *kong.DecodeContext) error {
	parsed, err := parseMoment(fmt.Sprint(ctx.Scan.Pop().Value))
	if err == nil {
		*m = parsed
	}
	return err
}

func (m moment) String() string { return m.text }

func (m moment) isZero() bool { return m.text == "" }

// first is the lowest position that is not before the moment.
func (m moment) first(now time.Time) events.Position {
	if m.exact {
		return m.at
	}
	return events.Position{Ms: m.ms(now)}
}

// last is the highest position that is not after the moment.
func (m moment) last(now time.Time) events.Position {
	if m.exact {
		return m.at
	}
	return events.Position{Ms: m.ms(now), Seq: math.MaxUint64}
}

func (m moment) ms(now time.Time) uint64 {
	t := m.time
	if t.IsZero() {
		t = now.Add(-m.ago)
	}
	return uint64(max(0, t.UnixMilli()))
}

// span is two moments.
type span struct{ from, to moment }

// Decode takes the next two words.
func (s *span) Decode(ctx *kong.DecodeContext) error {
	if err := s.from.Decode(ctx); err != nil {
		return err
	}
	if ctx.Scan.Peek().IsEOL() {
		return fmt.Errorf("want two moments, such as -1h -0s")
	}
	return s.to.Decode(ctx)
}

func (s span) String() string { return s.from.text + " " + s.to.text }

func (s span) isZero() bool { return s.from.isZero() }

// age is a time span for people: two units are enough.
func age(d time.Duration) string {
	day := 24 * time.Hour
	switch {
	case d < 0:
		return "-" + age(-d)
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/day, d%day/time.Hour)
}
