package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

// hubAt serves a hub of what read returns, and returns a function that ends it.
func hubAt(t *testing.T, read func() State, l Limits) (h *Hub, url string, end func()) {
	t.Helper()
	h = NewHub(read, l)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	mux := http.NewServeMux()
	Handle(mux, h, func(f http.HandlerFunc) http.HandlerFunc { return f })
	server := httptest.NewServer(mux)
	end = func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { end = func() {}; stop(); server.Close() })
	return h, server.URL + "/ui", end
}

// open opens a page's stream of events.
func open(t *testing.T, url string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// nextUpdate reads until the next update.
func nextUpdate(t *testing.T, r *bufio.Reader) map[string]Change {
	t.Helper()
	update := false
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("read events: %v", err)
		}
		if strings.HasPrefix(line, "event:") {
			update = line == "event: update\n"
		}
		if text, ok := strings.CutPrefix(line, "data: "); ok && update {
			var out map[string]Change
			if err := json.Unmarshal([]byte(text), &out); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			return out
		}
	}
}

func TestPagesGetWhatHasChanged(t *testing.T) {
	var generation atomic.Uint64
	generation.Store(1)
	_, url, _ := hubAt(t, func() State {
		s := State{Status: Status{Generation: generation.Load()}, Proxies: []Proxy{{Connection: "a-1", Name: "a"}}}
		if generation.Load() > 1 {
			s.Proxies = []Proxy{{Connection: "b-2", Name: "b"}}
		}
		return s
	}, Limits{Every: time.Millisecond})
	r := bufio.NewReader(open(t, url).Body)
	first := nextUpdate(t, r)
	if len(first["proxies"].Set) != 1 || len(first["status"].Set) != 1 {
		t.Errorf("first update %+v, want everything", first)
	}
	generation.Store(2)
	second := nextUpdate(t, r)
	if p := second["proxies"]; len(p.Set) != 1 || string(p.Set["b-2"]) == "" || len(p.Gone) != 1 || p.Gone[0] != "a-1" {
		t.Errorf("second update %+v, want b-2 instead of a-1", second)
	}
}

func TestAtMostOneUpdateInTheInterval(t *testing.T) {
	const every = 100 * time.Millisecond
	var n atomic.Uint64
	_, url, _ := hubAt(t, func() State { return State{Status: Status{Generation: n.Add(1)}} }, Limits{Every: every})
	// The second page comes between two updates of the first, and gets what there is at once. The clock starts before the page
	// is there, so that a pause of the test makes no difference.
	for range 2 {
		start := time.Now()
		r := bufio.NewReader(open(t, url).Body)
		for range 6 {
			nextUpdate(t, r)
		}
		if took := time.Since(start); took < 5*every {
			t.Errorf("6 updates in %v, want one in %v", took, every)
		}
	}
}

func TestNothingIsReadWithoutPages(t *testing.T) {
	var reads atomic.Int64
	h, url, _ := hubAt(t, func() State { return State{Status: Status{Generation: uint64(reads.Add(1))}} }, Limits{Every: time.Millisecond})
	resp := open(t, url)
	nextUpdate(t, bufio.NewReader(resp.Body))
	_ = resp.Body.Close()
	wait.Until(t, "the page has left", func() bool { return !h.hasClients() })
	wait.Until(t, "the hub has noticed", func() bool { return h.current() == nil })
	before := reads.Load()
	r := bufio.NewReader(open(t, url).Body)
	u := nextUpdate(t, r)
	var s Status
	if err := json.Unmarshal(u["status"].Set["status"], &s); err != nil || s.Generation <= uint64(before)-1 {
		t.Errorf("the next page gets %+v, %v: want what is current, after %d reads", s, err, before)
	}
}

func TestPagesAreBounded(t *testing.T) {
	h, url, _ := hubAt(t, func() State { return State{} }, Limits{Clients: 2})
	one, two := open(t, url), open(t, url)
	nextUpdate(t, bufio.NewReader(one.Body))
	nextUpdate(t, bufio.NewReader(two.Body))
	third := open(t, url)
	text, _ := io.ReadAll(third.Body)
	if third.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "2 pages are open") {
		t.Errorf("third page: %s %q", third.Status, text)
	}
	_ = one.Body.Close()
	wait.Until(t, "there is room again", func() bool { h.mu.Lock(); defer h.mu.Unlock(); return len(h.clients) == 1 })
	if r := open(t, url); r.StatusCode != http.StatusOK {
		t.Errorf("after one has left: %s", r.Status)
	}
}

// Updates are larger than what the connection buffers, so that the server notices a client that does not read.
func TestClientsThatDoNotReadAreDisconnected(t *testing.T) {
	var n atomic.Int64
	big := strings.Repeat("x", maxText)
	h, url, _ := hubAt(t, func() State {
		s := State{}
		turn := strings.Repeat("y", int(n.Add(1)%100))
		for i := range 5000 {
			s.Proxies = append(s.Proxies, Proxy{Connection: strconv.Itoa(i), Name: turn + big})
		}
		return s
	}, Limits{Every: time.Millisecond, Write: 50 * time.Millisecond})
	open(t, url) // and does not read
	wait.Until(t, "the client is in", h.hasClients)
	wait.Until(t, "the client is out", func() bool { return !h.hasClients() })
}

func TestEventsEndWithTheHub(t *testing.T) {
	h, url, end := hubAt(t, func() State { return State{} }, Limits{})
	r := bufio.NewReader(open(t, url).Body)
	nextUpdate(t, r)
	end()
	if _, err := io.ReadAll(r); err != nil {
		t.Errorf("events end with %v, want their end", err)
	}
	wait.Until(t, "the handler has ended", func() bool { return !h.hasClients() })
}

func TestSilenceIsBroken(t *testing.T) {
	_, url, _ := hubAt(t, func() State { return State{} }, Limits{Every: time.Millisecond, Alive: time.Millisecond})
	r := bufio.NewReader(open(t, url).Body)
	nextUpdate(t, r)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "event: alive\n" {
			return
		}
	}
}

func TestFilesOfThePage(t *testing.T) {
	_, url, _ := hubAt(t, func() State { return State{} }, Limits{})
	for path, want := range map[string]string{"": "text/html", "/": "text/html", "/style.css": "text/css", "/app.js": "text/javascript", "/icon.svg": "image/svg+xml"} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), want) || len(text) == 0 {
			t.Errorf("%s: %s, %s, %d bytes, %v", path, resp.Status, resp.Header.Get("Content-Type"), len(text), err)
		}
		for _, foreign := range []string{"https://", "//cdn", "outerHTML", "insertAdjacent", "innerHTML", "document.write", "eval(", "localStorage", "sessionStorage", "cookie", "indexedDB", " style=", "onclick="} {
			if strings.Contains(string(text), foreign) {
				t.Errorf("%s contains %q", path, foreign)
			}
		}
		for header, want := range map[string]string{"Content-Security-Policy": "default-src 'none'", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"} {
			if got := resp.Header.Get(header); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %s is %q, want %q", path, header, got, want)
			}
		}
	}
	if resp, err := http.Post(url+"/", "text/plain", nil); err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v, %v: the page is read-only", resp, err)
	}
	if resp, err := http.Get(url + "/assets/"); err != nil || resp.StatusCode != http.StatusNotFound {
		t.Errorf("another path: %v, %v", resp, err)
	}
}
