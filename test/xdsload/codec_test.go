package main

import (
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestRequestsAreWhatProtobufReads(t *testing.T) {
	have := []*resource{{number: 0, version: "v1"}, nil, {number: 2, version: "v2"}, absent}
	names := []string{"a", "b", "c", "d"}
	node := marshal(t, &corev3.Node{Id: "sidecar~10.0.0.1~a.b~b.svc.cluster.local"})
	q := request{
		node: node, typ: assignments, version: "7", nonce: "n", names: []string{"x", "y"}, unsubscribe: []string{"z"},
		have: have, nameOf: func(n int) string { return names[n] },
	}
	var delta discoveryv3.DeltaDiscoveryRequest
	if err := proto.Unmarshal(q.encode(true), &delta); err != nil {
		t.Fatal(err)
	}
	want := &discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~a.b~b.svc.cluster.local"}, TypeUrl: typeURLs[assignments], ResponseNonce: "n",
		ResourceNamesSubscribe: []string{"x", "y"}, ResourceNamesUnsubscribe: []string{"z"},
		InitialResourceVersions: map[string]string{"a": "v1", "c": "v2"},
	}
	if !proto.Equal(&delta, want) {
		t.Errorf("delta: %v, want %v", &delta, want)
	}
	var sotw discoveryv3.DiscoveryRequest
	if err := proto.Unmarshal(q.encode(false), &sotw); err != nil {
		t.Fatal(err)
	}
	if want := (&discoveryv3.DiscoveryRequest{
		Node: want.Node, TypeUrl: want.TypeUrl, ResponseNonce: "n", VersionInfo: "7", ResourceNames: []string{"x", "y"},
	}); !proto.Equal(&sotw, want) {
		t.Errorf("state of the world: %v, want %v", &sotw, want)
	}
}

// TestResponsesAreReadByNameAndReference reads clusters and listeners of both protocols: names, versions, what they
// refer to, and whether the marker of a change is in them.
func TestResponsesAreReadByNameAndReference(t *testing.T) {
	edit := meshSize{Services: 20, Endpoints: 2, Namespaces: 4}.edit(changeDestinationRule, 3)
	byName := &clusterv3.Cluster{
		Name:                 "one",
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{ServiceName: "other"},
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{
			{MaxConnections: wrapperspb.UInt32(1_000_003)},
		}},
	}
	plain := &clusterv3.Cluster{Name: "two", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}}
	static := &clusterv3.Cluster{Name: "three"}
	manager := func(route string) *listenerv3.FilterChain {
		return &listenerv3.FilterChain{Filters: []*listenerv3.Filter{
			{Name: "rbac", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, &clusterv3.Cluster{Name: "not a manager"})}},
			{Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, &managerv3.HttpConnectionManager{
				RouteSpecifier: &managerv3.HttpConnectionManager_Rds{Rds: &managerv3.Rds{RouteConfigName: route}},
			})}},
		}}
	}
	listener := &listenerv3.Listener{
		Name: "four", FilterChains: []*listenerv3.FilterChain{manager("8080"), manager("9090"), manager("8080")}, DefaultFilterChain: manager("80"),
	}
	for _, tt := range []struct {
		typ   int
		m     proto.Message
		name  string
		refs  []string
		epoch int
	}{
		{clusters, byName, "one", []string{"other"}, 1},
		{clusters, plain, "two", []string{"two"}, 0},
		{clusters, static, "three", nil, 0},
		{listeners, listener, "four", []string{"8080", "9090", "80"}, 0},
	} {
		for _, delta := range []bool{true, false} {
			all := newTables(delta)
			all.mark(edit.marker)
			body := marshal(t, &discoveryv3.DiscoveryResponse{
				VersionInfo: "5", TypeUrl: typeURLs[tt.typ], Nonce: "6", Resources: []*anypb.Any{packed(t, tt.m)},
			})
			if delta {
				body = marshal(t, &discoveryv3.DeltaDiscoveryResponse{
					SystemVersionInfo: "5", TypeUrl: typeURLs[tt.typ], Nonce: "6", RemovedResources: []string{"gone"},
					Resources: []*discoveryv3.Resource{{Name: tt.name, Version: "v", Resource: packed(t, tt.m)}},
				})
			}
			var r response
			if err := (clientCodec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(body)}, &r); err != nil {
				t.Fatal(err)
			}
			if r.typ != tt.typ || r.version != "5" || r.nonce != "6" || len(r.removed) == 0 == delta {
				t.Errorf("%s, delta %v: read %+v", tt.name, delta, r)
			}
			list, err := all.intern(r.typ, r.resources, nil)
			if err != nil {
				t.Fatal(err)
			}
			var refs []string
			for _, n := range list[0].refs {
				refs = append(refs, all.nameList(referred[tt.typ])[n])
			}
			if name := all.nameList(tt.typ)[list[0].number]; name != tt.name || !slices.Equal(refs, tt.refs) || list[0].epoch != tt.epoch || list[0].version == "v" != delta {
				t.Errorf("delta %v: %s with %v, epoch %d, version %q; want %s with %v, epoch %d", delta, name, refs, list[0].epoch, list[0].version, tt.name, tt.refs, tt.epoch)
			}
			again, err := all.intern(r.typ, r.resources, nil)
			if err != nil || again[0] != list[0] {
				t.Errorf("%s: the same bytes are kept twice (%v)", tt.name, err)
			}
		}
	}
}
