package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestPlacesInSARIF(t *testing.T) {
	for file, want := range map[string]string{
		"mesh/a.yaml":           "mesh/a.yaml",
		"./mesh/a.yaml":         "mesh/a.yaml",
		"/work tree/mesh/a.yml": "mesh/a.yml",
		"/elsewhere/my a.yaml":  "file:///elsewhere/my%20a.yaml",
		"my mesh/a%b.yaml":      "my%20mesh/a%25b.yaml",
	} {
		if got := artifactURI("/work tree", file); got != want {
			t.Errorf("%s: got %s, want %s", file, got, want)
		}
	}
}

func TestMessagesInSARIF(t *testing.T) {
	var b strings.Builder
	if err := printSARIF(&b, "", []validated{
		{Severity: "error", File: "a.yaml", Text: "the YAML does not parse"},
		{Severity: "error", File: "a.yaml", Object: "Service shop/web", Text: "a"},
		{Severity: "error", File: "a.yaml", Object: "Service shop/web", Field: "spec.b", Text: "c"},
	}); err != nil {
		t.Fatal(err)
	}
	var log sarifLog
	if err := json.Unmarshal([]byte(b.String()), &log); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"the YAML does not parse", "Service shop/web: a", "Service shop/web: spec.b: c"} {
		if got := log.Runs[0].Results[i].Message.Text; got != want {
			t.Errorf("result %d: got %q, want %q", i, got, want)
		}
	}
}
