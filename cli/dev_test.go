package cli

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// ask does one request for a session of long-polling and returns what came.
func ask(t *testing.T, client *http.Client, method, url, body string) string {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %d %s, %v", method, url, res.StatusCode, b, err)
	}
	return string(b)
}

// pollAcross opens a session of long-polling at one replica and joins through another.
func pollAcross(t *testing.T, client *http.Client, at, through string) {
	t.Helper()
	const path = "/socket.io/?EIO=4&transport=polling"
	var open struct {
		SID string `json:"sid"`
	}
	if err := json.Unmarshal([]byte(ask(t, client, "GET", at+path, "")[1:]), &open); err != nil {
		t.Fatal(err)
	}
	session := through + path + "&sid=" + open.SID
	ask(t, client, "POST", session, `40{"user":"me"}`)
	if got := ask(t, client, "GET", session, ""); !strings.HasPrefix(got, `40{"sid"`) {
		t.Errorf("joined with %s", got)
	}
	ask(t, client, "POST", session, "1")
}

// Ports that the system chose are those by which the replicas know each other.
func TestDevOnAnyPort(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, errs := &watched{}, &watched{}
	ended := make(chan int, 1)
	go func() { ended <- Run(ctx, []string{"dev", "--listen", "127.0.0.1:0", "--replicas", "2"}, out, errs) }()
	var urls []string
	eventually(t, "it says where it is", func() bool {
		urls = regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindAllString(out.String(), 2)
		return len(urls) == 2
	})
	for _, url := range urls {
		eventually(t, url+" knows both replicas", func() bool {
			res, err := http.Get(url + "/metrics")
			if err != nil {
				return false
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			return err == nil && strings.Contains(string(b), "\nholdfast_replicas 2\n")
		})
	}
	pollAcross(t, http.DefaultClient, urls[0], urls[1])
	pollAcross(t, http.DefaultClient, urls[1], urls[0])
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("ended with %d: %s", code, errs.String())
	}
}
