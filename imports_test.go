package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// mayImport is the one-way order of the folders: each may import those named and nothing else of ours.
var mayImport = map[string]string{
	".":                  "cli",
	"cli":                "events projections commands store migrations replica relay transport hammer",
	"events":             "",
	"projections":        "events",
	"commands":           "events projections",
	"store":              "events migrations sockets",
	"store/redistest":    "",
	"migrations":         "events",
	"replica":            "events projections commands store migrations",
	"relay":              "events projections commands store replica",
	"transport":          "events projections commands store replica relay transport/engineio transport/socketio sockets",
	"transport/engineio": "",
	"transport/socketio": "",
	"hammer":             "transport/engineio transport/socketio sockets",
	"sockets":            "",
}

// Tests may use what starts a Redis for them, besides.
const testsMayImport = " store/redistest"

func TestImportsGoOneWay(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || d.Name() == "e2e") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(file, ".go") {
			return nil
		}
		folder := path.Dir(filepath.ToSlash(file))
		allowed, known := mayImport[folder]
		if !known {
			t.Errorf("%s: folder %q has no place in the order of imports", file, folder)
			return nil
		}
		seen[folder] = true
		if strings.HasSuffix(file, "_test.go") {
			allowed += testsMayImport + " " + folder
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imp := range f.Imports {
			p, _ := strconv.Unquote(imp.Path.Value)
			ours, isOurs := strings.CutPrefix(p, "holdfast/")
			if isOurs && !contains(strings.Fields(allowed), ours) {
				t.Errorf("%s imports %s: the order of imports does not allow it", file, p)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"events", "projections", "commands", "store", "replica", "relay", "transport", "cli"} {
		if !seen[folder] {
			t.Errorf("no Go files were found in %s: the test looks in the wrong place", folder)
		}
	}
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}
