package discovery

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

func podChange(name string, labels map[string]string, spec object.PodSpec) object.Change {
	k := object.Key{Kind: object.Pod, Namespace: "shop", Name: name}
	return object.Change{Key: k, Object: &object.Object{Key: k, Meta: object.Meta{Labels: labels}, Spec: &spec}}
}

// Pods that are marked, of this revision and cluster, and have an address, should have a connected proxy.
func TestPodsWhoseProxyIsMissing(t *testing.T) {
	ip := []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	marked := map[string]string{mesh.TLSModeLabel: "istio"}
	w, at := workloads{revision: "canary"}, time.Unix(1000, 0)
	for _, c := range []object.Change{
		podChange("there", marked, object.PodSpec{IPs: ip}), podChange("left", marked, object.PodSpec{IPs: ip}),
		podChange("never", map[string]string{mesh.TLSModeLabel: "istio", mesh.RevisionLabel: "canary"}, object.PodSpec{IPs: ip}),
		podChange("theirs", map[string]string{mesh.TLSModeLabel: "istio", mesh.RevisionLabel: "stable"}, object.PodSpec{IPs: ip}),
		podChange("unmarked", nil, object.PodSpec{IPs: ip}), podChange("done", marked, object.PodSpec{IPs: ip, Done: true}),
		podChange("pending", marked, object.PodSpec{}),
	} {
		w.apply(c, at)
		w.apply(c, at.Add(time.Hour)) // it is known since the first time
	}
	gone := podChange("gone", marked, object.PodSpec{IPs: ip})
	w.apply(gone, at)
	w.apply(object.Change{Key: gone.Key}, at)
	connections := []xds.Connection{{Node: mesh.Node{NodeID: mesh.NodeID{ID: "there.shop"}}}}
	left := func(id string) time.Time {
		if id == "left.shop" {
			return at.Add(time.Minute)
		}
		return time.Time{}
	}
	expected, missing := missingPods(w.rows, connections, left)
	want := []missingPod{{"left.shop", true, "1970-01-01T00:17:40Z"}, {"never.shop", false, "1970-01-01T00:16:40Z"}}
	if expected != 3 || !reflect.DeepEqual(missing, want) {
		t.Errorf("of %d, %v, want 3 and %v", expected, missing, want)
	}
	k := object.Key{Kind: object.WorkloadEntry, Namespace: "shop", Name: "vm"}
	w.apply(object.Change{Key: k, Object: &object.Object{Key: k, Spec: &networking.WorkloadEntry{Address: "10.0.0.9"}}}, at)
	if got := w.rows[k]; len(got.addresses) != 1 || got.addresses[0] != "10.0.0.9" || got.expected {
		t.Errorf("the entry is %+v", got)
	}
}

func TestAddressesThatNoWorkloadHas(t *testing.T) {
	c := xds.Connection{
		Node: mesh.Node{NodeID: mesh.NodeID{ID: "web.shop", IP: netip.MustParseAddr("10.0.0.1")}}, Peer: "10.0.0.1:4000",
		Identity: mesh.Identity{TrustDomain: "c", Namespace: "shop", ServiceAccount: "web"}, NotBefore: time.Unix(1, 0), NotAfter: time.Unix(2, 0),
	}
	got := placeOf(c, map[string]bool{"10.0.0.1": true})
	want := placeEntry{Proxy: "web.shop", Identity: "spiffe://c/ns/shop/sa/web", Address: "10.0.0.1", Addresses: []string{"10.0.0.1"}, Certificate: &term{time.Unix(1, 0), time.Unix(2, 0)}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := placeOf(c, nil); !got.Unknown {
		t.Errorf("%+v", got)
	}
}
