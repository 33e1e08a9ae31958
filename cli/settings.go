package cli

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"
)

// setting is one flag with its value and where that came from: "flag", "environment" or "default".
type setting struct {
	name   string
	value  string
	source string
}

// settingsOf lists the settings of the chosen command, secrets masked.
func settingsOf(parsed *kong.Context) []setting {
	given := map[*kong.Flag]bool{}
	for _, part := range parsed.Path {
		if part.Flag != nil {
			given[part.Flag] = true
		}
	}
	var all []setting
	for _, group := range parsed.Selected().AllFlags(true) {
		for _, f := range group {
			if f.Name == "help" || f.Name == "version" {
				continue
			}
			s := setting{name: f.Name, value: fmt.Sprint(f.Target.Interface()), source: "default"}
			if given[f] {
				s.source = "flag"
			} else {
				for _, env := range f.Envs {
					if v, ok := os.LookupEnv(env); ok && v != "" {
						s.source = "environment"
					}
				}
			}
			s.value = mask(f.Name, s.value)
			all = append(all, s)
		}
	}
	return all
}

// mask hides what must not be in a log.
func mask(name, value string) string {
	switch {
	case value == "":
	case strings.Contains(name, "key"), strings.Contains(name, "token"), strings.Contains(name, "secret"):
		return "***"
	case name == "redis", name == "baseline":
		u, err := url.Parse(value)
		if err != nil {
			return "***"
		}
		return u.Redacted()
	case name == "room-hook":
		u, err := url.Parse(value)
		if err != nil {
			return "***"
		}
		if u.RawQuery != "" {
			u.RawQuery = "***"
		}
		return u.Redacted()
	}
	return value
}

// logSettings writes one line with every setting, its value and where that came from.
func logSettings(log zerolog.Logger, settings []setting) {
	e := log.Info()
	n := 0
	for _, s := range settings {
		e = e.Str("--"+s.name, s.value+" ("+s.source+")")
		if s.source != "default" {
			n++
		}
	}
	e.Msgf("settings; %d are not at their defaults", n)
}

// newLogger makes the one logger of the process.
func newLogger(w io.Writer, level, format string) zerolog.Logger {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	zerolog.DurationFieldUnit = time.Millisecond
	if format == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: "15:04:05.000"}
	}
	at, err := zerolog.ParseLevel(level)
	if err != nil {
		at = zerolog.InfoLevel
	}
	return zerolog.New(zerolog.SyncWriter(w)).Level(at).With().Timestamp().Logger()
}
