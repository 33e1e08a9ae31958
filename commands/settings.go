package commands

import (
	"bytes"
	"encoding/json"

	"holdfast/events"
	"holdfast/projections"
)

// Limits of the cluster-wide settings.
const (
	MaxSettings     = 1000
	MaxSettingBytes = 64 << 10 // of one value
)

// SetSetting sets one cluster-wide setting; null removes it.
type SetSetting struct {
	User  string
	Peer  string
	Key   string
	Value json.RawMessage
	// Expected is the version of all settings at which alone this applies; empty for any.
	Expected string
	Claims   Claims
	// Restore: a replica restores what the log has lost; what has been set meanwhile stays.
	Restore bool
}

func (c SetSetting) Decide(s *projections.State) (Decision, error) {
	if bad := checkName("key", c.Key); bad != nil {
		return Decision{}, bad
	}
	var value bytes.Buffer
	if len(c.Value) == 0 || json.Compact(&value, c.Value) != nil {
		return Decision{}, refuse(CodeBadRequest, "value is required; null removes the setting")
	}
	if value.Len() > MaxSettingBytes {
		return Decision{}, refuse(CodeTooLarge, "value is larger than %d bytes", MaxSettingBytes)
	}
	if !c.Restore && !c.Claims.MayWriteSettings() {
		return Decision{}, refuse(CodeForbidden, "not allowed to change the settings")
	}
	version := s.Version(events.SettingsKey())
	former, known := s.Setting(c.Key)
	if c.Expected != "" && c.Expected != version.String() {
		r := doubt(refuse(CodeConflict, "the settings have changed since version %s", c.Expected))
		now := map[string]json.RawMessage{}
		if known {
			now[c.Key] = json.RawMessage(former)
		}
		r.Now = map[string]any{"version": version, "settings": now}
		return Decision{}, r
	}
	switch {
	case c.Restore && known, known && former == value.String(), !known && value.String() == "null":
		return Decision{}, nil
	case !known && len(s.Settings()) >= MaxSettings:
		return Decision{}, doubt(refuse(CodeTooMany, "there can be %d settings at most", MaxSettings))
	}
	return Decision{
		Reads:  []events.Aggregate{events.SettingsKey()},
		Events: []events.Event{events.SettingChanged{Key: c.Key, Value: value.Bytes(), User: c.User, Peer: c.Peer}},
	}, nil
}
