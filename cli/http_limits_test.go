package cli

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/store/redistest"
)

// Requests that are too large are refused, one that does not end is ended, and neither keeps others from being served.
func TestHTTPLimits(t *testing.T) {
	t.Parallel()
	p := serve(t, binary(t, ""), redistest.Start(t).URL, "a")
	address := strings.TrimPrefix(p.URL, "http://")
	open := func(request string) net.Conn {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		return c
	}
	began := time.Now()
	endless := open("GET /healthz HTTP/1.1\r\nHost: a\r\n")

	const end = " HTTP/1.1\r\nHost: a\r\n"
	long := strings.Repeat("x", 2*maxHeaderBytes)
	for name, request := range map[string]string{
		"header": "GET /healthz" + end + "X-Long: " + long + "\r\n\r\n",
		"URL":    "GET /healthz?" + long + end + "\r\n",
	} {
		c := open(request)
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second)) // then the read fails
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%s of %d bytes: %s", name, len(long), res.Status)
		}
	}
	if code, _ := p.get(p.URL + "/healthz"); code != http.StatusOK {
		t.Errorf("status %d after them", code)
	}
	_ = endless.SetReadDeadline(began.Add(readHeaderTimeout + 5*time.Second))
	if _, err := io.ReadAll(endless); err != nil {
		t.Errorf("a request that does not end, after %s: %v", time.Since(began), err)
	}
	if took := time.Since(began); took < readHeaderTimeout-time.Second {
		t.Errorf("it was ended after %s already", took)
	}
}
