package xds

import (
	"bytes"
	"fmt"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
)

// hostFields are virtual hosts as a field of a RouteConfiguration; each routes to clusters.
func hostFields(hosts ...[]string) (out []byte) {
	for i, clusters := range hosts {
		h := &routev3.VirtualHost{Name: fmt.Sprint("host", i), Domains: []string{fmt.Sprint("host", i)}}
		for _, c := range clusters {
			h.Routes = append(h.Routes, &routev3.Route{Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: c}}}})
		}
		out = append(out, marshal.Must(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{h}})...)
	}
	return out
}

// What is joined of parts is sent, dumped and compared as if it were in one piece.
func TestJoinedResources(t *testing.T) {
	before, theirs, after := hostFields([]string{"a", "b"}), hostFields([]string{"theirs"}), hostFields([]string{"c"})
	common := [][]byte{bytes.Join([][]byte{before, theirs, after}, nil)}
	c := NewCommon(RDS, common)
	for name, tt := range map[string]struct {
		own    []byte
		refers string
	}{
		"another domain":     {hostFields([]string{"theirs"}), "a b c theirs"},
		"another cluster":    {hostFields([]string{"own"}), "a b c own"},
		"a cluster more":     {hostFields([]string{"theirs", "own"}), "a b c own theirs"},
		"a cluster of both":  {hostFields([]string{"c"}), "a b c"},
		"nothing instead":    {nil, "a b c"},
		"larger than a copy": {hostFields([]string{string(bytes.Repeat([]byte("x"), 2*maxCopied))}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			rest := [][]byte{before}
			var own [][]byte
			if tt.own != nil {
				own = [][]byte{tt.own}
				rest = append(rest, tt.own)
			}
			rest = append(rest, after)
			j := marshal.NewJoined(&routev3.RouteConfiguration{Name: "80"}, marshal.Joined{Sum: [16]byte{1}, Rest: rest, Common: common, Replaced: [][]byte{theirs}, Own: own})
			r := c.NewJoined("80", j)
			whole := NewEncoded(RDS, "80", j.Bytes())
			if got := fmt.Sprint(r.refers.names); tt.refers != "" && got != "["+tt.refers+"]" || got != fmt.Sprint(whole.refers.names) {
				t.Errorf("it names %s: want %s, and %v as if in one piece", got, tt.refers, whole.refers.names)
			}
			if r.Size() != len(whole.Body) || !bytes.Equal(r.Encoded(), whole.Body) || !proto.Equal(r.any(), whole.any()) {
				t.Errorf("it is %q of %d bytes: want %q", r.Encoded(), r.Size(), whole.Body)
			}
			if r.OwnSize() >= r.Size() || whole.OwnSize() != whole.Size() {
				t.Errorf("%d of %d bytes are its own", r.OwnSize(), r.Size())
			}
			if r.equal(whole) || !r.equal(c.NewJoined("80", j)) {
				t.Error("it is not equal to one of the same parts only")
			}
			for _, delta := range []bool{false, true} {
				if got, want := sent(t, delta, r), sent(t, delta, whole); !proto.Equal(got, want) {
					t.Errorf("delta %v: sent is\n%v, want\n%v", delta, got, want)
				}
			}
		})
	}
}

// sent is a response with resources, without their versions, as a client decodes it.
func sent(t *testing.T, delta bool, resources ...*Resource) proto.Message {
	t.Helper()
	b := (&response{Send: Send{Type: RDS, Nonce: "1", Upserts: resources}, delta: delta}).encode().Materialize()
	var out proto.Message = &discoveryv3.DiscoveryResponse{}
	if delta {
		out = &discoveryv3.DeltaDiscoveryResponse{}
	}
	if err := proto.Unmarshal(b, out); err != nil {
		t.Fatalf("delta %v: decode %q: %v", delta, b, err)
	}
	if d, ok := out.(*discoveryv3.DeltaDiscoveryResponse); ok {
		for _, r := range d.Resources {
			r.Version = ""
		}
	}
	return out
}

// However often a set is sent that has a joined resource, no copy of it is made.
func TestJoinedResourcesAreNotCopied(t *testing.T) {
	fields := [][]byte{hostFields([]string{"a"})}
	list := []*Resource{NewCommon(RDS, fields).NewJoined("80", marshal.NewJoined(&routev3.RouteConfiguration{Name: "80"}, marshal.Joined{Rest: fields, Common: fields}))}
	for i := range minFramed {
		list = append(list, NewResource(RDS, fmt.Sprintf("port-%03d", i), marshal.Must(&routev3.RouteConfiguration{Name: fmt.Sprint(i)})))
	}
	from := newTypeView(list)
	want := sent(t, true, list...)
	for range 3 {
		out := appendFrames(nil, list, from, true)
		if !bytes.Contains(out.Materialize(), fields[0]) {
			t.Fatal("the virtual host is not in what is sent")
		}
		var first []byte
		for _, b := range out {
			if bytes.Equal(b.ReadOnlyData(), fields[0]) {
				first = b.ReadOnlyData()
			}
		}
		if first == nil || &first[0] != &fields[0][0] {
			t.Fatal("what is sent has a copy of the part")
		}
	}
	if got := sent(t, true, from.list()...); !proto.Equal(got, want) {
		t.Errorf("sent is\n%v, want\n%v", got, want)
	}
}
