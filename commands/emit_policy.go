package commands

import (
	"fmt"
	"slices"
	"strings"
)

// EmitPolicy says which roles alone may send an event to a room. What is not in it may be sent by whoever may emit.
type EmitPolicy map[string][]Role

// ParseEmitPolicy reads rules of the form EVENT=ROLE[,ROLE]. Those that are built in hold unless a rule is about the
// same event.
func ParseEmitPolicy(rules []string) (EmitPolicy, error) {
	policy := EmitPolicy{"ambient-noise-alert": {Host}}
	for _, rule := range rules {
		event, list, ok := strings.Cut(rule, "=")
		event = strings.TrimSpace(event)
		if !ok || event == "" {
			return nil, fmt.Errorf("%q: want EVENT=ROLE[,ROLE], such as mute-all=host,guest", rule)
		}
		policy[event] = nil
		for word := range strings.SplitSeq(list, ",") {
			role := Role(strings.TrimSpace(word))
			if !slices.Contains([]Role{Host, Guest, Member}, role) {
				return nil, fmt.Errorf("%q: the roles that can send are host, guest and member, not %q", rule, word)
			}
			policy[event] = append(policy[event], role)
		}
	}
	return policy, nil
}
