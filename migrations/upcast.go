// Package migrations is how stored things changed: upcasts of events from older schemas, and the steps of the
// stored layout.
//
// It promises that what any released version has written can be read by this one, and that stored entries are
// never rewritten: an older event is brought to the newest schema as it is read.
package migrations

import "holdfast/events"

// An upcast turns the data of one schema of an event type into that of the next.
type upcast func(data []byte) ([]byte, error)

// upcasts are by event type; the first turns schema 1 into schema 2. There is none yet: every type is at its
// first schema.
var upcasts = map[string][]upcast{}

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
