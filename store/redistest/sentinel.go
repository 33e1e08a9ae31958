package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// MasterSet is the name under which a Sentinel knows its master.
const MasterSet = "m"

// Watch runs a Sentinel that watches the server and alone decides on a failover, after a second of silence. Its
// URL leads to whoever is the master.
func (s *Server) Watch(t testing.TB) *Server {
	t.Helper()
	file := filepath.Join(s.Dir, "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %[1]s 127.0.0.1 %[2]d 1\nsentinel down-after-milliseconds %[1]s 1000\n"+
		"sentinel failover-timeout %[1]s 3000\n", MasterSet, s.Port)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &Server{Dir: s.Dir, config: file}
	t.Cleanup(func() { w.Kill(t) })
	w.Port = freePort(t)
	w.address()
	if err := w.launch(); err != nil {
		t.Fatal(err)
	}
	w.URL += "?master_set=" + MasterSet
	return w
}
