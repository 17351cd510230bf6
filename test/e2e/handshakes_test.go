package e2e_test

import (
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// pace is the interval between two requests of one Pod.
const pace = 50 * time.Millisecond

// handshakes is load on a mesh of which each request needs a TLS handshake: the mesh of testdata/rotation, whose Pods
// call one another. A failed handshake is a failed request, since nothing is retried.
type handshakes struct {
	t      *testing.T
	mesh   *meshup.Mesh
	got    *outcomes
	before map[string]int64
	served int64
	shakes int64
	stop   chan struct{}
	done   sync.WaitGroup
}

// startHandshakes starts the load, one request at a time from each Pod. Call end.
func startHandshakes(t *testing.T, m *meshup.Mesh) *handshakes {
	t.Helper()
	h := &handshakes{t: t, mesh: m, got: &outcomes{failures: map[string]int{}, versions: map[string]int{}}, stop: make(chan struct{})}
	h.before, h.served, h.shakes = errorStats(t, m), h.allServed(), h.allHandshakes()
	for _, p := range m.Pods() {
		client := meshup.Client(p.Net, 1)
		h.done.Go(func() {
			defer client.CloseIdleConnections()
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for {
				select {
				case <-h.stop:
					return
				case <-tick.C:
					h.got.add(meshup.Post(t.Context(), client, "http://echo:9080/", nil))
				}
			}
		})
	}
	return h
}

// end ends the load and checks that no request and no handshake has failed, that each request was served once,
// and that there were at least as many handshakes as requests.
func (h *handshakes) end() {
	h.t.Helper()
	close(h.stop)
	h.done.Wait()
	if len(h.got.failures) > 0 {
		h.t.Errorf("of %d requests failed: %v", h.got.sent, h.got.failures)
	}
	if n := h.allServed() - h.served; n != h.got.sent || n == 0 {
		h.t.Errorf("%d requests sent, %d served", h.got.sent, n)
	}
	if err := meshup.CompareErrorStats(h.before, errorStats(h.t, h.mesh)); err != nil {
		h.t.Error(err)
	}
	n := h.allHandshakes() - h.shakes
	if n < h.got.sent {
		h.t.Errorf("%d handshakes for %d requests, want one for each: connections were used again", n, h.got.sent)
	}
	h.t.Logf("%d requests, %d handshakes", h.got.sent, n)
}

func (h *handshakes) allServed() (all int64) {
	h.t.Helper()
	for _, p := range h.mesh.Pods() {
		n, err := p.Served(h.t.Context())
		if err != nil {
			h.t.Fatal(err)
		}
		all += n
	}
	return all
}

// allHandshakes counts the handshakes of all Envoys as servers of other Pods.
func (h *handshakes) allHandshakes() (all int64) {
	h.t.Helper()
	for _, p := range h.mesh.Pods() {
		stats, err := p.Stats(h.t.Context(), url.QueryEscape(`listener\..*15006.*ssl\.handshake`))
		if err != nil {
			h.t.Fatal(err)
		}
		for name, n := range stats {
			if strings.HasSuffix(name, "ssl.handshake") {
				all += n
			}
		}
	}
	return all
}
