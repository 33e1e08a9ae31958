package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"holdfast/events"
	"holdfast/store"
)

// LogCmd is `log`. It never writes to Redis.
type LogCmd struct {
	LogSource
	JSON bool `name:"json" env:"-" help:"Print one JSON object."`
	Scan int  `env:"-" default:"10000" placeholder:"N" help:"Look for types and schemas in the latest N entries; 0 is all."`
}

type logView struct {
	Namespace string      `json:"namespace"`
	Now       string      `json:"now"`
	Length    int64       `json:"length"`
	Bytes     *int64      `json:"bytes"` // null when Redis does not tell
	First     *placeView  `json:"first"`
	Last      *placeView  `json:"last"`
	Whole     bool        `json:"whole"` // the first entry is the first that there ever was
	Groups    []groupView `json:"groups"`
	Snapshots []snapView  `json:"snapshots"`
	Types     []typeView  `json:"types"`
	Scanned   int         `json:"scanned"`
}

type placeView struct {
	Position events.Position `json:"position"`
	Time     string          `json:"time"`
	AgeMs    int64           `json:"ageMs"`
}

type groupView struct {
	Group    string          `json:"group"`
	Position events.Position `json:"position"`
	AgeMs    int64           `json:"ageMs"`
	Lag      int64           `json:"lag"` // -1: more than maxCounted, and Redis does not tell
	Pending  int64           `json:"pending"`
}

type snapView struct {
	Position events.Position `json:"position"`
	AgeMs    int64           `json:"ageMs"`
	Schema   int             `json:"schema"`
	Bytes    int             `json:"bytes"` // as stored
	By       string          `json:"by"`
	Damaged  bool            `json:"damaged,omitempty"` // its manifest cannot be read
}

type typeView struct {
	Type    string          `json:"type"`
	Schema  int             `json:"schema"`
	Count   int             `json:"count"`
	Last    events.Position `json:"last"`
	Unknown bool            `json:"unknown,omitempty"`
}

// Run prints what the log is like.
func (c *LogCmd) Run(ctx context.Context, out *output) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Scan < 0 {
		return usageError{"--scan must not be negative; 0 is all"}
	}
	st, err := c.open()
	if err != nil {
		return err
	}
	defer st.Close()
	v, err := c.view(ctx, st)
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(out.stdout, v)
	}
	return v.print(out.stdout)
}

func (c *LogCmd) view(ctx context.Context, st *store.Store) (logView, error) {
	v := logView{Namespace: c.Namespace, Groups: []groupView{}, Snapshots: []snapView{}, Types: []typeView{}}
	now, err := st.Now(ctx)
	if err != nil {
		return v, err
	}
	v.Now = clock(now)
	size, err := st.LogSize(ctx)
	if err != nil {
		return v, err
	}
	v.Length = size.Entries
	if size.Bytes > 0 {
		v.Bytes = &size.Bytes
	}
	first, err := st.Entries(ctx, events.Position{}, store.Last, 1)
	if err != nil {
		return v, err
	}
	last, err := st.EntriesBack(ctx, events.Position{}, store.Last, 1)
	if err != nil {
		return v, err
	}
	v.Whole = len(first) == 0 || first[0].Previous.IsZero()
	v.First, v.Last = placeOf(first, now), placeOf(last, now)
	groups, err := st.Groups(ctx)
	if err != nil {
		return v, err
	}
	for _, g := range groups {
		lag, err := lagOf(ctx, st, g)
		if err != nil {
			return v, err
		}
		v.Groups = append(v.Groups, groupView{
			Group: g.Name, Position: g.Position, AgeMs: now.Sub(g.Position.Time()).Milliseconds(), Lag: lag, Pending: g.Pending,
		})
	}
	snapshots, err := st.Snapshots(ctx)
	if err != nil {
		return v, err
	}
	for _, s := range snapshots {
		v.Snapshots = append(v.Snapshots, snapView{
			Position: s.Position, AgeMs: now.Sub(s.Position.Time()).Milliseconds(), Schema: s.Schema, Bytes: s.Packed,
			By: s.Instance, Damaged: s.ID == "",
		})
	}
	return v, v.scan(ctx, st, c.Scan)
}

func placeOf(entries []store.Entry, now time.Time) *placeView {
	if len(entries) == 0 {
		return nil
	}
	at := entries[0].Position
	return &placeView{Position: at, Time: clock(at.Time()), AgeMs: now.Sub(at.Time()).Milliseconds()}
}

// maxCounted is how many entries of a group's lag are counted one by one.
const maxCounted = 10 * replayPage

// lagOf counts what a group has not read: Redis's own figure is missing or wrong for a group that was made in the
// middle of a log, or whose log was trimmed under it. It stands for a lag that is long to count.
func lagOf(ctx context.Context, st *store.Store, g store.Group) (int64, error) {
	counted := int64(0)
	for at := g.Position; counted < maxCounted; {
		unread, err := st.Entries(ctx, at.Next(), store.Last, replayPage)
		counted += int64(len(unread))
		if err != nil || len(unread) < replayPage {
			return counted, err
		}
		at = unread[len(unread)-1].Position
	}
	return max(g.Lag, -1), nil
}

// scan counts the types among the latest entries.
func (v *logView) scan(ctx context.Context, st *store.Store, limit int) error {
	type kind struct {
		name   string
		schema int
	}
	seen := map[kind]*typeView{}
	to := store.Last
	for limit == 0 || v.Scanned < limit {
		page := replayPage
		if limit > 0 {
			page = min(page, limit-v.Scanned)
		}
		entries, err := st.EntriesBack(ctx, events.Position{}, to, page)
		if err != nil {
			return err
		}
		for _, e := range entries {
			k := kind{e.Type, e.Schema}
			t := seen[k]
			if t == nil {
				t = &typeView{Type: e.Type, Schema: e.Schema, Last: e.Position}
				_, unreadable := e.Record()
				t.Unknown = unreadable != nil
				seen[k] = t
			}
			t.Count++
			to = before(e.Position)
		}
		v.Scanned += len(entries)
		if len(entries) < page {
			break
		}
	}
	for _, t := range seen {
		v.Types = append(v.Types, *t)
	}
	slices.SortFunc(v.Types, func(a, b typeView) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Schema, b.Schema))
	})
	return nil
}

func (v logView) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	memory := "memory unknown"
	if v.Bytes != nil {
		memory = bytesText(*v.Bytes)
		if v.Length > 0 {
			memory += fmt.Sprintf(", %d B an entry", *v.Bytes/v.Length)
		}
	}
	fmt.Fprintf(t, "log\t{%s}:log\n", v.Namespace)
	fmt.Fprintf(t, "length\t%d entries, %s\n", v.Length, memory)
	for _, place := range []struct {
		name string
		at   *placeView
	}{{"first", v.First}, {"last", v.Last}} {
		if place.at != nil {
			fmt.Fprintf(t, "%s\t%s  %s  %s ago\n", place.name, place.at.Position, place.at.Time, ageMs(place.at.AgeMs))
		}
	}
	if !v.Whole {
		fmt.Fprintf(t, "\tentries before the first have been removed\n")
	}
	_ = t.Flush()
	if len(v.Groups) > 0 {
		fmt.Fprintln(t, "\nGROUP\tPOSITION\tAGE\tLAG\tPENDING")
	}
	for _, g := range v.Groups {
		lag := strconv.FormatInt(g.Lag, 10)
		if g.Lag < 0 {
			lag = fmt.Sprintf("%d or more", maxCounted)
		}
		since := "-"
		if !g.Position.IsZero() {
			since = ageMs(g.AgeMs)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\n", plain(g.Group), g.Position, since, lag, g.Pending)
	}
	_ = t.Flush()
	if len(v.Snapshots) > 0 {
		fmt.Fprintln(t, "\nSNAPSHOT AT\tAGE\tSIZE\tSCHEMA\tBY")
	}
	for _, s := range v.Snapshots {
		if s.Damaged {
			fmt.Fprintln(t, "cannot be read")
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", s.Position, ageMs(s.AgeMs), bytesText(int64(s.Bytes)), s.Schema, plain(s.By))
	}
	_ = t.Flush()
	if len(v.Types) > 0 {
		fmt.Fprintf(t, "\nTYPE (latest %d)\tSCHEMA\tCOUNT\tLAST\n", v.Scanned)
	}
	for _, k := range v.Types {
		unknown := ""
		if k.Unknown {
			unknown = "\tcannot be read by this version"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s%s\n", plain(k.Type), k.Schema, k.Count, k.Last, unknown)
	}
	return t.Flush()
}

func ageMs(ms int64) string { return age(time.Duration(ms) * time.Millisecond) }

func bytesText(n int64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
