package transport

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"holdfast/projections"
	"holdfast/relay"
	"holdfast/replica"
)

// Metrics are what /metrics shows. Calls are observed as they end; all else is read when asked for.
type Metrics struct {
	Registry *prometheus.Registry
	calls    *prometheus.CounterVec
	ok       prometheus.Counter // of calls
	latency  prometheus.Histogram
}

// NewMetrics makes the registry.
func NewMetrics() *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_calls_total", Help: "Calls that ended here, by outcome: OK or the code of their failure.",
		}, []string{"outcome"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_call_seconds", Help: "From a call's arrival here to its outcome, all outcomes.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2.5, 16),
		}),
	}
	m.ok = m.calls.WithLabelValues("OK")
	m.Registry.MustRegister(m.calls, m.latency, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// CallDone observes the end of a call. It fits relay.Config.Done.
func (m *Metrics) CallDone(outcome string, took time.Duration) {
	if outcome == "OK" {
		m.ok.Inc()
	} else {
		m.calls.WithLabelValues(outcome).Inc()
	}
	m.latency.Observe(took.Seconds())
}

// Watch adds the figures of one replica.
func (m *Metrics) Watch(rep *replica.Replica, rel *relay.Relay, srv *Server) {
	m.Registry.MustRegister(&collector{rep: rep, relay: rel, server: srv})
}

// WatchHook adds those of its room hook.
func (m *Metrics) WatchHook(h *RoomHook) { m.Registry.MustRegister(hookCollector{h}) }

type hookCollector struct{ hook *RoomHook }

var (
	descHookCalls   = desc("room_hook_calls_total", "Calls to the room hook that ended, by event and outcome.", "event", "outcome")
	descHookWaiting = desc("room_hook_waiting", "Rooms of which the room hook has to be told something.")
)

// Describe sends nothing: the set depends on what happened.
func (hookCollector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the figures.
func (c hookCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(descHookWaiting, prometheus.GaugeValue, float64(c.hook.waiting()))
	c.hook.call.counts.outcomes.Each(func(name string, n uint64) {
		event, outcome, _ := strings.Cut(name, " ")
		ch <- prometheus.MustNewConstMetric(descHookCalls, prometheus.CounterValue, float64(n), event, outcome)
	})
}

type collector struct {
	rep    *replica.Replica
	relay  *relay.Relay
	server *Server
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("holdfast_"+name, help, labels, nil)
}

var (
	descConnections   = desc("connections", "Engine.IO sessions open now.")
	descSessions      = desc("sessions", "Clients admitted here now.")
	descClosed        = desc("connections_closed_total", "Connections that ended, by reason.", "reason")
	descOpened        = desc("connections_opened_total", "Connections that were opened.")
	descUpgraded      = desc("connections_upgraded_total", "Connections that went from long-polling to a WebSocket.")
	descForwarded     = desc("requests_forwarded_total", "Requests handed to the replica that has their session.")
	descOverflows     = desc("outbox_overflows_total", "Clients cut off because they read too slowly.")
	descRefused       = desc("messages_refused_total", "Messages of clients that were dropped before they were handled, by why.", "why")
	descMessages      = desc("messages_total", "Messages from (in) and to (out) clients.", "direction")
	descBytes         = desc("message_bytes_total", "Their bytes.", "direction")
	descReady         = desc("ready", "1 when this replica is caught up and able to append.")
	descApplied       = desc("events_applied_total", "Log events applied since the start.")
	descAge           = desc("applied_position_age_seconds", "Age of the last event applied, by the store's clock.")
	descPosition      = desc("applied_position_ms", "Time part of the position of the last event applied, ms since 1970.")
	descAppended      = desc("events_appended_total", "Log events appended by this replica.")
	descGroups        = desc("append_groups_total", "Script calls that carried them.")
	descConflicts     = desc("append_conflicts_total", "Decisions that lost to another replica's and were made again.")
	descUnavailable   = desc("commands_unavailable_total", "Commands that failed because the log could not be reached.")
	descUnreplicated  = desc("commands_unreplicated_total", "Commands that failed because no replica of Redis confirmed them in time.")
	descFenced        = desc("fenced_total", "Times this replica was declared lost and started anew.")
	descReconciled    = desc("reconciled_total", "Things recorded again because the log had lost them.")
	descAnomalies     = desc("store_anomalies_total", "Accidents of the store that were noticed, by kind.", "kind")
	descSnapshots     = desc("snapshots_total", "Snapshots written by this replica.")
	descSnapshotAt    = desc("snapshot_timestamp_seconds", "When this replica wrote its last snapshot, seconds since 1970.")
	descTrimmed       = desc("log_trimmed_total", "Entries of the log that this replica removed.")
	descLogMemory     = desc("log_memory_bytes", "Memory of the log in Redis, when this replica last looked as its keeper.")
	descInbox         = desc("inbox_depth", "Messages in this replica's inbox at its last beat.")
	descDigest        = desc("state_digest", "First 48 bits of the digest of the state at the position in the next two. Equal positions, equal digests.")
	descDigestMs      = desc("state_digest_position_ms", "Time part of the position of the digest, ms since 1970.")
	descDigestSeq     = desc("state_digest_position_seq", "Sequence part of the position of the digest.")
	descRunning       = desc("calls_running", "Calls under way from here.")
	descPublished     = desc("channel_messages_published_total", "Messages that clients of this replica published to channels.")
	descDelivered     = desc("channel_messages_delivered_total", "Messages of channels that were handed to clients here.")
	descChannels      = desc("channels", "Channels that clients have here.")
	descRecovered     = desc("sessions_recovered_total", "Sessions that went on here with all that they missed.")
	descReplayed      = desc("channel_messages_replayed_total", "Messages that they were given as missed.")
	descHistories     = desc("channel_histories_read_total", "Readings of a channel's history; clients that come back together share them.")
	descFresh         = desc("sessions_not_recovered_total", "Sessions that came back and had to begin anew, by why.", "why")
	descOffsets       = desc("channel_offsets_refused_total", "Offsets that look like this server's and are not signed by its secret.")
	descLosses        = desc("channel_losses_total", "Accidents that lost messages of channels or may have, by what.", "what")
	descLostSessions  = desc("channel_sessions_cut_total", "Clients sent away because messages for them are lost or may be.")
	descRepaired      = desc("channel_messages_repaired_total", "Messages that the inbox did not bring and a history had.")
	descReplicas      = desc("replicas", "Live replicas, as this one sees it.")
	descPeers         = desc("peers", "Peers known, connected or away.")
	descRegistrations = desc("registrations", "Registrations known, lapsed ones included.")
)

// Describe sends nothing: the collector is unchecked, its set depends on what happened.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the figures.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	st := c.server.Stats()
	gauge(descConnections, float64(st.Connections))
	gauge(descSessions, float64(c.rep.SessionCount()))
	count(descOpened, st.Opened)
	count(descUpgraded, st.Upgraded)
	count(descForwarded, st.Forwarded)
	for reason, n := range st.Closed {
		count(descClosed, n, string(reason))
	}
	count(descOverflows, st.OutboxOverflows)
	for why, n := range st.Refused {
		count(descRefused, n, why)
	}
	count(descMessages, st.MessagesIn, "in")
	count(descMessages, st.MessagesOut, "out")
	count(descBytes, st.BytesIn, "in")
	count(descBytes, st.BytesOut, "out")

	ready := 0.0
	if c.rep.ReadyError() == nil {
		ready = 1
	}
	gauge(descReady, ready)
	m := c.rep.Metrics()
	count(descApplied, m.Applied.Load())
	count(descAppended, m.Appended.Load())
	count(descGroups, m.Groups.Load())
	count(descConflicts, m.Conflicts.Load())
	count(descUnavailable, m.Unavailable.Load())
	count(descUnreplicated, m.Unreplicated.Load())
	count(descFenced, m.Fenced.Load())
	count(descReconciled, m.Reconciled.Load())
	count(descSnapshots, m.Snapshots.Load())
	if at := m.SnapshotAt.Load(); at != 0 {
		gauge(descSnapshotAt, float64(at)/1000)
	}
	count(descTrimmed, m.Trimmed.Load())
	if bytes := m.LogMemory.Load(); bytes != 0 {
		gauge(descLogMemory, float64(bytes))
	}
	gauge(descInbox, float64(m.InboxDepth.Load()))
	m.Anomalies.Each(func(kind string, n uint64) { count(descAnomalies, n, kind) })
	digest := c.rep.Digest()
	gauge(descDigest, float64(binary.BigEndian.Uint64(digest.Sum[:])>>16))
	gauge(descDigestMs, float64(digest.Position.Ms))
	gauge(descDigestSeq, float64(digest.Position.Seq))
	gauge(descRunning, float64(c.relay.Running()))
	c.channels(gauge, count)
	c.rep.View(func(s *projections.State) {
		if !s.Position.IsZero() {
			gauge(descAge, c.rep.Now().Sub(s.Now()).Seconds())
		}
		gauge(descPosition, float64(s.Position.Ms))
		gauge(descReplicas, float64(s.ReplicaCount()))
		gauge(descPeers, float64(s.PeerCount()))
		gauge(descRegistrations, float64(s.RegistrationCount()))
	})
}

// channels shows the figures of the channels.
func (c *collector) channels(gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string)) {
	channels := c.relay.Channels()
	f := channels.Metrics()
	gauge(descChannels, float64(channels.Len()))
	for name, d := range map[string]*prometheus.Desc{
		"published": descPublished, "delivered": descDelivered, "recovered": descRecovered, "replayed": descReplayed,
		"histories-read": descHistories, "lost-sessions": descLostSessions, "repaired": descRepaired, "offsets-refused": descOffsets,
	} {
		count(d, f.Count.With(name).Load())
	}
	f.Fresh.Each(func(why string, n uint64) { count(descFresh, n, why) })
	f.Losses.Each(func(what string, n uint64) { count(descLosses, n, what) })
}
