package xds

import (
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// Of a response that is refused without a word which resource is to blame, all but that one get in.
func TestUnnamedRefusalIsNarrowedDown(t *testing.T) {
	v := &View{}
	for _, n := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		v = v.put(NewResource(CDS, n, nil))
	}
	s := New(&oneClass{latest: NewLatestView(v)}, quiet(t), nil)
	g := open(t, dial(t, s, nil))
	ask(t, g, first(node(nil)))
	var have []string
	responses := 0
	for len(have) < v.Of(CDS).Len()-1 {
		m, err := g.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if responses++; responses > 2*v.Of(CDS).Len() {
			t.Fatalf("%d responses, and the client has %q", responses, have)
		}
		var names []string
		for _, r := range m.GetResources() {
			names = append(names, r.GetName())
		}
		answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResponseNonce: m.GetNonce()}
		if slices.Contains(names, "f") {
			answer.ErrorDetail = &rpcstatus.Status{Message: "internal error"}
		} else {
			have = append(have, names...)
		}
		ask(t, g, answer)
	}
	slices.Sort(have)
	if want := []string{"a", "b", "c", "d", "e", "g", "h"}; !slices.Equal(have, want) {
		t.Errorf("the client has %q, want %q", have, want)
	}
	if got := s.Connections()[0].Types[CDS].RejectedName; !slices.Equal(got, []string{"f"}) {
		t.Errorf("refused are %q, want f", got)
	}
}
