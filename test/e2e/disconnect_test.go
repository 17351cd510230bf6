package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/load"
	"github.com/pilothouse/pilothouse/test/wait"
)

// edit replaces text in the mesh's file, at once.
func edit(t *testing.T, config string, oldnew ...string) {
	t.Helper()
	file, next := filepath.Join(config, "mesh.yaml"), filepath.Join(config, "next")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(next, []byte(strings.NewReplacer(oldnew...).Replace(string(text))), 0o644), os.Rename(next, file)); err != nil {
		t.Fatal(err)
	}
}

// connectTimeout gives all clusters of the service another connect timeout.
func connectTimeout(t *testing.T, config, timeout string) {
	t.Helper()
	edit(t, config, "  host: echo\n", "  host: echo\n  trafficPolicy: {connectionPool: {tcp: {connectTimeout: "+timeout+"}}}\n")
}

// newSubset has all requests served by a subset that was not there before.
func newSubset(t *testing.T, config string) {
	t.Helper()
	edit(t, config, "subsets: [", "subsets: [{name: every, labels: {app: echo}}, ",
		"        - {destination: {host: echo, subset: v1}, weight: 90}\n        - {destination: {host: echo, subset: v2}, weight: 10}\n",
		"        - {destination: {host: echo, subset: every}}\n")
}

// proxyStatus is what /debug/syncz says of one connection.
type proxyStatus struct {
	Proxy       string    `json:"proxy"`
	ConnectedAt time.Time `json:"connected_at"`
	Generation  int64     `json:"generation"`
	Applied     int64     `json:"applied"`
	Types       map[string]struct {
		Stuck string `json:"stuck"`
	} `json:"types"`
}

// statuses are the newest connections by proxy; an interrupted one may still be listed.
func statuses(ctx context.Context, m *meshup.Mesh) (map[string]proxyStatus, error) {
	text, err := m.Get(ctx, m.Net.Host(), m.DiscoveryURL()+"/debug/syncz")
	if err != nil {
		return nil, err
	}
	var all []proxyStatus
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	out := map[string]proxyStatus{}
	for _, s := range all {
		if !s.ConnectedAt.Before(out[s.Proxy].ConnectedAt) {
			out[s.Proxy] = s
		}
	}
	return out, nil
}

// awaitClusters waits until every Envoy has its clusters in use, the service's with
// the connect timeout, and discovery says that all is applied.
func awaitClusters(t *testing.T, m *meshup.Mesh, timeout string) {
	t.Helper()
	if err := meshup.Await(t.Context(), time.Minute, "the clusters with "+timeout+" are in use", func(ctx context.Context) error {
		known, err := statuses(ctx, m)
		if err != nil {
			return err
		}
		for _, p := range m.Pods() {
			dump, err := p.Admin(ctx, "/config_dump?resource=dynamic_active_clusters")
			if err != nil {
				return err
			}
			if !strings.Contains(string(dump), `"connect_timeout": "`+timeout+`"`) {
				return fmt.Errorf("%s has other clusters", p.Spec.Key())
			}
			stats, err := p.Stats(ctx, "warming_clusters")
			if err != nil {
				return err
			}
			if n := stats["cluster_manager.warming_clusters"]; n != 0 {
				return fmt.Errorf("%s warms %d clusters", p.Spec.Key(), n)
			}
			if s := known[p.Spec.Key()]; s.Generation == 0 || s.Applied != s.Generation {
				return fmt.Errorf("discovery says of %s: %+v", p.Spec.Key(), s)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// awaitSubset waits until the client's Envoy has the routes to the new subset.
func awaitSubset(t *testing.T, m *meshup.Mesh) {
	t.Helper()
	if err := meshup.Await(t.Context(), time.Minute, "the client's Envoy has the new subset", func(ctx context.Context) error {
		dump, err := m.Pod("client-1.storm").Admin(ctx, "/config_dump?resource=dynamic_route_configs")
		if err == nil && !strings.Contains(string(dump), "|every|") {
			err = errors.New("it has the old ones")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// underLoad calls do while the client sends requests, of which none may fail.
func underLoad(t *testing.T, m *meshup.Mesh, do func()) {
	t.Helper()
	before := errorStats(t, m)
	l := load.New(t.Context(), m.Pod("client-1.storm").Net.Dial)
	l.KeepAlive("echo:9080", 6, 20*time.Millisecond)
	l.Churn("echo:9080", 2, 20*time.Millisecond)
	do()
	r := l.Stop()
	if r.Sent == 0 || len(r.Failures) > 0 {
		t.Errorf("of %d requests failed: %v", r.Sent, r.Failures)
	}
	if err := meshup.CompareErrorStats(before, ofReplacedClusters(errorStats(t, m))); err != nil {
		t.Error(err)
	}
	t.Logf("%d requests", r.Sent)
}

// ofReplacedClusters leaves out what counts although nothing has failed where clusters are replaced: Envoy closes the
// connections of the old one that no request waits for, and those that are not established yet count as failures to connect.
func ofReplacedClusters(stats map[string]int64) map[string]int64 {
	maps.DeleteFunc(stats, func(name string, _ int64) bool { return strings.HasSuffix(name, ".upstream_cx_connect_fail") })
	return stats
}

// TestClustersChangeWhileDiscoveryIsDown edits a DestinationRule while pilot-discovery is down.
func TestClustersChangeWhileDiscoveryIsDown(t *testing.T) {
	m, config := start(t, "storm")
	restart := func(meanwhile func()) {
		if err := m.KillDiscovery(); err != nil {
			t.Fatal(err)
		}
		meanwhile()
		if err := m.StartDiscovery(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	underLoad(t, m, func() {
		restart(func() { connectTimeout(t, config, "7s") })
		awaitClusters(t, m, "7s")
		restart(func() {})
		awaitClusters(t, m, "7s")
		newSubset(t, config)
		awaitSubset(t, m)
		awaitClusters(t, m, "7s")
	})
}

// TestClustersChangeWhileAConnectionIsDown does so while discovery's answers do not reach
// one Pod, until that has given its connection up.
func TestClustersChangeWhileAConnectionIsDown(t *testing.T) {
	t.Parallel()
	m, config := start(t, "storm")
	client := m.Pod("client-1.storm")
	ip := client.Net.IP()
	hole := &netlink.Route{Dst: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_BLACKHOLE}
	underLoad(t, m, func() {
		if err := m.Net.Host().Do(func() error { return netlink.RouteAdd(hole) }); err != nil {
			t.Fatal(err)
		}
		connectTimeout(t, config, "8s")
		if err := meshup.Await(t.Context(), 2*time.Minute, "the client's agent gives its connection up", func(ctx context.Context) error {
			text, err := m.Get(ctx, client.Net, fmt.Sprintf("http://127.0.0.1:%d/debug/status", mesh.StatusPort))
			if err != nil {
				return err
			}
			if !strings.Contains(string(text), `"connected": false`) {
				return errors.New("it is connected")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := m.Net.Host().Do(func() error { return netlink.RouteDel(hole) }); err != nil {
			t.Fatal(err)
		}
		awaitClusters(t, m, "8s")
		newSubset(t, config)
		awaitSubset(t, m)
		awaitClusters(t, m, "8s")
	})
}

// TestStoppedProxyIsShownAsStuck stops an Envoy before a change and lets it go on after.
func TestStoppedProxyIsShownAsStuck(t *testing.T) {
	t.Parallel()
	m, config := start(t, "storm")
	client := m.Pod("client-1.storm")
	pid, err := client.EnvoyPID()
	if err != nil {
		t.Fatal(err)
	}
	// logged counts the lines about the client: on a busy machine, others may be slow, too.
	logged := func(what string) (n int) {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(config), "log", "pilot-discovery.log"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, what) && strings.Contains(line, "~"+client.Spec.Key()+"~") {
				n++
			}
		}
		return n
	}
	// once waits for a line, which is written after the status is changed, and checks that there is one.
	once := func(what string) {
		t.Helper()
		wait.Until(t, "the log says: "+what, func() bool { return logged(what) > 0 })
		if n := logged(what); n != 1 {
			t.Errorf("logged %d times: %s", n, what)
		}
	}
	await := func(what string, is func(proxyStatus) bool) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, what, func(ctx context.Context) error {
			known, err := statuses(ctx, m)
			if s := known[client.Spec.Key()]; err == nil && !is(s) {
				err = fmt.Errorf("it is %+v", s)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Kill(pid, unix.SIGCONT) }()
	connectTimeout(t, config, "9s")
	await("clusters are stuck", func(s proxyStatus) bool { return s.Types["CDS"].Stuck != "" && s.Applied < s.Generation })
	once("proxy does not acknowledge")
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await("all is applied", func(s proxyStatus) bool { return s.Types["CDS"].Stuck == "" && s.Applied == s.Generation })
	awaitClusters(t, m, "9s")
	once("proxy acknowledges again")
	once("proxy does not acknowledge")
}
