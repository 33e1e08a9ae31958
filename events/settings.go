package events

import "encoding/json"

// SettingChanged sets one cluster-wide setting; the value null removes it.
type SettingChanged struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
	User  string          `json:"user"`
	Peer  string          `json:"peer"`
}

func (SettingChanged) event() {}

// SettingsKey is all cluster-wide settings.
func SettingsKey() Aggregate { return aggregate("settings") }

func (SettingChanged) Writes() []Aggregate { return []Aggregate{SettingsKey()} }
func (SettingChanged) Ends() []Aggregate   { return nil }
