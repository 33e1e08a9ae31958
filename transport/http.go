package transport

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast/replica"
)

// Routes serves what a replica answers over HTTP: its health, its metrics, and the clients' connections on all
// other paths.
//
//	GET /healthz  200 while the process is alive; never depends on the store
//	GET /readyz   200 when caught up with the log and able to append, else 503 with the reason
//	GET /metrics  Prometheus
func Routes(rep *replica.Replica, g *Gateway, m *Metrics, clients http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if g.draining.Load() {
			answer(w, http.StatusServiceUnavailable, "draining")
			return
		}
		if err := rep.ReadyError(); err != nil {
			answer(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		answer(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.Registry, promhttp.HandlerOpts{}))
	mux.Handle("/", clients)
	return mux
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text)
}
