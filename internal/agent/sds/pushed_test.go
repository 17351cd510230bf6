package sds

import (
	"bytes"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func anyOf(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// clusterWith is a cluster that uses a secret.
func clusterWith(t *testing.T, name, secret string) *clusterv3.Cluster {
	t.Helper()
	return &clusterv3.Cluster{Name: name, TransportSocket: &corev3.TransportSocket{ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: anyOf(t, &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: secret}},
		}}),
	}}}
}

// split cuts a message into buffers of the given size.
func split(t *testing.T, m proto.Message, size int) mem.BufferSlice {
	t.Helper()
	text, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var out mem.BufferSlice
	for len(text) > size {
		out, text = append(out, mem.SliceBuffer(bytes.Clone(text[:size]))), text[size:]
	}
	return append(out, mem.SliceBuffer(text))
}

func TestPushedNames(t *testing.T) {
	const short, other = "file-root:/a", "file-cert:/c~/k"
	long := "file-cert:/" + strings.Repeat("x", 200) + "~/k" // its length is a varint of two bytes
	typ := wholeTypes[0]
	delta := func(removed string, clusters ...*clusterv3.Cluster) *discoveryv3.DeltaDiscoveryResponse {
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typ}
		for _, c := range clusters {
			r.Resources = append(r.Resources, &discoveryv3.Resource{Name: c.GetName(), Version: "1", Resource: anyOf(t, c)})
		}
		if removed != "" {
			r.RemovedResources = []string{removed}
		}
		return r
	}
	whole := func(clusters ...*clusterv3.Cluster) *discoveryv3.DiscoveryResponse {
		r := &discoveryv3.DiscoveryResponse{TypeUrl: typ}
		for _, c := range clusters {
			r.Resources = append(r.Resources, anyOf(t, c))
		}
		return r
	}
	one, two, three := clusterWith(t, "one", short), clusterWith(t, "two", long), clusterWith(t, "three", short)
	for name, script := range map[string][]struct {
		push proto.Message
		has  string // of short, long and other
	}{
		"delta": {
			{delta("", one), "short"}, {delta("", two), "short long"}, {delta("", three), "short long"},
			{delta("one"), "short long"}, {delta("three"), "long"}, {delta("", clusterWith(t, "two", other)), "other"}, {delta("two"), ""},
		},
		"state of the world": {
			{whole(one, two), "short long"}, {whole(two), "long"}, {whole(), ""},
		},
		"not a secret of files": {{whole(clusterWith(t, "x", "kubernetes://file-root:/a")), ""}},
		"another type is not whole": {
			{whole(one), "short"},
			{&discoveryv3.DiscoveryResponse{TypeUrl: "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"}, "short"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 7, 100, 1 << 20} {
				p := NewPushed()
				for i, st := range script {
					changed, before := p.Changed(), has(p, short, long, other)
					_, isDelta := st.push.(*discoveryv3.DeltaDiscoveryResponse)
					p.Observe(split(t, st.push, size), isDelta)
					got := has(p, short, long, other)
					if got != st.has {
						t.Errorf("buffers of %d bytes, step %d: has %q, want %q", size, i, got, st.has)
					}
					select {
					case <-changed:
						if got == before {
							t.Errorf("step %d: nothing changed", i)
						}
					default:
						if got != before {
							t.Errorf("step %d: the change is not reported", i)
						}
					}
				}
			}
		})
	}
}

func has(p *Pushed, short, long, other string) string {
	var out []string
	for _, n := range []struct{ text, name string }{{"short", short}, {"long", long}, {"other", other}} {
		if p.Has(n.name) {
			out = append(out, n.text)
		}
	}
	return strings.Join(out, " ")
}

func TestNamesOfTheBootstrap(t *testing.T) {
	p := NewPushed(`{"name": "file-cert:/c~/k"}`, "name: file-root:/r\n", "name: file-root:/end")
	for name, want := range map[string]bool{"file-cert:/c~/k": true, "file-root:/r": true, "file-root:/end": true, "file-root:/etc/shadow": false} {
		if p.Has(name) != want {
			t.Errorf("%s: %v, want %v", name, !want, want)
		}
	}
}

// TestAFileIsServedWhenTheConfigurationNamesIt: without that, whoever is served by the socket could read every key that the agent can.
func TestAFileIsServedWhenTheConfigurationNamesIt(t *testing.T) {
	const name = "file-root:/r"
	p, files := NewPushed(), counted{}
	f := newFollower(files, p)
	if problems := f.set([]string{name}); len(problems) != 1 || files[name] != 0 {
		t.Errorf("problems %v, following %v", problems, files)
	}
	if problems := f.set([]string{name}); len(problems) != 0 {
		t.Errorf("the same problem is new again: %v", problems)
	}
	changed := f.namesChanged()
	p.Observe(split(t, &discoveryv3.DiscoveryResponse{TypeUrl: wholeTypes[0], Resources: []*anypb.Any{anyOf(t, clusterWith(t, "a", name))}}, 1<<20), false)
	select {
	case <-changed:
	default:
		t.Error("the stream is not woken")
	}
	if problems := f.set([]string{name}); len(problems) != 0 || files[name] != 1 {
		t.Errorf("problems %v, following %v", problems, files)
	}
	p.Observe(split(t, &discoveryv3.DiscoveryResponse{TypeUrl: wholeTypes[0]}, 1<<20), false)
	if problems := f.set([]string{name}); len(problems) != 1 || files[name] != 0 {
		t.Errorf("no longer used: problems %v, following %v", problems, files)
	}
}

func FuzzPushed(f *testing.F) {
	text, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: "t", Resources: []*discoveryv3.Resource{{Name: "r", Resource: &anypb.Any{TypeUrl: "t", Value: []byte("\x0a\x0cfile-root:/a")}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text, true)
	f.Add(text, false)
	f.Fuzz(func(_ *testing.T, text []byte, delta bool) {
		p := NewPushed(string(text))
		p.Observe(mem.BufferSlice{mem.SliceBuffer(text)}, delta)
		p.Observe(mem.BufferSlice{mem.SliceBuffer(text)}, !delta)
	})
}
