package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var keeping = Histories{Messages: 8, Bytes: 1 << 20, Life: time.Minute, Session: time.Minute}

func publish(t testing.TB, s *Store, known Known, channel string, bodies ...string) Mark {
	t.Helper()
	batch := make([]Publication, len(bodies))
	for i, b := range bodies {
		batch[i] = Publication{channel, []byte(b)}
	}
	return must[Mark](t)(s.Publish(t.Context(), 0, known, keeping, batch))
}

func history(t testing.TB, s *Store, channel string, after uint64) (Past, string) {
	t.Helper()
	past := must[Past](t)(s.History(t.Context(), 0, channel, after, 100))
	var list []string
	for _, m := range past.Messages {
		list = append(list, fmt.Sprintf("%d=%s", m.Seq, m.Body))
	}
	return past, strings.Join(list, " ")
}

func TestPublishReachesWhoIsInterested(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		in, other, gone := incarnation(), incarnation(), incarnation()
		other.Instance, gone.Instance = "b", "c"
		for _, in := range []Inbox{in, other} {
			if err := s.CreateInbox(t.Context(), in); err != nil {
				t.Fatal(err)
			}
		}
		first := publish(t, s, Known{}, "c:x", "before")
		if first.Seq != 1 || len(first.Epoch) != EpochLength {
			t.Fatalf("%+v", first)
		}
		for _, in := range []Inbox{in, gone} {
			got := must[Subscribed](t)(s.Subscribe(t.Context(), in, Known{Mark: first}, SubscribeNew, "pid", []string{"c:x", "c:y"}, time.Minute))
			if !got.Done || got.Mark != first || got.Base != 0 {
				t.Fatalf("%+v", got)
			}
		}
		at := must[Mark](t)(s.Publish(t.Context(), 0, Known{Mark: first}, keeping, []Publication{
			{"c:x", []byte("1")}, {"c:z", []byte("2")}, {"c:y", []byte("3")},
		}))
		if at != (Mark{first.Epoch, 4, at.Token}) {
			t.Fatalf("%+v", at)
		}
		piece := func(n int, body string) string { return fmt.Sprintf(" %s%d-%d %s", first.Epoch, n, at.Token, body) }
		wantMessages(t, s, in, 0, Message{1, []byte(piece(2, "1") + piece(4, "3"))})
		if messages := must[[]Message](t)(s.ReadInbox(t.Context(), other, 0, 10, time.Millisecond)); messages != nil {
			t.Fatalf("%+v", messages)
		}
		if messages := must[[]Message](t)(s.ReadInbox(t.Context(), gone, 0, 10, time.Millisecond)); messages != nil {
			t.Fatalf("an inbox that did not exist was made: %+v", messages)
		}
		if n := members(t, s, "c:x"); n != 1 {
			t.Fatalf("%d are interested: the one without an inbox is not to be", n)
		}
		if err := s.Uninterest(t.Context(), in, []string{"c:x", "c:y"}); err != nil {
			t.Fatal(err)
		}
		if n := members(t, s, "c:x"); n != 0 {
			t.Fatalf("%d are interested", n)
		}
		publish(t, s, Known{Mark: at}, "c:x", "5")
		if messages := must[[]Message](t)(s.ReadInbox(t.Context(), in, 1, 10, time.Millisecond)); messages != nil {
			t.Fatalf("%+v", messages)
		}
		past, list := history(t, s, "c:x", 1)
		if list != "2=1 5=5" || past.Trimmed != 0 || past.Mark != (Mark{first.Epoch, 5, past.Token}) {
			t.Fatalf("%+v %s", past, list)
		}
	})
}

func members(t testing.TB, s *Store, channel string) int64 {
	t.Helper()
	n, err := s.client.Do(t.Context(), s.client.B().Scard().Key(s.keys.partition(0)+"interest:"+channel).Build()).AsInt64()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestHistoryIsBoundedAndSaysSo(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		for i := range 40 {
			publish(t, s, Known{}, "c:other", "x")
			publish(t, s, Known{}, "c:x", fmt.Sprint(i))
			past, _ := history(t, s, "c:x", 0)
			last := uint64(2 * (i + 1))
			kept := uint64(0)
			for _, m := range past.Messages {
				if m.Seq > past.Trimmed {
					kept++
				}
			}
			if want := min(uint64(i)+1, uint64(keeping.Messages)); kept < want || len(past.Messages) > 12 {
				t.Fatalf("after %d: %d kept of %d, trimmed to %d", i+1, kept, len(past.Messages), past.Trimmed)
			}
			if past.Trimmed > 0 && past.Trimmed != past.Messages[0].Seq || past.Seq != last {
				t.Fatalf("%+v", past)
			}
		}
		if _, err := s.History(t.Context(), 0, "c:x", 0, 3); !errors.Is(err, ErrTooMuch) {
			t.Fatal(err)
		}
		small := keeping
		small.Bytes = 1000
		for range 20 {
			if _, err := s.Publish(t.Context(), 0, Known{}, small, []Publication{{"c:big", make([]byte, 400)}}); err != nil {
				t.Fatal(err)
			}
		}
		past, _ := history(t, s, "c:big", 0)
		if len(past.Messages) > 3 || past.Trimmed == 0 {
			t.Fatalf("%d large messages stay", len(past.Messages))
		}
	})
}

func TestEpochsShowWhatAPartitionLost(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		in := incarnation()
		if err := s.CreateInbox(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		at := publish(t, s, Known{}, "c:x", "1", "2")
		sub := must[Subscribed](t)(s.Subscribe(t.Context(), in, Known{Mark: at}, SubscribeNew, "pid", []string{"c:x"}, time.Minute))
		keep := must[Subscribed](t)(s.Subscribe(t.Context(), in, Known{Mark: at}, SubscribeKeep, "pid", []string{"c:x"}, time.Minute))
		if diff := cmp.Diff(map[string]uint64{"c:x": 2}, keep.Record); diff != "" || !keep.Done || sub.Mark != keep.Mark {
			t.Fatalf("%+v %s", keep, diff)
		}
		ahead := Known{Mark: Mark{Epoch: at.Epoch, Seq: 7}} // what this caller has seen the partition has not
		after := publish(t, s, ahead, "c:x", "3")
		if after.Epoch == at.Epoch || after.Seq != 3 {
			t.Fatalf("%+v", after)
		}
		if again := publish(t, s, ahead, "c:x", "4"); again.Epoch != after.Epoch {
			t.Fatal("one loss, two epochs")
		}
		keep = must[Subscribed](t)(s.Subscribe(t.Context(), in, Known{}, SubscribeKeep, "pid", []string{"c:x"}, time.Minute))
		if keep.Done || keep.Base != 2 {
			t.Fatalf("%+v", keep)
		}
		rec := must[SessionRecord](t)(s.Session(t.Context(), 0, "pid", Mark{}))
		if rec.Epoch != at.Epoch || rec.Mark.Epoch != after.Epoch {
			t.Fatalf("%+v", rec)
		}
		base := must[Subscribed](t)(s.Subscribe(t.Context(), in, Known{}, SubscribeBase, "pid", []string{"c:x"}, time.Minute))
		rec = must[SessionRecord](t)(s.Session(t.Context(), 0, "pid", Mark{}))
		if !base.Done || rec.Epoch != after.Epoch || rec.Channels["c:x"] != 2 {
			t.Fatalf("%+v %+v", base, rec)
		}
		broken := must[Subscribed](t)(s.Subscribe(t.Context(), in, Known{Mark: Mark{Epoch: after.Epoch}, Broken: true}, SubscribeNone, "", []string{"c:x"}, time.Minute))
		if broken.Epoch == after.Epoch {
			t.Fatalf("%+v", broken)
		}
		if err := s.DropSessions(t.Context(), 0, []string{"pid"}); err != nil {
			t.Fatal(err)
		}
		if rec = must[SessionRecord](t)(s.Session(t.Context(), 0, "pid", Mark{})); rec.Epoch != "" {
			t.Fatalf("%+v", rec)
		}
	})
}

func TestTokensShowAnotherHistory(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		other := func(at Mark) bool { return must[SessionRecord](t)(s.Session(t.Context(), 0, "pid", at)).Other }
		first := publish(t, s, Known{}, "c:x", "1", "2", "3")
		second := publish(t, s, Known{Mark: first}, "c:y", "4", "5")
		for seq, token := range []uint32{0, first.Token, first.Token, first.Token, second.Token, second.Token} {
			if seq == 0 {
				continue
			}
			at := Mark{first.Epoch, uint64(seq), token}
			if other(at) {
				t.Fatalf("%+v is denied", at)
			}
			if got := publish(t, s, Known{Mark: at}, "c:z", "0"); got.Epoch != first.Epoch {
				t.Fatalf("%+v is denied", at)
			}
			at.Token++
			if !other(at) {
				t.Fatalf("%+v is not denied", at)
			}
		}
		if past, _ := history(t, s, "c:y", 0); past.Messages[1].Token != second.Token {
			t.Fatalf("%+v, want the token of %+v", past.Messages, second)
		}
		// As far back as the trail reaches.
		raw(t, s, "XTRIM", s.keys.partition(0)+"trail", "MINID", fmt.Sprint(second.Seq))
		wrong := first
		wrong.Token++
		if got := publish(t, s, Known{Mark: wrong}, "c:x", "0"); got.Epoch != first.Epoch || other(wrong) {
			t.Fatal("what is not remembered is denied")
		}
		wrong = second
		wrong.Token++
		after := publish(t, s, Known{Mark: wrong}, "c:x", "6")
		if after.Epoch == first.Epoch {
			t.Fatal("the partition goes on though its caller knows another history")
		}
		if again := publish(t, s, Known{Mark: wrong}, "c:x", "7"); again.Epoch != after.Epoch {
			t.Fatal("one loss, two epochs")
		}
	})
}

func TestPartitionsAreClaimedOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		if n := must[int](t)(s.ClaimPartitions(t.Context(), 4)); n != 4 {
			t.Fatal(n)
		}
		if n := must[int](t)(s.ClaimPartitions(t.Context(), 2)); n != 4 {
			t.Fatal(n)
		}
	})
}
