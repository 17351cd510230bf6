package xds

import (
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
)

func sampleSend() Send {
	return Send{Type: CDS, Nonce: "17", Generation: 300, Removed: []string{"gone", "too"}, Upserts: []*Resource{
		NewResource(CDS, "a", nil), NewResource(CDS, "b", make([]byte, 200)), NewResource(CDS, "c", make([]byte, 70000))}}
}

func TestDeltaResponseIsWhatProtobufWouldWrite(t *testing.T) {
	s := sampleSend()
	want := &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: "300", TypeUrl: CDS.URL(), Nonce: "17", RemovedResources: s.Removed}
	for _, u := range s.Upserts {
		var body anypb.Any
		if err := proto.Unmarshal(u.Body, &body); err != nil {
			t.Fatal(err)
		}
		want.Resources = append(want.Resources, &discoveryv3.Resource{Name: u.Name, Version: u.Version, Resource: &body})
	}
	checkWire(t, &response{Send: s, delta: true}, want, &discoveryv3.DeltaDiscoveryResponse{})
}

func TestSotWResponseIsWhatProtobufWouldWrite(t *testing.T) {
	s := sampleSend()
	s.Removed = nil
	want := &discoveryv3.DiscoveryResponse{VersionInfo: "300", TypeUrl: CDS.URL(), Nonce: "17"}
	for _, u := range s.Upserts {
		var body anypb.Any
		if err := proto.Unmarshal(u.Body, &body); err != nil {
			t.Fatal(err)
		}
		want.Resources = append(want.Resources, &body)
	}
	checkWire(t, &response{Send: s}, want, &discoveryv3.DiscoveryResponse{})
}

func checkWire(t *testing.T, r *response, want, got proto.Message) {
	t.Helper()
	out, err := Codec().Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for i, u := range r.Upserts {
		if shared := out[2*i+2].ReadOnlyData(); &shared[0] != &u.Body[0] {
			t.Errorf("the bytes of %s were copied", u.Name)
		}
	}
	if err := Codec().Unmarshal(out, got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Error(d)
	}
}

func TestResourceVersionIsTheContents(t *testing.T) {
	a, b := NewResource(CDS, "a", []byte("x")), NewResource(CDS, "a", []byte("x"))
	if a.Version != b.Version || len(a.Version) != 32 {
		t.Errorf("versions %q and %q of equal contents, want 32 equal digits", a.Version, b.Version)
	}
	if c := NewResource(CDS, "a", []byte("y")); c.Version == a.Version {
		t.Error("other contents have the same version")
	}
	var p Pool
	if p.Intern(a) != a || p.Intern(b) != a || p.Len() != 1 {
		t.Error("equal resources are stored twice")
	}
	if c := NewCluster("a", []byte("x"), "other"); p.Intern(c) != c {
		t.Error("a cluster that needs other endpoints is taken for equal")
	}
}

func TestViewSharesWhatDoesNotChange(t *testing.T) {
	v := (&View{}).With(CDS, []*Resource{NewResource(CDS, "b", nil), NewResource(CDS, "a", nil)}, nil)
	w := v.With(CDS, []*Resource{NewResource(CDS, "a", nil)}, []string{"no such"})
	if w.Of(CDS) != v.Of(CDS) {
		t.Error("an equal set is another set")
	}
	x := v.With(CDS, []*Resource{NewResource(CDS, "c", nil), NewResource(CDS, "a", []byte("new"))}, []string{"b", "c"})
	d := diff(v.Of(CDS), x.Of(CDS), between)
	var up []string
	for _, r := range d.Upserts {
		up = append(up, r.Name)
	}
	if !cmp.Equal(up, []string{"a", "c"}) || len(d.Removed) != 1 || d.Removed[0].Name != "b" {
		t.Errorf("difference %v, removed %v", up, d.Removed)
	}
	if v.Of(CDS).Len() != 2 || v.Of(CDS).Get("b") == nil {
		t.Error("the old view has changed")
	}
}
