package xds

import (
	"net"
	"strconv"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilothouse/pilothouse/test/wait"
)

// silentResolver is the address of a DNS resolver that never answers.
func silentResolver(t testing.TB) int {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.LocalAddr().(*net.UDPAddr).Port
}

// dnsCluster is a cluster whose name is resolved by the resolver at a UDP port of the loopback.
func dnsCluster(t testing.TB, name string, resolver int) *Resource {
	server := address(resolver)
	server.GetSocketAddress().Protocol = corev3.SocketAddress_UDP
	host := &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "never.example", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80}}}}
	return NewCluster(name, encode(t, &clusterv3.Cluster{
		Name: name, ConnectTimeout: durationpb.New(1e9),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: host}}}}}}},
		TypedDnsResolverConfig: &corev3.TypedExtensionConfig{Name: "envoy.network.dns_resolver.cares",
			// It must not give up, as it does after some seconds, while a busy machine has other work.
			TypedConfig: pack(t, &caresv3.CaresDnsResolverConfig{Resolvers: []*corev3.Address{server}, QueryTimeoutSeconds: wrapperspb.UInt64(3600)})},
	}), "")
}

// show publishes a view without waiting for it.
func (r *rig) show(v *View) {
	r.view = v
	r.reg.latest.Publish(v)
}

func TestRealEnvoyClusterThatNeverWarmsDelaysNoOtherRoute(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		a, b := backend(t, "a"), backend(t, "b")
		r := newRig(t, api, firstView(t, a))
		url := r.url("in")
		wait.Until(t, "an answer of a", func() bool { return fetch(url) == "a" })
		stop := storm(url, "a", "b")

		warming := func() bool { return r.stat("cluster_manager.warming_clusters") > 0 }
		unanswered := func() bool {
			s := r.server.Connections()[0].Types[CDS]
			return s.SentNonce != s.AckedNonce
		}
		r.show(r.view.put(dnsCluster(t, "never", silentResolver(t))))
		wait.Until(t, "the cluster that warms", warming)
		for i := range 6 {
			name, port, answer := "next", b, "b"
			if i%2 == 1 {
				name, port, answer = "web", a, "a"
			}
			r.show(r.view.put(edsCluster(t, name, int64(i+2)), endpoints(t, name, port), routes(t, "r", "/", name)))
			wait.Until(t, "an answer of "+answer, func() bool { return fetch(url) == answer })
			if !warming() || !unanswered() {
				t.Fatal("the cluster has warmed: the test does not show what it should")
			}
		}
		if sent, wrong := stop(); wrong != "" || sent < 100 {
			t.Errorf("of %d requests one got %q", sent, wrong)
		}
	})
}

// A route may be there before the subset that it names, or after it, or both may come at once.
func TestRealEnvoySubsetAndRouteComeInEitherOrder(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		a, b := backend(t, "a"), backend(t, "b")
		r := newRig(t, api, firstView(t, a))
		url := r.url("in")
		wait.Until(t, "an answer of a", func() bool { return fetch(url) == "a" })
		stop := storm(url, "a", "b")
		for i := range 12 {
			subset := "v" + strconv.Itoa(i)
			more := []*Resource{edsCluster(t, subset, 1), endpoints(t, subset, b)}
			route := routes(t, "r", "/", subset)
			switch i % 3 {
			case 0:
				r.show(r.view.put(more...))
				r.show(r.view.put(route))
			case 1:
				r.show(r.view.put(route))
				sentNothing(t, r, RDS)
				r.show(r.view.put(more...))
			case 2:
				r.show(r.view.put(append(more, route)...))
			}
			wait.Until(t, "an answer of b", func() bool { return fetch(url) == "b" })
			// And back; the subset goes in the same view.
			r.publish("back", r.view.put(routes(t, "r", "/", "web")).drop(CDS, subset).drop(EDS, subset))
			wait.Until(t, "an answer of a", func() bool { return fetch(url) == "a" })
		}
		if sent, wrong := stop(); wrong != "" || sent < 100 {
			t.Errorf("of %d requests one got %q", sent, wrong)
		}
		r.settled()
	})
}

// sentNothing has the stream handle the newest view, as far as it does at once, and fails the test if
// something of a type is sent.
func sentNothing(t *testing.T, r *rig, typ Type) {
	t.Helper()
	before := r.server.Connections()[0].Types[typ].SentNonce
	// What does not wait goes after it.
	r.show(r.view.put(endpoints(t, "web", backend(t, "a"))))
	generation := r.view.Generation
	wait.Until(t, "other endpoints sent", func() bool { return r.server.Connections()[0].Types[EDS].AckedGeneration >= generation })
	if now := r.server.Connections()[0].Types[typ].SentNonce; now != before {
		t.Errorf("%s %s sent, which names a cluster that does not exist", typ, now)
	}
}

// A listener that Envoy refuses stays as it was, and the others of the same response are there; it
// is not sent again with the next one.
func TestRealEnvoyGoesOnWithWhatItAcceptedLast(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		a := backend(t, "a")
		r := newRig(t, api, firstView(t, a))
		url := r.url("in")
		wait.Until(t, "an answer of a", func() bool { return fetch(url) == "a" })
		stop := storm(url, "a")
		r.show(r.view.put(aliens(t, "in"), listener(t, "more", "r")))
		state := func() TypeStatus { return r.server.Connections()[0].Types[LDS] }
		wait.Until(t, "the refusal", func() bool { return state().Rejects == 1 })
		wait.Until(t, "the other listener", func() bool { return fetch(r.url("more")) == "a" })
		r.show(r.view.put(listener(t, "third", "r")))
		wait.Until(t, "a third listener", func() bool { return fetch(r.url("third")) == "a" })
		if n := state().Rejects; n != 1 {
			t.Errorf("refused %d times, want once", n)
		}
		if sent, wrong := stop(); wrong != "" || sent == 0 {
			t.Errorf("of %d requests one got %q", sent, wrong)
		}
		r.publish("the listener mended", r.view.put(listener(t, "in", "r")))
	})
}
