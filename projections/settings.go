package projections

import (
	"encoding/json"
	"strings"

	"holdfast/events"
)

// Setting is the value of a cluster-wide setting, raw JSON; false when it is not set.
func (s *State) Setting(key string) (string, bool) {
	value, ok := s.settings[key]
	return value, ok
}

// Settings are all cluster-wide settings with their raw JSON values. Only to be read.
func (s *State) Settings() map[string]string { return s.settings }

func (s *State) settingChanged(r events.Record, e events.SettingChanged) {
	c := Change{Kind: SettingsChanged, At: r.Position, Key: e.Key}
	if string(e.Value) == "null" {
		delete(s.settings, e.Key)
	} else {
		s.settings[e.Key] = string(e.Value)
		c.Value = string(e.Value)
	}
	s.note(c)
}

// MergePatch applies a merge patch (RFC 7396) to a JSON object; an empty one is {}. The result has its names in
// order and the values byte for byte as they were written. What is not an object leaves the object as it is.
func MergePatch(object, patch string) string {
	var changes map[string]json.RawMessage
	if json.Unmarshal([]byte(patch), &changes) != nil || changes == nil {
		return object
	}
	var members map[string]json.RawMessage
	if object != "" {
		_ = json.Unmarshal([]byte(object), &members) // what is not an object counts as an empty one
	}
	if members == nil {
		members = map[string]json.RawMessage{}
	}
	for name, value := range changes {
		switch {
		case string(value) == "null":
			delete(members, name)
		case value[0] == '{':
			members[name] = json.RawMessage(MergePatch(string(members[name]), string(value)))
		default:
			members[name] = value
		}
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(members) // raw values of valid JSON
	return strings.TrimSuffix(b.String(), "\n")
}
