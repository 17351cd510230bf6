package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"pilotctl": func() {
			os.Exit(run(context.Background(), os.Args[1:], cli.Environment(os.Environ()), os.Stdout, os.Stderr))
		},
	})
}

// TestScripts runs testdata/*.txtar. Each has a discovery of its own at $DISCOVERY that
// serves the script's files: syncz.json, factsz.json, objectz.json, dump-PROXY.json, secrets-PROXY.json, explain-FROM-TO.json with the question's path behind TO, applied.json, appliedNAME.json, for
// a file sent to it, file-CONTENT.json, and about the CA ca.json and, for a request to rotate, rotate.json; ready and version, with the Date of the file date.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("condition %q: want root", name)
			}
			return os.Geteuid() == 0, nil
		},
		Setup: func(e *testscript.Env) error {
			s := httptest.NewServer(pages(e.WorkDir))
			e.Defer(s.Close)
			e.Setenv("DISCOVERY", s.URL)
			return nil
		},
	})
}

func pages(dir string) http.Handler {
	mux := http.NewServeMux()
	serve := func(w http.ResponseWriter, r *http.Request, name string) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			http.Error(w, "no such proxy is connected", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text)
	}
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		if date, err := os.ReadFile(filepath.Join(dir, "date")); err == nil {
			w.Header().Set("Date", strings.TrimSpace(string(date)))
		}
		serve(w, r, "ready")
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, r *http.Request) { serve(w, r, "version") })
	mux.HandleFunc("GET /debug/secretz", func(w http.ResponseWriter, r *http.Request) {
		serve(w, r, "secrets-"+filepath.Base(r.FormValue("proxyID"))+".json")
	})
	mux.HandleFunc("GET /debug/factsz", func(w http.ResponseWriter, r *http.Request) { serve(w, r, "factsz.json") })
	mux.HandleFunc("GET /debug/syncz", func(w http.ResponseWriter, r *http.Request) { serve(w, r, "syncz.json") })
	mux.HandleFunc("GET /debug/applied", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("kind") == "deployment" {
			http.Error(w, "invalid kind", http.StatusBadRequest)
			return
		}
		serve(w, r, "applied"+r.FormValue("name")+".json")
	})
	mux.HandleFunc("POST /debug/applied", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		serve(w, r, "file-"+strings.TrimSpace(string(text))+".json")
	})
	mux.HandleFunc("POST /debug/explain", func(w http.ResponseWriter, r *http.Request) {
		var q struct{ From, To, Path string }
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		name := "explain-" + strings.ReplaceAll(q.From+"-"+q.To+q.Path, "/", "_") + ".json"
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			http.Error(w, fmt.Sprintf("no Pod and no connected proxy %q: want POD.NAMESPACE", q.From), http.StatusNotFound)
			return
		}
		serve(w, r, name)
	})
	mux.HandleFunc("GET /debug/ca", func(w http.ResponseWriter, r *http.Request) { serve(w, r, "ca.json") })
	mux.HandleFunc("POST /debug/ca/rotate", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Content-Type") != "application/json" {
			http.Error(w, "invalid Content-Type", http.StatusUnsupportedMediaType)
			return
		}
		if _, err := os.Stat(filepath.Join(dir, "rotate.json")); err != nil {
			http.Error(w, "rotate the root: a rotation of the root is in progress since 2026-11-22T08:00:00Z: pilotctl ca status says what it waits for", http.StatusConflict)
			return
		}
		serve(w, r, "rotate.json")
	})
	mux.HandleFunc("GET /escapes/debug/syncz", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "go away\x1b[2J", http.StatusForbidden) })
	mux.HandleFunc("GET /debug/objectz", func(w http.ResponseWriter, r *http.Request) { serve(w, r, "objectz.json") })
	mux.HandleFunc("GET /debug/config_dump", func(w http.ResponseWriter, r *http.Request) {
		serve(w, r, "dump-"+filepath.Base(r.FormValue("proxyID"))+".json")
	})
	return mux
}
