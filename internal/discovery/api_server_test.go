package discovery

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A start waits for an API server that refuses connections, and then for one that a load balancer says is away. A refusal of its
// own is an answer. That it waits, and that it no longer does, is logged once each.
func TestTheStartWaitsForTheAPIServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	var log wait.Output
	c := &cluster{api: &rest.Config{Host: "http://" + addr}, log: slog.New(slog.NewTextHandler(&log, nil))}
	ended := make(chan error, 1)
	go func() { ended <- c.awaitAPIServer(t.Context()) }()
	wait.Until(t, "it is logged that it waits", func() bool { return strings.Contains(log.String(), "connection refused") })

	var asked, status atomic.Int64
	status.Store(http.StatusServiceUnavailable)
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(int(status.Load()))
	}))
	if api.Listener, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	api.Start()
	defer api.Close()
	wait.Until(t, "it has asked twice", func() bool { return asked.Load() >= 2 })
	select {
	case err := <-ended:
		t.Fatalf("it has ended: %v", err)
	default:
	}
	status.Store(http.StatusForbidden)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if text := log.String(); strings.Count(text, "waiting for it") != 1 || strings.Count(text, "the API server answers") != 1 {
		t.Errorf("the log is\n%s", text)
	}
}

// The end of the context ends the wait.
func TestTheWaitForTheAPIServerEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer api.Close()
	c := &cluster{api: &rest.Config{Host: api.URL}, log: slog.New(slog.DiscardHandler)}
	if err := c.awaitAPIServer(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if err := (*cluster)(nil).awaitAPIServer(ctx); err != nil {
		t.Errorf("without a cluster: %v", err)
	}
}
