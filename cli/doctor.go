package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"holdfast/store"
)

// DoctorCmd is `doctor`.
type DoctorCmd struct {
	Redis string `placeholder:"URL" help:"Redis to check: reachable, new enough, keeps what it is given. Required unless --url."`
	URL   string `name:"url" env:"HOLDFAST_DOCTOR_URL" placeholder:"URL" help:"Check this instead: an address of a running replica, such as http://127.0.0.1:8080/readyz, that must answer 200."`
}

// Run checks, prints a line for each finding, and fails if one of them is bad.
func (c *DoctorCmd) Run(ctx context.Context, out *output) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if c.URL != "" {
		return c.checkURL(ctx, out)
	}
	if c.Redis == "" {
		return usageError{"no Redis is given. Set --redis or HOLDFAST_REDIS to its URL, such as redis://127.0.0.1:6379"}
	}
	st, err := store.Open(store.Options{URL: c.Redis})
	if err != nil {
		return err
	}
	defer st.Close()
	findings, err := st.Examine(ctx)
	if err != nil {
		return err
	}
	bad := 0
	for _, f := range findings {
		mark := "ok  "
		if f.Bad {
			mark = "BAD "
			bad++
		}
		fmt.Fprintf(out.stdout, "%s %s\n", mark, f.Text)
	}
	if bad > 0 {
		return fmt.Errorf("%d findings are bad", bad)
	}
	return nil
}

func (c *DoctorCmd) checkURL(ctx context.Context, out *output) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return usageError{fmt.Sprintf("--url %q: %v", c.URL, err)}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", c.URL, res.Status, strings.TrimSpace(string(text)))
	}
	fmt.Fprintf(out.stdout, "ok   %s: %s\n", c.URL, strings.TrimSpace(string(text)))
	return nil
}
