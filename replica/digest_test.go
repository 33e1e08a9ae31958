package replica

import (
	"testing"

	"holdfast/projections"
	"holdfast/store/redistest"
)

func TestDigestIsOfThePositionThatItNames(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	a, b := start(t, "a", openStore(t, s.URL)), start(t, "b", openStore(t, s.URL))
	session := a.connect("p")
	for range 50 {
		a.register(session, "m")
		x, y := a.Digest(), b.Digest()
		if x.Position == y.Position && x.Sum != y.Sum {
			t.Fatalf("at %s: %x and %x", x.Position, x.Sum, y.Sum)
		}
	}
	eventually(t, "the digest follows", func() bool {
		d := a.Digest()
		return d.Position == a.position() && d.Registrations == 1 && d.Peers == 1 && d.Replicas == 2
	})
	d := a.Digest()
	a.View(func(s *projections.State) {
		if s.Position == d.Position && s.Digest() != d.Sum {
			t.Error("it is not that of the state")
		}
	})
}
