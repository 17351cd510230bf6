package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A matrix does all its runs, also after one that fails, and writes a table of each.
func TestMatrix(t *testing.T) {
	var out, said bytes.Buffer
	args := []string{"-services", "8", "-namespaces", "2", "-repeat", "1", "-bound", wait.Bound.String(), "-discovery", discoveryPath(t),
		"-matrix", "streams=4 streams=4,discovery=/no/such/program namespaces=1,streams=3,protocol=sotw"}
	err := command(t.Context(), args, &out, &said)
	if err == nil || !strings.Contains(err.Error(), "/no/such/program") || strings.Count(err.Error(), "run ") != 1 {
		t.Errorf("error %v, want one of the second run", err)
	}
	text := out.String()
	for _, part := range []string{"4 streams (delta, plaintext); 8 services × 2 endpoints in 2 namespaces", "3 streams (state of the world, plaintext); 8 services × 2 endpoints in 1 namespaces"} {
		if strings.Count(text, part) != 1 {
			t.Errorf("want %q once in\n%s", part, text)
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "|") && strings.Count(line, "|") != 12 {
			t.Errorf("a line of %d columns: %s", strings.Count(line, "|")-1, line)
		}
	}
	if n := strings.Count(text, "\n| "+stepBack+" |"); n != 2 {
		t.Errorf("%d lines of the last step, want 2:\n%s", n, text)
	}
}

func TestMatrixIsParsed(t *testing.T) {
	if runs, err := parseMatrix("standard"); err != nil || len(runs) != len(strings.Fields(standardMatrix)) {
		t.Errorf("%v, %v", runs, err)
	}
	for args, want := range map[string]string{
		"streams=1,,tls":      "invalid run",
		"matrix=standard":     "invalid run",
		" ":                   "has no run",
		"streams=0":           "invalid -streams 0",
		"speed=9":             "-speed",
		"streams=100000000":   "open files",
		"cpuprofile-time=1ms": "invalid -cpuprofile-time",
	} {
		err := command(t.Context(), []string{"-matrix", args}, new(bytes.Buffer), new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-matrix %q: %v, want an error with %q", args, err, want)
		}
	}
}

func TestProfiles(t *testing.T) {
	asked := make(chan string, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/cmdline", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/debug/pprof/profile", func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.RawQuery
		_, _ = w.Write([]byte("a profile"))
	})
	mux.HandleFunc("/debug/pprof/heap", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("a heap")) })
	s := httptest.NewServer(mux)
	defer s.Close()
	d, p := &discovery{http: strings.TrimPrefix(s.URL, "http://")}, profiler{dir: filepath.Join(t.TempDir(), "new"), time: 2 * time.Second}
	if err := p.check(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if err := p.during(t.Context(), d, stepBack, func() error {
		if q := <-asked; q != "seconds=2" {
			t.Errorf("the profile's query is %q", q)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(p.dir, "all-come-back-unchanged.pprof")); err != nil || string(text) != "a profile" {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := os.ReadFile(filepath.Join(p.dir, "all-come-back-unchanged-heap.pprof")); err != nil || string(text) != "a heap" {
		t.Errorf("%q, %v", text, err)
	}
	none := httptest.NewServer(http.NotFoundHandler())
	defer none.Close()
	if err := p.check(t.Context(), &discovery{http: strings.TrimPrefix(none.URL, "http://")}); err == nil || !strings.Contains(err.Error(), "-cpuprofile needs") {
		t.Errorf("without /debug/pprof: %v", err)
	}
}
