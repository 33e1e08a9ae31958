// Package migrations is how stored things changed: upcasts of events from older schemas, and the steps of the
// stored layout.
//
// It promises that what any released version has written can be read by this one, and that stored entries are
// never rewritten: an older event is brought to the newest schema as it is read.
package migrations

import (
	"encoding/json"

	"holdfast/events"
)

// An upcast turns the data of one schema of an event type into that of the next.
type upcast func(data []byte) ([]byte, error)

// upcasts are by event type; the first turns schema 1 into schema 2.
var upcasts = map[string][]upcast{
	"method-registered": {methodRegistered2},
}

// Upcast brings a stored event to the newest schema that this build knows. What is at it already, or of a type
// or schema that this build does not know, is left as it is, for the decoder to judge.
func Upcast(e events.Encoded) (events.Encoded, error) {
	steps := upcasts[e.Type]
	for e.Schema >= 1 && e.Schema <= len(steps) {
		data, err := steps[e.Schema-1](e.Data)
		if err != nil {
			return e, err
		}
		e.Data = data
		e.Schema++
	}
	return e, nil
}

// methodRegistered2 puts the word "delivery" in place of the flag "replaySafe". The fields are written out: what
// a schema holds does not change with the types of today.
func methodRegistered2(data []byte) ([]byte, error) {
	var e struct {
		User       string `json:"user"`
		Method     string `json:"method"`
		Peer       string `json:"peer"`
		Session    string `json:"session"`
		Connection string `json:"connection"`
		ReplaySafe bool   `json:"replaySafe,omitempty"`
		Delivery   string `json:"delivery"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, err
	}
	e.Delivery = "once"
	if e.ReplaySafe {
		e.Delivery, e.ReplaySafe = "again", false
	}
	return json.Marshal(e)
}
