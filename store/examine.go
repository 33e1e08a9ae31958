package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Finding is one thing that Examine looked at.
type Finding struct {
	Bad  bool
	Text string
}

// Examine looks whether this Redis can be trusted with the log: its version, that it evicts nothing, and that
// it survives a restart. What the server does not tell is said so and not bad.
func (s *Store) Examine(ctx context.Context) ([]Finding, error) {
	const op = "examine"
	res := s.do(ctx, s.client.B().Info().Section("server").Section("memory").Section("persistence").Build())
	if err := s.check(ctx, op, res); err != nil {
		return nil, err
	}
	text, err := res.ToString()
	if err != nil {
		return nil, malformed(op, err)
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[k] = v
		}
	}
	findings := []Finding{{Text: "Redis answers"}}
	say := func(bad bool, format string, args ...any) {
		findings = append(findings, Finding{Bad: bad, Text: fmt.Sprintf(format, args...)})
	}
	if version, ok := info["redis_version"]; ok {
		major, _, _ := strings.Cut(version, ".")
		n, _ := strconv.Atoi(major)
		say(n < 7, "version %s (7.0 or newer is needed)", version)
	} else {
		say(false, "version unknown: the server does not tell it")
	}
	if policy, ok := info["maxmemory_policy"]; ok {
		say(policy != "noeviction", "maxmemory-policy %s (noeviction is needed: eviction removes whole keys, the log among them)", policy)
	} else {
		say(false, "maxmemory-policy unknown: it must be noeviction")
	}
	if aof, ok := info["aof_enabled"]; ok {
		say(aof != "1", "appendonly %s (yes is needed: without it a restart of Redis forgets the log)", map[string]string{"1": "yes"}[aof]+map[string]string{"0": "no"}[aof])
	} else {
		say(false, "appendonly unknown: it must be yes")
	}
	return findings, nil
}
