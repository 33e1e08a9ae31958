package hammer

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Failed reports whether anything that was sent got no good answer.
func (r RPCReport) Failed() bool {
	return r.RPC.Errors > 0 || r.Baseline != nil && r.Baseline.Errors > 0
}

// WriteText writes the report for people.
func (r RPCReport) WriteText(w io.Writer) error {
	pace := "as fast as possible"
	if r.Rate > 0 {
		pace = fmt.Sprintf("%.0f calls/s wanted", r.Rate)
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s\n%d callers on %d connections, %d handlers, %d bytes, %s, %.1f s\n",
		strings.Join(r.URLs, " "), r.Callers, r.Connections, r.Handlers, r.Payload, pace, r.RPC.Seconds)

	rows := []string{"\tcalls/s\tp50 ms\tp95 ms\tp99 ms\tmax ms\tcalls\terrors\tunsent\t", r.RPC.row("rpc")}
	failures := failureLines("rpc", r.RPC.ErrorsByCode)
	if r.Baseline != nil {
		rows = append(rows, r.Baseline.row("bare streams"))
		failures += failureLines("bare streams", r.Baseline.ErrorsByCode)
	}
	table := tabwriter.NewWriter(&text, 0, 0, 3, ' ', tabwriter.AlignRight)
	if _, err := io.WriteString(table, strings.Join(rows, "\n")+"\n"); err != nil {
		return err
	}
	if err := table.Flush(); err != nil {
		return err
	}
	text.WriteString(failures)
	_, err := text.WriteTo(w)
	return err
}

func (f Figures) row(name string) string {
	return fmt.Sprintf("%s\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t%d\t%d\t%d\t", name, f.CallsPerSecond,
		f.Latency.P50, f.Latency.P95, f.Latency.P99, f.Latency.Max, f.Calls, f.Errors, f.Unsent)
}

// Failed reports whether a connection was refused or did not last, a channel did not
// work, or a storm left something behind.
func (r ConnectReport) Failed() bool {
	c := r.Channels
	return r.Refused+r.Lost > 0 || c != nil && (c.Received < c.Subscribed || len(c.ErrorsByCode) > 0) || r.Storm != nil && r.Storm.Failed()
}

// WriteText writes the report for people.
func (r ConnectReport) WriteText(w io.Writer) error {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s\n%d of %d connected in %.1f s, %.0f connections/s, %d failed, %d lost while held\n",
		strings.Join(r.URLs, " "), r.Connected, r.Connections, r.Seconds, r.ConnectionsPerSecond, r.Refused, r.Lost)
	fmt.Fprintf(&text, "to connect: p50 %.2f ms, p95 %.2f ms, p99 %.2f ms, max %.2f ms\n",
		r.Latency.P50, r.Latency.P95, r.Latency.P99, r.Latency.Max)
	if c := r.Channels; c != nil {
		fmt.Fprintf(&text, "%d subscribed a channel of their own in %.1f s, %.0f/s, %d got a message there: p50 %.2f ms, p95 %.2f ms, p99 %.2f ms, max %.2f ms\n",
			c.Subscribed, c.Seconds, c.PerSecond, c.Received, c.Latency.P50, c.Latency.P95, c.Latency.P99, c.Latency.Max)
	}
	if m := r.Memory; m != nil {
		const mib = 1 << 20
		fmt.Fprintf(&text, "server memory: %.1f MiB before, %.1f MiB connected, %.1f MiB held, %.1f KiB per connection\n",
			float64(m.Before)/mib, float64(m.Connected)/mib, float64(m.Held)/mib, float64(m.PerConnection)/1024)
	} else {
		text.WriteString("server memory: not available\n")
	}
	text.WriteString(failureLines("connect", r.ErrorsByCode))
	if r.Channels != nil {
		text.WriteString(failureLines("channel", r.Channels.ErrorsByCode))
	}
	if r.Storm != nil {
		r.Storm.writeText(&text)
	}
	_, err := text.WriteTo(w)
	return err
}

// Failed reports whether a peer could not connect or join, or was not seen in its room.
func (r RoomsReport) Failed() bool {
	return r.Connected < r.Rooms*r.Peers || r.Joins.Errors > 0 || r.Seen < r.Rooms*r.Peers || r.Notices.Received < r.Notices.Expected
}

// WriteText writes the report for people.
func (r RoomsReport) WriteText(w io.Writer) error {
	pace := "all at once"
	if r.Rate > 0 {
		pace = fmt.Sprintf("%.0f joins/s wanted", r.Rate)
	}
	total := r.Rooms * r.Peers
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s\n%d rooms of %d peers, %s, %d of %d connected\n", strings.Join(r.URLs, " "), r.Rooms, r.Peers, pace, r.Connected, total)
	j := r.Joins
	fmt.Fprintf(&text, "%d joined in %.2f s, %.0f joins/s, %d errors: p50 %.2f ms, p95 %.2f ms, p99 %.2f ms, max %.2f ms\n",
		j.Calls, j.Seconds, j.CallsPerSecond, j.Errors, j.Latency.P50, j.Latency.P95, j.Latency.P99, j.Latency.Max)
	fmt.Fprintf(&text, "the rooms show %d of %d peers\n", r.Seen, total)
	n := r.Notices
	fmt.Fprintf(&text, "peer-joined: %d of %d came, the last %.2f s after the first join\n", n.Received, n.Expected, n.Seconds)
	if s := r.Servers; s != nil {
		const mib = 1 << 20
		fmt.Fprintf(&text, "%d conflicts, %.4f per join\n", s.Conflicts, s.ConflictsPerJoin)
		fmt.Fprintf(&text, "servers' memory: %.1f MiB connected, %.1f MiB joined, %.1f KiB per room\n", float64(s.MemoryConnected)/mib,
			float64(s.MemoryJoined)/mib, float64(s.MemoryJoined-s.MemoryConnected)/1024/float64(r.Rooms))
	} else {
		text.WriteString("conflicts and memory: the servers do not tell them at /metrics\n")
	}
	if r.Lost > 0 {
		fmt.Fprintf(&text, "%d connections were lost\n", r.Lost)
	}
	if m := r.Moves; m != nil {
		fmt.Fprintf(&text, "%d rooms got another owner within %.2f s, %d told every peer once; since the first lost connection: p50 %.0f ms, p99 %.0f ms, max %.0f ms\n",
			m.Rooms, m.SpanSeconds, m.Once, m.SinceLost.P50, m.SinceLost.P99, m.SinceLost.Max)
	}
	text.WriteString(failureLines("connect", r.ErrorsByCode))
	text.WriteString(failureLines("join", j.ErrorsByCode))
	_, err := text.WriteTo(w)
	return err
}

// failureLines names each code and how often it came, in the order of the codes.
func failureLines(name string, byCode map[string]uint64) string {
	var lines strings.Builder
	for _, code := range slices.Sorted(maps.Keys(byCode)) {
		fmt.Fprintf(&lines, "%s error %s: %d\n", name, code, byCode[code])
	}
	return lines.String()
}
