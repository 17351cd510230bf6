// Package ui serves the page of the control plane at /ui: what proxies have, what is wrong, and what has changed.
//
// The page is HTML, CSS and JavaScript that the program contains; it loads nothing from elsewhere and keeps nothing in the
// browser. A Hub reads the state of the control plane at most once a second, only while pages are open, and sends each page
// what has changed since its last update, as server-sent events. Names of objects and messages of proxies are hostile input:
// the page sets them as text, and a Content-Security-Policy rules out scripts and styles of another origin, inline ones, and
// what makes elements of text. Access is for the caller of Handle to guard.
package ui

import (
	"bytes"
	"embed"
	"net/http"
	"time"
)

//go:embed assets
var assets embed.FS

// policy allows what the page needs, and no more. Trusted Types without a policy forbid innerHTML and the like.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// files are the paths below /ui/, with their type.
var files = map[string]struct{ name, contentType string }{
	"{$}":       {"index.html", "text/html; charset=utf-8"},
	"style.css": {"style.css", "text/css; charset=utf-8"},
	"app.js":    {"app.js", "text/javascript; charset=utf-8"},
	"icon.svg":  {"icon.svg", "image/svg+xml"},
}

// Handle adds the page and its events to a mux, each within guard. It panics if the program does not contain a file of the page.
func Handle(m *http.ServeMux, h *Hub, guard func(http.HandlerFunc) http.HandlerFunc) {
	m.HandleFunc("GET /ui", guard(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ui/", http.StatusFound) }))
	for path, f := range files {
		content, err := assets.ReadFile("assets/" + f.name)
		if err != nil {
			panic("ui: " + err.Error())
		}
		m.HandleFunc("GET /ui/"+path, guard(func(w http.ResponseWriter, r *http.Request) {
			setHeaders(w.Header(), f.contentType)
			http.ServeContent(w, r, f.name, time.Time{}, bytes.NewReader(content))
		}))
	}
	m.HandleFunc("GET /ui/events", guard(h.events))
	m.HandleFunc("GET /ui/neighbours", guard(h.neighbours))
}

func setHeaders(h http.Header, contentType string) {
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
}
