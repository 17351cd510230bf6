package sampleapp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func serve(t *testing.T, a *app) string {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.Config = a.server()
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

func get(t *testing.T, c *http.Client, method, url string, header http.Header) (int, answer) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var out answer
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, out
}

func TestAnswersNestAndHeadersTravel(t *testing.T) {
	var seen http.Header
	last := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		writeJSON(w, 200, answer{self: self{Service: "ratings"}, Status: 200})
	}))
	defer last.Close()
	a := newApp(self{Service: "reviews", Version: "v2", Pod: "reviews-v2-1"}, []string{last.URL + "/r"})
	h := http.Header{}
	h.Set("X-Canary", "1")
	h.Set("Traceparent", "00-1")
	h.Set("Accept-Language", "de")
	h.Set("X-Forwarded-Client-Cert", `By=spiffe://a;URI=spiffe://first,By=spiffe://b;Subject="";URI=spiffe://td/ns/n/sa/caller`)
	status, out := get(t, http.DefaultClient, "POST", serve(t, a)+"/x", h)
	want := answer{
		self: a.self, Protocol: "HTTP/1.1", Path: "/x", Peer: "spiffe://td/ns/n/sa/caller", Status: 200,
		Calls: []answer{{self: self{Service: "ratings"}, Status: 200}},
	}
	if diff := cmp.Diff(want, out, cmp.AllowUnexported(answer{})); diff != "" || status != 200 {
		t.Errorf("status %d, answer (-want +got):\n%s", status, diff)
	}
	if seen.Get("X-Canary") != "1" || seen.Get("Traceparent") != "00-1" || seen.Get("X-Forwarded-Client-Cert") != "" || seen.Get("Accept-Language") != "" {
		t.Errorf("forwarded headers: %v", seen)
	}
}

func TestUpstreamFailureShowsInStatus(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + l.Addr().String()
	_ = l.Close()
	a := newApp(self{Service: "a"}, []string{closed})
	status, out := get(t, http.DefaultClient, "GET", serve(t, a), nil)
	if status != http.StatusBadGateway || out.Calls[0].Error == "" {
		t.Errorf("status %d, answer %+v", status, out)
	}
	b := newApp(self{Service: "b"}, nil)
	if status, _ := get(t, http.DefaultClient, "GET", serve(t, b)+"/?status=503&delay=1ms", nil); status != 503 {
		t.Errorf("asked for 503, got %d", status)
	}
}

func TestServesHTTP2WithoutTLSAndCounts(t *testing.T) {
	a := newApp(self{Service: "a"}, nil)
	url := serve(t, a)
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p}
	defer tr.CloseIdleConnections()
	if _, out := get(t, &http.Client{Transport: tr}, "GET", url, nil); out.Protocol != "HTTP/2.0" {
		t.Errorf("protocol %s", out.Protocol)
	}
	res, err := http.Get(url + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if text, _ := io.ReadAll(res.Body); strings.TrimSpace(string(text)) != `{"http":1,"lines":0}` {
		t.Errorf("stats: %s", text)
	}
}

func TestRunServesLinesAndEndsGracefully(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, options{self: self{Pod: "db-1", Version: "v1"}, tcp: []string{addr}}) }()
	var c net.Conn
	for c == nil {
		if c, err = net.Dial("tcp", addr); err != nil && ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	defer func() { _ = c.Close() }()
	if _, err := fmt.Fprintln(c, "ping"); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || line != "db-1 v1 ping\n" {
		t.Errorf("line %q, error %v", line, err)
	}
	cancel() // the connection is still open: the end closes it
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := run(t.Context(), options{http: []string{"256.0.0.1:1"}}); err == nil || !strings.Contains(err.Error(), "listen on 256.0.0.1:1") {
		t.Errorf("an impossible address gives %v", err)
	}
}
