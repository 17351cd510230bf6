package listener_test

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/listener"
	"github.com/pilothouse/pilothouse/internal/discovery/compile/route"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// What of inbound listeners is encoded once, for many workloads, makes up the same bytes as the whole message, in the order of its fields.
func TestFramesMakeTheBytesOfTheWholeListener(t *testing.T) {
	const all = ^mesh.Capability(0) &^ (mesh.FIPS1402 | mesh.PQC)
	envs := map[string]listener.Env{
		"plain": {Caps: all, Mesh: &meshv1.MeshConfig{}},
		"few":   {Caps: mesh.IPv4, Mesh: &meshv1.MeshConfig{}},
		"logs":  {Caps: all, Mesh: &meshv1.MeshConfig{AccessLogFile: "/dev/stdout", EnableEnvoyAccessLogService: true}},
		"told":  {Caps: all, Mesh: &meshv1.MeshConfig{}, Metrics: listener.Metrics{Told: true}},
		"metrics": {
			Caps: all, Mesh: &meshv1.MeshConfig{AccessLogFile: "/dev/stdout"}, Metrics: listener.Metrics{On: true, Told: true},
			Tracing: &listener.Tracing{Sampling: 1},
		},
	}
	port := func(n uint32, p mesh.Protocol, m mesh.MTLSMode) listener.InboundPort {
		name := fmt.Sprintf("inbound|%d||", n)
		host := fmt.Sprintf("s%d.a.svc.cluster.local", n)
		return listener.InboundPort{
			Port: n, Protocol: p, Mode: m, Cluster: name, Host: host, Namespace: "a", Routes: route.Inbound(name, host, n),
			TCP: listener.TCP{IdleTimeout: durationpb.New(9)},
		}
	}
	ended := port(8443, mesh.HTTPS, mesh.Permissive)
	ended.TLS = &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, ServerCertificate: "/c", PrivateKey: "/k"}
	for _, mode := range []mesh.MTLSMode{mesh.Permissive, mesh.Strict, mesh.Disable} {
		for _, ports := range [][]listener.InboundPort{
			nil, {port(80, mesh.HTTP, mode)}, {port(80, mesh.Auto, mode), port(90, mesh.TCP, mode), ended, port(15006, mesh.TCP, mode)},
		} {
			for name, e := range envs {
				for _, closed := range []bool{false, true} {
					in := listener.Inbound{
						Unknown: listener.InboundPort{
							Protocol: mesh.Auto, Mode: mode, Cluster: mesh.InboundPassthroughCluster, Routes: route.Inbound(mesh.InboundPassthroughCluster, "", 0),
						},
						TrustDomains: []string{"cluster.local"}, Ports: ports, Closed: closed,
					}
					l := listener.VirtualInbound(in, e)
					if got, want := listener.NewFrame(in, e).EncodedVirtualInbound(ports), marshal.MustEncodedAny(l); !bytes.Equal(got, want) {
						t.Errorf("%s, mode %d, %d ports, closed %v: the frame makes\n%q\nwant\n%q", name, mode, len(ports), closed, got, want)
					}
					for _, c := range l.FilterChains {
						for _, filter := range c.Filters {
							m, err := filter.GetTypedConfig().UnmarshalNew()
							if err != nil {
								t.Fatal(err)
							}
							if got, want := filter.GetTypedConfig().Value, marshal.Must(m); !bytes.Equal(got, want) {
								t.Errorf("%s, mode %d: chain %s: filter %s is\n%q\nwant\n%q", name, mode, c.Name, filter.Name, got, want)
							}
						}
					}
				}
			}
		}
	}
}
