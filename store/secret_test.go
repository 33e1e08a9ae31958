package store

import "testing"

func TestSecretIsMadeOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		s := b.open(t)
		for _, proposal := range []string{"first", "second"} {
			if got, err := s.Secret(t.Context(), proposal); err != nil || got != "first" {
				t.Fatalf("got %q, %v", got, err)
			}
		}
	})
}
