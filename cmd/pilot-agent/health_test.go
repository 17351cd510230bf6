package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pilothouse/pilothouse/test/agenttest"
)

// The agent probes the application as the proxy configuration says, and reports each change of its health. What it does is
// shown at /debug, and pages of the control plane are served at the status port and at a port for them.
func TestTheHealthOfTheApplicationIsReported(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	var code atomic.Int32
	code.Store(http.StatusOK)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthy" {
			w.WriteHeader(int(code.Load()))
		}
	}))
	defer app.Close()
	_, port, err := net.SplitHostPort(app.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tap := agenttest.Port(t)
	a := agenttest.New(t, plane, fmt.Sprintf("readinessProbe: {httpGet: {port: %s, path: /healthy, host: 127.0.0.1}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 30}", port),
		"XDS_DEBUG_PORT="+tap)
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	reported := func(last string) {
		t.Helper()
		agenttest.Until(t, "the report "+last, func() error {
			if got := plane.Reports(); len(got) == 0 || got[len(got)-1] != last {
				return fmt.Errorf("reports %q", got)
			}
			return nil
		})
	}
	reported("healthy")
	code.Store(http.StatusServiceUnavailable)
	reported("status 503: want 200–399")
	code.Store(http.StatusNoContent)
	reported("healthy")
	if got := plane.Reports(); len(got) != len(slices.Compact(got)) {
		t.Errorf("reports %q: one was repeated", got)
	}
	for where, want := range map[[2]string]string{
		{a.Status, "/debug/xds/edsz?proxyID=a.b"}: "edsz?proxyID=a.b",
		{tap, "/debug/syncz"}:                     "syncz",
		{a.Status, "/debug"}:                      `"xds_streams"`,
	} {
		got, body, err := a.Get(where[0], where[1])
		if err != nil || got != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %.300s, %v, want %s", where[1], got, body, err, want)
		}
	}
	if _, body, err := a.Get(a.Status, "/debug"); err != nil || !strings.Contains(body, "envoy.config.listener.v3.Listener") {
		t.Errorf("/debug lacks the type of listeners: %.2000s, %v", body, err)
	}
}
