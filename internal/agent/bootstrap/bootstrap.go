// Package bootstrap builds the configuration that Envoy starts with.
//
// Build is a pure function from the agent's Spec to a typed bootstrap,
// which Encode writes as the JSON that Envoy reads. All configuration
// of traffic comes later, over xDS. The bootstrap has the node, the agent's sockets,
// the statistics that are kept, and the two listeners that work without a
// control plane (health and metrics). Stock Envoy accepts every bootstrap that Build makes.
// The names and defaults are Istio's [agent B5–B24].
package bootstrap

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
)

const (
	adminProfile = "/var/lib/istio/data/envoy.prof"
	textLog      = "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t"
)

// Build makes the bootstrap. Its errors name the field or annotation that cannot be used.
func Build(s *spec.Spec) (*Bootstrap, error) {
	metadata, err := structpb.NewStruct(s.Node.Metadata)
	if err != nil {
		return nil, fmt.Errorf("build the node's metadata: %w", err)
	}
	fam := familyOf(s)
	var p packer
	b := &bootstrapv3.Bootstrap{
		Node: &corev3.Node{
			Id:       s.Node.ID.String(),
			Cluster:  s.Node.Cluster,
			Metadata: metadata,
			Locality: &corev3.Locality{Region: s.Node.Locality.Region, Zone: s.Node.Locality.Zone, SubZone: s.Node.Locality.Subzone},
		},
		Admin:               p.admin(s, fam),
		DynamicResources:    dynamic(s),
		StaticResources:     p.static(s, fam),
		OverloadManager:     p.overload(s),
		LayeredRuntime:      runtime(s.Config.GetRuntimeValues(), s.TLS),
		BootstrapExtensions: p.extensions(),
		ApplicationLogConfig: &bootstrapv3.Bootstrap_ApplicationLogConfig{
			LogFormat: logFormat(s.Envoy.LogJSON),
		},
		// The statistics of a cluster are created when it is first used, which halves the memory of an idle
		// cluster.
		DeferredStatOptions: &bootstrapv3.Bootstrap_DeferredStatOptions{EnableDeferredCreationStats: true},
	}
	if b.ClusterManager, err = manager(s); err != nil {
		return nil, err
	}
	if err := stats(s, b); err != nil {
		return nil, err
	}
	if err := p.collectors(s, fam, b); err != nil {
		return nil, fmt.Errorf("proxy configuration: %w", err)
	}
	return &Bootstrap{Message: b, Warnings: ignored(s, b), packed: p}, nil
}

// family holds the addresses of a node's IP family.
type family struct {
	loopback, wildcard string
	// also is the wildcard of the other family if a listener accepts both.
	also string
}

// familyOf returns IPv6 if every address of the node is IPv6, else IPv4. [agent B24]
func familyOf(s *spec.Spec) family {
	var v4, v6 bool
	for _, ip := range s.Node.IPs {
		v4 = v4 || ip.Is4()
		v6 = v6 || ip.Is6()
	}
	f := family{loopback: "127.0.0.1", wildcard: "0.0.0.0"}
	switch {
	case v6 && !v4:
		f = family{loopback: "::1", wildcard: "::"}
	case v6 && v4 && s.Envoy.DualStack:
		f.also = "::"
	}
	return f
}

// admin is Envoy's administration interface, reachable from the machine alone.
func (p *packer) admin(s *spec.Spec, fam family) *bootstrapv3.Admin {
	return &bootstrapv3.Admin{
		AccessLog:   []*accessLog{p.discardLog()},
		ProfilePath: adminProfile,
		Address:     socket(fam.loopback, uint32(s.Envoy.AdminPort)),
	}
}

// dynamic configures listeners and clusters over ADS from the agent's socket. Envoy
// waits for the first configuration without a time limit.
func dynamic(s *spec.Spec) *bootstrapv3.Bootstrap_DynamicResources {
	ads := &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   durationpb.New(0),
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
	api := corev3.ApiConfigSource_DELTA_GRPC
	if s.Envoy.StateOfTheWorld {
		api = corev3.ApiConfigSource_GRPC
	}
	return &bootstrapv3.Bootstrap_DynamicResources{
		LdsConfig: ads,
		CdsConfig: ads,
		AdsConfig: &corev3.ApiConfigSource{
			ApiType:             api,
			TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: xdsCluster},
			}}},
			SetNodeOnFirstMessageOnly: true,
		},
	}
}

// logFormat returns the format of Envoy's log, which is like that of the agent's log.
func logFormat(asJSON bool) *bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat {
	if !asJSON {
		return &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat{
			LogFormat: &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat_TextFormat{TextFormat: textLog},
		}
	}
	fields := map[string]*structpb.Value{}
	for k, v := range map[string]string{
		"time": "%Y-%m-%dT%T.%fZ", "level": "%l", "scope": "envoy %n", "caller": "%g:%#", "msg": "%j", "thread": "%t",
	} {
		fields[k] = structpb.NewStringValue(v)
	}
	return &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat{
		LogFormat: &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat_JsonFormat{JsonFormat: &structpb.Struct{Fields: fields}},
	}
}

// ignored returns a warning for each annotation of s that has no effect in b.
func ignored(s *spec.Spec, b *bootstrapv3.Bootstrap) []string {
	if v := s.Node.Annotations[noteEviction]; v != "" && b.GetStatsEvictionInterval() == nil {
		return []string{fmt.Sprintf("annotation %s %s has no effect: want a multiple of the flush interval", noteEviction, v)}
	}
	return nil
}
