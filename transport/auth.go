package transport

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"holdfast/commands"
)

// credentials are what the auth object of a CONNECT may hold.
type credentials struct {
	Token  string `json:"token"`
	User   string `json:"user"`
	Peer   string `json:"peer"`
	PID    string `json:"pid"`
	Offset string `json:"offset"`
}

// Authenticator finds out who a client is.
type Authenticator struct {
	// Key verifies HS256 tokens. Empty: no token is valid.
	Key []byte
	// Insecure lets clients without a token name their user themselves.
	Insecure bool
}

// identity is who a client is, which peer of the user it must be, if the token fixes that, and what it may do.
type identity struct {
	user   string
	peer   string
	claims commands.Claims
}

var unauthenticated = func(text string) error { return &ConnectError{Message: text, Code: "UNAUTHENTICATED"} }

// clockLeeway is how far the clocks of the issuer of tokens and of this replica may be apart.
const clockLeeway = 5 * time.Second

type claims struct {
	jwt.RegisteredClaims
	commands.Claims
	Peer string `json:"peer"`
}

func (a Authenticator) identify(c credentials) (identity, error) {
	switch {
	case c.Token != "" && len(a.Key) > 0:
		return a.verify(c)
	case c.Token != "" && !a.Insecure:
		return identity{}, unauthenticated("This server verifies no tokens")
	case !a.Insecure:
		return identity{}, unauthenticated("A token is required")
	case c.User == "":
		return identity{}, unauthenticated("auth.user is required")
	}
	return identity{user: c.User, peer: c.Peer, claims: commands.Everything()}, nil
}

func (a Authenticator) verify(c credentials) (identity, error) {
	var cl claims
	_, err := jwt.ParseWithClaims(c.Token, &cl, func(*jwt.Token) (any, error) { return a.Key, nil },
		jwt.WithValidMethods([]string{jwt.SigningMethodHS256.Alg()}), jwt.WithLeeway(clockLeeway))
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return identity{}, unauthenticated("The token has expired")
	case err != nil:
		return identity{}, unauthenticated("The token is not valid")
	case cl.Subject == "":
		return identity{}, unauthenticated("The token names no user (sub)")
	}
	id := identity{user: cl.Subject, peer: c.Peer, claims: cl.Claims}
	if cl.Peer != "" {
		if c.Peer != "" && c.Peer != cl.Peer {
			return identity{}, &ConnectError{Message: "The token is for another peer", Code: "FORBIDDEN"}
		}
		id.peer = cl.Peer
	}
	return id, nil
}

func parseCredentials(auth json.RawMessage) (credentials, error) {
	var c credentials
	if auth == nil {
		return c, nil
	}
	if err := json.Unmarshal(auth, &c); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return c, unauthenticated(fmt.Sprintf("auth.%s must be a string", wrong.Field))
		}
		return c, unauthenticated("auth must be an object")
	}
	return c, nil
}
