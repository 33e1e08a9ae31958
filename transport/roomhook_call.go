package transport

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"holdfast/events"
	"holdfast/replica"
)

// hookCaller makes the calls to the hook.
type hookCaller struct {
	url     string
	key     []byte
	timeout time.Duration
	client  *http.Client
	counts  *hookCounts
}

// hookCounts are the calls that have ended.
type hookCounts struct {
	outcomes replica.Counters // by event and outcome, with a space between
}

// Outcomes of a call.
const (
	hookOK          = "ok"
	hookRefused     = "refused" // answered, with another status than 2xx
	hookTimeout     = "timeout"
	hookUnreachable = "unreachable"
	hookCancelled   = "cancelled" // the room has moved meanwhile, or the replica stops
)

// hookBody is what is sent.
type hookBody struct {
	ID       string          `json:"id"`
	Event    string          `json:"event"`
	Room     string          `json:"room"`
	Instance string          `json:"instance"`
	URL      string          `json:"url,omitempty"`
	Token    events.Position `json:"token"`
	Former   string          `json:"former,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	At       time.Time       `json:"at"`
}

// hookFailure is a call that has not succeeded and is to be tried again.
type hookFailure struct {
	outcome string
	err     error
}

func (e *hookFailure) Error() string { return e.err.Error() }
func (e *hookFailure) Unwrap() error { return e.err }

// maxHookAnswer is how much of an answer is read, to use its connection again.
const maxHookAnswer = 64 << 10

func newHookCaller(cfg RoomHookConfig) hookCaller {
	return hookCaller{
		url: cfg.URL, key: []byte(cfg.Key), timeout: cfg.Timeout, counts: &hookCounts{},
		client: &http.Client{
			Transport: &http.Transport{
				MaxIdleConnsPerHost: hookWorkers, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: cfg.Timeout,
			},
			// A redirect of a POST would be followed by a GET.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

func (c hookCaller) close() { c.client.CloseIdleConnections() }

// do makes one call, which ends by then. The error is a *hookFailure.
func (c hookCaller) do(ctx context.Context, by time.Time, room string, call hookCall) error {
	outcome, err := c.post(ctx, by, room, call)
	c.counts.outcomes.With(call.Event + " " + outcome).Inc()
	if err != nil {
		return &hookFailure{outcome: outcome, err: fmt.Errorf("room hook: %s %q: %w", call.Event, room, err)}
	}
	return nil
}

func (c hookCaller) post(ctx context.Context, by time.Time, room string, call hookCall) (outcome string, err error) {
	body, err := json.Marshal(hookBody{
		ID: call.Token.String() + "/" + call.Event + "/" + room, Event: call.Event, Room: room, Instance: call.Instance, URL: call.URL,
		Token: call.Token, Former: call.Former, Reason: call.Reason, At: call.At,
	})
	if err != nil {
		return hookUnreachable, err
	}
	bounded, cancel := context.WithDeadline(ctx, by)
	defer cancel()
	req, err := http.NewRequestWithContext(bounded, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return hookUnreachable, errors.New("--room-hook is no URL that can be called")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "holdfast")
	req.Header.Set(HookSignatureHeader, signHook(c.key, time.Now(), body))
	res, err := c.client.Do(req)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return hookCancelled, ctx.Err()
	case bounded.Err() != nil:
		return hookTimeout, fmt.Errorf("no answer within %s", c.timeout)
	default:
		return hookUnreachable, errors.Unwrap(err) // without the URL, which may hold a password
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.CopyN(io.Discard, res.Body, maxHookAnswer)
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return hookRefused, fmt.Errorf("answered with status %d, want 2xx", res.StatusCode)
	}
	return hookOK, nil
}

// HookSignatureHeader carries when a call was signed, seconds since 1970, and the HMAC-SHA256 of that, a dot and the
// body, with the key: "t=1796006847,v1=<hex>".
const HookSignatureHeader = "Holdfast-Signature"

func signHook(key []byte, at time.Time, body []byte) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(stamp + "."))
	mac.Write(body)
	return "t=" + stamp + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}
