package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"
)

// Secret is what the replicas of the namespace share, to know each other and what they have signed. When there is none
// it becomes proposal.
func (s *Store) Secret(ctx context.Context, proposal string) (string, error) {
	const op = "secret"
	for range 3 { // it may be gone between the two, if Redis is emptied at that moment
		res := s.do(ctx, s.client.B().Set().Key(s.keys.secret).Value(proposal).Nx().Build())
		if err := res.Error(); err == nil {
			return proposal, nil
		} else if !rueidis.IsRedisNil(err) {
			return "", s.check(ctx, op, res)
		}
		res = s.do(ctx, s.client.B().Get().Key(s.keys.secret).Build())
		if err := s.check(ctx, op, res); err != nil {
			return "", err
		}
		secret, err := res.ToString()
		if err == nil && secret == "" {
			return "", fmt.Errorf("store: %s: %w: %s is empty: remove it, a new one is made", op, ErrDamaged, s.keys.secret)
		}
		if err == nil {
			return secret, nil
		}
		if !rueidis.IsRedisNil(err) {
			return "", malformed(op, err)
		}
	}
	return "", s.unavailable(ctx, op, errors.New("it vanishes again and again"))
}
