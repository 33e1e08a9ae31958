package relay

import (
	"fmt"

	"holdfast/projections"
	"holdfast/replica"
)

// binaryGeneration is the first generation of the program that reads packed payloads with attachments.
const binaryGeneration = 3

const mixedVersions = "Not possible before every replica runs the newer version of the program"

// binaryRefused is what older builds take for the answer of a handler that answers with binary, and what they are
// told.
const binaryRefused = `{"ok":false,"error":"Binary is not supported","code":"BAD_REQUEST"}`

// tooManyAttachments: whoever they would be for could not read them.
var tooManyAttachments = fmt.Sprintf("A message may have %d attachments at most", replica.MaxAttachments)

// takesBinary reports whether a replica reads payloads with attachments.
func (r *Relay) takesBinary(instance string) bool {
	ok := false
	r.rep.View(func(s *projections.State) {
		p, live := s.Replica(instance)
		ok = live && p.Understands >= binaryGeneration
	})
	return ok
}

// readable is a packed result for another replica, or what that can read in its place.
func (r *Relay) readable(instance string, result []byte) []byte {
	if replica.Packed(result) && !r.takesBinary(instance) {
		return []byte(binaryRefused)
	}
	return result
}

// lasting is the packed outcome of a repeatable call, or, while a replica lives that could not read it, a failure.
func (r *Relay) lasting(ack []byte) []byte {
	if !replica.Packed(ack) {
		return ack
	}
	understood := 0
	r.rep.View(func(s *projections.State) { understood = s.Understood() })
	if understood < binaryGeneration {
		return failure(CodeStoreUnavailable, mixedVersions).Ack.JSON
	}
	return ack
}
