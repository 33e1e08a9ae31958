package store

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"holdfast/events"
	"holdfast/store/redistest"
)

// BenchmarkAppend counts commands of one event with two checks against a real Redis.
func BenchmarkAppend(b *testing.B) {
	s := redisBackend(b, plain.get(b)).open(b)
	b.Run("one caller", func(b *testing.B) { benchmarkAppend(b, s, 1, 1) })
	b.Run("groups of 64", func(b *testing.B) { benchmarkAppend(b, s, 1, 64) })
	b.Run("4 callers, groups of 64", func(b *testing.B) { benchmarkAppend(b, s, 4, 64) })
}

// BenchmarkReplicatedAppend is the same against a Redis with a replica, whose confirmation is waited for.
func BenchmarkReplicatedAppend(b *testing.B) {
	master := redistest.Start(b)
	master.Follow(b)
	for _, replicated := range []bool{false, true} {
		s, err := Open(Options{URL: master.URL, Replicated: replicated, ReplicaWait: 10 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		name := map[bool]string{true: "replicated", false: "fast"}[replicated]
		b.Run(name+", one caller", func(b *testing.B) { benchmarkAppend(b, s, 1, 1) })
		b.Run(name+", groups of 64", func(b *testing.B) { benchmarkAppend(b, s, 1, 64) })
	}
}

func benchmarkAppend(b *testing.B, s *Store, callers, size int) {
	b.Helper()
	raw(b, s, "DEL", s.keys.log, s.keys.versions)
	started := write(b, s, command(nil, events.ReplicaStarted{Instance: "a"}))[0]
	fence := Fence{Instance: "a", Started: started}
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for caller := range callers {
		wg.Go(func() {
			version := make(map[int]events.Position, size)
			group := make([]Append, 0, size)
			for done := 0; done < b.N/callers; done += len(group) {
				group = group[:0]
				for i := range size {
					id := string(rune('A'+caller)) + "peer" + string(rune('0'+i))
					group = append(group, command([]Check{{peer(id), version[i]}, {Aggregate: "room:none"}}, connected(id)))
				}
				verdicts, err := s.Append(b.Context(), fence, group)
				if err != nil {
					b.Error(err)
					return
				}
				for i, v := range verdicts {
					if v.Positions == nil {
						b.Errorf("%+v", v)
						return
					}
					version[i] = v.Positions[0]
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
}

// BenchmarkRange reads and decodes a log.
func BenchmarkRange(b *testing.B) {
	s := redisBackend(b, plain.get(b)).open(b)
	group := make([]Append, 100)
	for range 100 {
		for i := range group {
			group[i] = command(nil, connected("p"))
		}
		if _, err := s.Append(b.Context(), Fence{}, group); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	after := events.Position{}
	for done := 0; done < b.N; {
		records, err := s.Range(b.Context(), after, min(1000, b.N-done))
		if err != nil {
			b.Fatal(err)
		}
		if len(records) == 0 {
			after = events.Position{}
			continue
		}
		after = records[len(records)-1].Position
		done += len(records)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkSendRead moves messages of 200 bytes through an inbox of a real Redis.
func BenchmarkSendRead(b *testing.B) {
	b.Run("1 sender", func(b *testing.B) { benchmarkSendRead(b, 1) })
	b.Run("64 senders", func(b *testing.B) { benchmarkSendRead(b, 64) })
	b.Run("512 senders", func(b *testing.B) { benchmarkSendRead(b, 512) })
}

func benchmarkSendRead(b *testing.B, senders int) {
	backend := redisBackend(b, plain.get(b))
	from, to := backend.open(b), backend.open(b)
	in := incarnation()
	if err := to.CreateInbox(b.Context(), in); err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 200)
	each := max(1, b.N/senders)
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for range each {
				if err := from.Send(ctx, in, body); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	for seq := uint64(0); seq < uint64(each*senders); {
		messages, err := to.ReadInbox(ctx, in, seq, 1000, time.Second)
		if err != nil {
			b.Fatal(err)
		}
		for _, m := range messages {
			if m.Seq != seq+1 {
				b.Fatalf("%d after %d", m.Seq, seq)
			}
			seq = m.Seq
		}
	}
	wg.Wait()
	b.ReportMetric(float64(each*senders)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkPublish publishes messages of 200 bytes to one channel with an interested incarnation on a real Redis.
func BenchmarkPublish(b *testing.B) {
	for _, size := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("groups of %d", size), func(b *testing.B) {
			s := redisBackend(b, plain.get(b)).open(b)
			in := incarnation()
			if err := s.CreateInbox(b.Context(), in); err != nil {
				b.Fatal(err)
			}
			got, err := s.Subscribe(b.Context(), in, Known{}, SubscribeNone, "", []string{"c:x"}, time.Minute)
			if err != nil {
				b.Fatal(err)
			}
			batch := make([]Publication, size)
			for i := range batch {
				batch[i] = Publication{Channel: "c:x", Body: make([]byte, 200)}
			}
			keep := Histories{Messages: 1000, Bytes: 16 << 20, Life: time.Minute, Session: time.Minute}
			at := got.Mark
			b.ResetTimer()
			for done := 0; done < b.N; done += size {
				if at, err = s.Publish(b.Context(), 0, Known{Mark: at}, keep, batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
