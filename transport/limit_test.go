package transport

import "testing"

func TestConnectionLimits(t *testing.T) {
	const refusal = `44{"message":"Too many connections","data":{"code":"TOO_MANY_CONNECTIONS"}}`
	for name, o := range map[string]Options{"in total": {MaxConnections: 2}, "per address": {MaxPerAddress: 2}} {
		t.Run(name, func(t *testing.T) {
			app := newTestApp()
			srv, url := start(t, o, app)
			first, second := join(t, url), pollJoined(t, url)
			third := dial(t, url)
			third.send("40")
			third.want(refusal)
			third.wantClose(1013)
			polls := poll(t, url)
			polls.post("40")
			polls.want(refusal, "1")
			first.send(`421["a"]`)
			first.want(`431[]`)
			second.post("1")
			wantReason(t, app, ReasonTransportClose)
			join(t, url)
			until(t, "both that were too many are closed", func() bool { return srv.Stats().Closed[ReasonTooMany] == 2 })
		})
	}
}
