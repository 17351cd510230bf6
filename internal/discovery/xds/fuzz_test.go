package xds

import (
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// FuzzRequest feeds anything to the decoder and what it makes of it to the machine. Nobody
// may be able to make either panic, or send more than one response for a request and type.
func FuzzRequest(f *testing.F) {
	for _, m := range []proto.Message{
		&discoveryv3.DeltaDiscoveryRequest{Node: node(map[string]any{"LABELS": map[string]any{"app": "web"}}), TypeUrl: CDS.URL(),
			InitialResourceVersions: map[string]string{"a": "1"}},
		&discoveryv3.DeltaDiscoveryRequest{TypeUrl: EDS.URL(), ResourceNamesSubscribe: []string{"*", "a"}, ResourceNamesUnsubscribe: []string{"*", "a"}, ResponseNonce: "1"},
		&discoveryv3.DiscoveryRequest{TypeUrl: LDS.URL(), ResourceNames: []string{"*", "", "b"}, ResponseNonce: "1", VersionInfo: "1"},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b, true)
		f.Add(b, b, false)
	}
	f.Fuzz(func(t *testing.T, a, b []byte, delta bool) {
		sub := NewSub(delta, nil)
		sub.Step(Now{T: time.Unix(1e9, 0)})
		sub.Step(Moved{View: (&View{}).put(NewResource(CDS, "a", nil), NewResource(LDS, "b", nil), NewResource(EDS, "a", nil))})
		for _, raw := range [][]byte{a, b, a} {
			in := inbound{delta: delta, wantNode: true}
			if in.decode(raw) != nil {
				continue
			}
			if n, err := decodeNode(in.node); err == nil {
				_ = n.CheckIdentity(mesh.Identity{})
			}
			in.req.Type, _ = ParseType(in.url)
			sent := 0
			for _, e := range sub.Step(&in.req) {
				if _, ok := e.(Send); ok {
					sent++
				}
			}
			if sent > int(numTypes) {
				t.Errorf("%d responses to one request", sent)
			}
		}
	})
}
