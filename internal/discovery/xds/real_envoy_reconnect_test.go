package xds

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A proxy whose server was away while a cluster changed takes the changed cluster into use,
// whether the view is there before its requests or not, and goes on taking others.
func TestRealEnvoyTakesAClusterThatChangedWhileTheServerWasAway(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		r := newRig(t, api, firstView(t, backend(t, "a")))
		url := r.url("in")
		wait.Until(t, "an answer", func() bool { return fetch(url) == "a" })
		stop := storm(url, "a", "b")
		r.stop()
		r.view = r.view.put(edsCluster(t, "web", 2))
		r.serve(t)
		r.inSync("the changed cluster")
		wait.Until(t, "the changed cluster in use", func() bool {
			return strings.Contains(r.get("/config_dump?resource=dynamic_active_clusters"), `"2s"`)
		})
		b := backend(t, "b")
		r.publish("a new cluster", r.view.put(edsCluster(t, "more", 1), endpoints(t, "more", b), routes(t, "r", "/", "more")))
		wait.Until(t, "an answer of the new cluster", func() bool { return fetch(url) == "b" })
		if sent, wrong := stop(); wrong != "" || sent == 0 {
			t.Errorf("of %d requests one got %q", sent, wrong)
		}
		r.settled()
	})
}

// An Envoy whose connection breaks while a cluster warms does not ask for clusters when it
// comes back, and claims to have what the cluster waits for.
func TestRealEnvoyComesBackWhileAClusterWarms(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		r := newRig(t, api, firstView(t, backend(t, "a")))
		url := r.url("in")
		wait.Until(t, "an answer", func() bool { return fetch(url) == "a" })
		stop := storm(url, "a")
		r.loses.Store(int32(EDS))
		r.view = r.view.put(edsCluster(t, "web", 2))
		r.reg.latest.Publish(r.view)
		wait.Until(t, "the cluster warming", func() bool { return r.stat("cluster_manager.warming_clusters") == 1 })
		// Once more with a server that loses assignments: it may not take that for applied.
		r.stop()
		r.serve(t)
		wait.Until(t, "the proxy back", func() bool {
			c := r.server.Connections()
			return len(c) == 1 && len(c[0].Types) >= 3
		})
		if c := r.server.Connections(); len(c) != 1 || c[0].Applied != 0 {
			t.Errorf("applied while a cluster warms: %+v", c)
		}
		r.stop()
		r.loses.Store(-1)
		r.serve(t)
		r.inSync("the changed cluster")
		wait.Until(t, "the changed cluster in use", func() bool {
			return strings.Contains(r.get("/config_dump?resource=dynamic_active_clusters"), `"2s"`)
		})
		if sent, wrong := stop(); wrong != "" || sent == 0 {
			t.Errorf("of %d requests one got %q", sent, wrong)
		}
		r.settled()
	})
}

// A returning proxy gives up a cluster after the route to it.
func TestRealEnvoyComesBackToARouteThatMoved(t *testing.T) {
	a, b := backend(t, "a"), backend(t, "b")
	r := newRig(t, "DELTA_GRPC", firstView(t, a))
	url := r.url("in")
	wait.Until(t, "an answer", func() bool { return fetch(url) == "a" })
	stop := storm(url, "a", "b")
	for i, name := range []string{"next", "web", "next", "web"} {
		r.stop()
		port := []int{b, a}[i%2]
		r.view = r.view.put(edsCluster(t, name, 1), endpoints(t, name, port), routes(t, "r", "/", name)).
			drop(CDS, []string{"web", "next"}[i%2]).drop(EDS, []string{"web", "next"}[i%2])
		r.serve(t)
		r.inSync("the cluster " + name)
		wait.Until(t, "an answer of "+name, func() bool { return fetch(url) == []string{"b", "a"}[i%2] })
	}
	if sent, wrong := stop(); wrong != "" || sent == 0 {
		t.Errorf("of %d requests one got %q", sent, wrong)
	}
	r.settled()
}

// A listener whose port is taken is refused, tried again, and there once the port is free.
// Nothing else that is refused is tried again.
func TestRealEnvoyListensOnceThePortIsFree(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		r := newRig(t, api, firstView(t, backend(t, "a")))
		taken, err := net.Listen("tcp", freeAddress(t))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = taken.Close() })
		r.view = r.view.put(listenerAt(t, "late", "r", taken.Addr().(*net.TCPAddr).Port), aliens(t, "bad"))
		r.reg.latest.Publish(r.view)
		state := func() TypeStatus { return r.server.Connections()[0].Types[LDS] }
		var s TypeStatus
		wait.Until(t, "a refusal", func() bool { s = state(); return s.Rejects > 0 })
		if !slices.Equal(s.RejectedName, []string{"bad", "late"}) || !strings.Contains(s.Message, cannotBind) {
			t.Errorf("refused %q because of %q", s.RejectedName, s.Message)
		}
		wait.Until(t, "another refusal", func() bool { s = state(); return s.Rejects > 1 })
		if api == "DELTA_GRPC" && !slices.Equal(s.RejectedName, []string{"late"}) {
			t.Errorf("tried %q again", s.RejectedName)
		}
		if err := taken.Close(); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the listener", func() bool { return fetch("http://"+taken.Addr().String()+"/") == "a" })
		r.publish("the bad listener gone", r.view.drop(LDS, "bad"))
		if s := state(); s.Message != "" {
			t.Errorf("still refused: %q", s.Message)
		}
	})
}
