package hammer

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
)

const (
	progressEvery = 250 * time.Millisecond
	progressWidth = 24
)

// Terminal is stderr if a person is watching it, else nil: no progress is shown.
func Terminal() io.Writer {
	if isatty.IsTerminal(os.Stderr.Fd()) {
		return os.Stderr
	}
	return nil
}

// showProgress redraws one line on w until the returned function is called,
// which wipes it.
func showProgress(w io.Writer, line func() string) (stop func()) {
	if w == nil {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = fmt.Fprintf(w, "\r%s\x1b[K", line())
			case <-quit:
				_, _ = fmt.Fprint(w, "\r\x1b[K")
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// bar draws a share between 0 and 1.
func bar(share float64) string {
	full := int(min(max(share, 0), 1) * progressWidth)
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", progressWidth-full) + "]"
}

// watchLoad shows a load on w.
func watchLoad(w io.Writer, name string) func(time.Duration, func() (time.Duration, Figures)) func() {
	return func(total time.Duration, now func() (time.Duration, Figures)) func() {
		return showProgress(w, func() string {
			elapsed, f := now()
			return fmt.Sprintf("%s %s %.0fs of %.0fs  %.0f calls/s  p99 %.2f ms  %d errors",
				name, bar(elapsed.Seconds()/total.Seconds()), elapsed.Seconds(), total.Seconds(),
				f.CallsPerSecond, f.Latency.P99, f.Errors)
		})
	}
}
