package store

import (
	"context"

	"github.com/redis/rueidis"
)

// Secret is what the replicas of the namespace share to know each other by. The first to ask makes it be proposal.
func (s *Store) Secret(ctx context.Context, proposal string) (string, error) {
	const op = "secret"
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
	if err != nil {
		return "", malformed(op, err) // gone within a moment: Redis was emptied; ask again
	}
	return secret, nil
}
