package replica

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"time"
)

const (
	// secretEvery is how often a signature that does not fit makes a replica look for the present secret, besides its
	// beats.
	secretEvery = time.Second
	// secretPatience bounds that look.
	secretPatience = 2 * time.Second
)

// Secret is what the replicas of the namespace share and nobody else knows: what one has signed with it, the others
// take for theirs.
type Secret struct{ text string }

// Bytes is the secret itself. It signs what replicas hand to each other.
func (s *Secret) Bytes() []byte { return []byte(s.text) }

// Key is a key for another purpose, which is its label. Nothing that is signed with the secret itself may be a label:
// of that the signature would be the key.
func (s *Secret) Key(label string) []byte {
	h := hmac.New(sha256.New, s.Bytes())
	h.Write([]byte(label))
	return h.Sum(nil)
}

// shared is how a replica comes by the secret.
type shared struct {
	mu   sync.Mutex // held while the store is asked
	last time.Time  // when it had been asked because a signature did not fit
}

// Secret is the present one. It is the same pointer until it changes. Before the replica has found out what the others
// have, it is one of its own.
func (r *Replica) Secret() *Secret { return r.secret.Load() }

// RenewSecret looks for the present secret, at most once a second: something was signed with another one, by this
// replica or by one of the others.
func (r *Replica) RenewSecret() {
	if r.cfg.Secret != "" {
		return
	}
	r.shared.mu.Lock()
	defer r.shared.mu.Unlock()
	if time.Since(r.shared.last) < secretEvery {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), secretPatience)
	defer cancel()
	err := r.shareSecret(ctx)
	r.shared.last = time.Now() // after it, so that who waits for an answer takes this one, whatever it was
	if err != nil {
		r.log.Debug().Err(err).Msg("look for the secret of the replicas")
	}
}

// learnSecret takes the secret that a beat has seen; empty is none.
func (r *Replica) learnSecret(ctx context.Context, seen string) {
	switch {
	case r.cfg.Secret != "":
	case seen != "":
		r.takeSecret(seen)
	default:
		if err := r.shareSecret(ctx); err != nil {
			r.log.Warn().Err(err).Msg("the secret of the replicas has vanished from the store and could not be put back")
		}
	}
}

// shareSecret takes the secret that the store has. One that the store has lost is put back, by whoever is the first: so
// an emptied store makes nothing void that was signed before.
func (r *Replica) shareSecret(ctx context.Context) error {
	if r.cfg.Secret != "" {
		return nil
	}
	text, err := r.st.Secret(ctx, r.Secret().text)
	if err == nil {
		r.takeSecret(text)
	}
	return err
}

func (r *Replica) takeSecret(text string) {
	former := r.Secret()
	if former.text == text || !r.secret.CompareAndSwap(former, &Secret{text}) || r.life.Load() == nil {
		return
	}
	r.log.Warn().Msg("the secret of the replicas is another one now: offsets that were given out before are void")
	r.metrics.Anomalies.With("secret-changed").Inc()
}

// firstSecret is the configured one, or one to propose to the others.
func firstSecret(configured string) *Secret {
	if configured != "" {
		return &Secret{configured}
	}
	return &Secret{rand.Text()}
}
