package sampleapp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// self is who answers.
type self struct {
	Service string `json:"service"`
	Version string `json:"version,omitempty"`
	Pod     string `json:"pod,omitempty"`
}

// answer is what a request gets. Peer is the caller's identity as the proxy in front of
// the app vouches for it, empty where the call came in plaintext or without a proxy.
type answer struct {
	self
	Protocol string   `json:"protocol,omitempty"`
	Path     string   `json:"path,omitempty"`
	Peer     string   `json:"peer,omitempty"`
	Status   int      `json:"status"`
	Error    string   `json:"error,omitempty"`
	Calls    []answer `json:"calls,omitempty"`
}

// app holds what is counted and whom to call; its handlers may run side by side.
type app struct {
	self   self
	calls  []string
	client *http.Client
	http   atomic.Int64
	lines  atomic.Int64
	conns  connSet
	log    io.Writer // nil: no log
}

// maxBody bounds what is read of a request or an answer, in bytes.
const maxBody = 4 << 20

func newApp(s self, calls []string) *app {
	t := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second}
	return &app{self: s, calls: calls, client: &http.Client{Transport: t, Timeout: 30 * time.Second}}
}

// server serves HTTP/1.1 and HTTP/2 with prior knowledge, both without TLS.
func (a *app) server() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/stats", a.stats)
	mux.HandleFunc("/", a.answer)
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{Handler: mux, Protocols: p, ReadHeaderTimeout: 10 * time.Second}
}

func (a *app) stats(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]int64{"http": a.http.Load(), "lines": a.lines.Load()})
}

func (a *app) answer(w http.ResponseWriter, r *http.Request) {
	a.http.Add(1)
	out := answer{self: a.self, Protocol: r.Proto, Path: r.URL.Path, Peer: peer(r.Header), Status: http.StatusOK}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		out.Status, out.Error = http.StatusBadRequest, fmt.Sprintf("read the request's body: %v", err)
		writeJSON(w, out.Status, out)
		return
	}
	if d, err := time.ParseDuration(r.URL.Query().Get("delay")); err == nil {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
			return
		}
	}
	if s, err := strconv.Atoi(r.URL.Query().Get("status")); err == nil && s >= 200 && s <= 599 {
		out.Status = s
	}
	for _, url := range a.calls {
		next := a.call(r, url, body)
		if next.Status != http.StatusOK && out.Status == http.StatusOK {
			out.Status = next.Status
		}
		out.Calls = append(out.Calls, next)
	}
	a.tell(r, out.Status)
	writeJSON(w, out.Status, out)
}

// call makes one onward call with the request's method, body and headers. It is never
// made twice: a body that cannot be had again keeps net/http from repeating a request on
// a fresh connection, so that the counts of a test mean what they say.
func (a *app) call(in *http.Request, url string, body []byte) answer {
	req, err := http.NewRequestWithContext(in.Context(), in.Method, url, bytes.NewReader(body))
	if err != nil {
		return answer{Path: url, Status: http.StatusInternalServerError, Error: err.Error()}
	}
	req.GetBody = nil
	forward(in.Header, req.Header)
	res, err := a.client.Do(req)
	if err != nil {
		return answer{Path: url, Status: http.StatusBadGateway, Error: err.Error()}
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	var out answer
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		out = answer{Path: url, Error: strings.TrimSpace(string(text[:min(len(text), 200)]))}
	}
	out.Status = res.StatusCode
	return out
}

// passed are the headers besides x-… that travel with a request through the mesh.
var passed = map[string]bool{"Traceparent": true, "Tracestate": true, "Baggage": true, "B3": true, "Cookie": true, "Authorization": true}

// forward copies the headers that belong to the request rather than to the hop: those
// for tracing, and x-… except what proxies write about a hop.
func forward(in, out http.Header) {
	for name, values := range in {
		hop := strings.HasPrefix(name, "X-Envoy-") || strings.HasPrefix(name, "X-Forwarded-")
		if passed[name] || strings.HasPrefix(name, "X-") && !hop {
			out[name] = values
		}
	}
}

// peer reads the caller's identity from X-Forwarded-Client-Cert: the URI of the last
// element, which the nearest proxy wrote.
func peer(h http.Header) string {
	all := h.Get("X-Forwarded-Client-Cert")
	last := all[strings.LastIndexByte(all, ',')+1:]
	for part := range strings.SplitSeq(last, ";") {
		if uri, ok := strings.CutPrefix(part, "URI="); ok {
			return strings.Trim(uri, `"`)
		}
	}
	return ""
}

// tell prints a line about a request.
func (a *app) tell(r *http.Request, status int) {
	if a.log == nil {
		return
	}
	from := peer(r.Header)
	if from == "" {
		from = "a caller without an identity"
	}
	// The log is for people: an error to write it has no other reader.
	_, _ = fmt.Fprintf(a.log, "%s %q %d from %s\n", r.Method, r.URL.Path, status, from)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error here means that the caller has gone: there is nobody to tell.
	_ = json.NewEncoder(w).Encode(v)
}
