package cli

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"

	"github.com/rs/zerolog"

	"holdfast/replica"
)

// admin serves, on an address of its own, what is for operators only: the digest of the state and Go's profiles.
// A nil admin serves nothing.
type admin struct {
	server *http.Server
	rep    atomic.Pointer[replica.Replica] // nil until the store was reached
}

// newAdmin listens on the address; on none when it is empty.
func newAdmin(address string, log zerolog.Logger) (*admin, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on --admin-listen %s: %w", address, err)
	}
	a := &admin{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /admin/digest", a.digest)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	a.server = &http.Server{Handler: mux, ReadHeaderTimeout: readHeaderTimeout}
	go func() { _ = a.server.Serve(l) }()
	log.Warn().Str("address", l.Addr().String()).Msg("digest and profiles are served")
	return a, nil
}

func (a *admin) watch(rep *replica.Replica) {
	if a != nil {
		a.rep.Store(rep)
	}
}

func (a *admin) close() {
	if a != nil {
		_ = a.server.Close()
	}
}

func (a *admin) digest(w http.ResponseWriter, _ *http.Request) {
	rep := a.rep.Load()
	if rep == nil {
		http.Error(w, "starting: the store has not been reached yet", http.StatusServiceUnavailable)
		return
	}
	d := rep.Digest()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct {
		Instance      string `json:"instance"`
		Position      string `json:"position"`
		Digest        string `json:"digest"`
		Generation    uint64 `json:"generation"`
		Understood    int    `json:"understood"`
		Replicas      int    `json:"replicas"`
		Peers         int    `json:"peers"`
		Registrations int    `json:"registrations"`
	}{rep.Instance(), d.Position.String(), hex.EncodeToString(d.Sum[:]), d.Generation, d.Understood, d.Replicas, d.Peers, d.Registrations})
}
