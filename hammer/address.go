package hammer

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
)

// goElsewhere has the next attempt go to another server, if there are others.
func (c *Client) goElsewhere() error {
	if len(c.options.Elsewhere) == 0 {
		return nil
	}
	targets := make([]string, len(c.options.Elsewhere))
	next := 0
	for i, base := range c.options.Elsewhere {
		var err error
		if targets[i], err = endpoint(base, c.options.Path); err != nil {
			return err
		}
		if targets[i] == c.url {
			next = (i + 1) % len(targets)
		}
	}
	c.url = targets[next]
	return nil
}

// endpoint makes the WebSocket address of a server.
func endpoint(base, path string) (string, error) {
	u, err := url.Parse(base)
	if err != nil {
		return "", err
	}
	switch u.Scheme {
	case "http", "ws":
		u.Scheme = "ws"
	case "https", "wss":
		u.Scheme = "wss"
	default:
		return "", fmt.Errorf("want http, https, ws or wss, not %q", u.Scheme)
	}
	if path == "" {
		path = "/socket.io/"
	}
	u.Path = "/" + strings.TrimPrefix(path, "/")
	query := u.Query()
	query.Set("EIO", "4")
	query.Set("transport", "websocket")
	u.RawQuery = query.Encode()
	return u.String(), nil
}

func authFields(auth any) (map[string]json.RawMessage, error) {
	if auth == nil {
		return nil, nil
	}
	raw, err := json.Marshal(auth)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	return fields, json.Unmarshal(raw, &fields)
}

// connectAuth adds what recovery needs; nil if there is nothing to say.
func connectAuth(fields map[string]json.RawMessage, pid, offset string) ([]byte, error) {
	if pid == "" {
		if fields == nil {
			return nil, nil
		}
		return json.Marshal(fields)
	}
	all := make(map[string]any, len(fields)+2)
	for k, v := range fields {
		all[k] = v
	}
	all["pid"] = pid
	if offset != "" {
		all["offset"] = offset
	}
	return json.Marshal(all)
}
