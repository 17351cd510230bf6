// Package bootstrap builds the configuration that Envoy starts with.
//
// Build is a pure function from what the agent knows of its node to a typed bootstrap,
// which Encode writes as the JSON that Envoy reads. Everything that an Envoy of the mesh does
// for traffic comes later, over xDS: here stand who it is, where the agent's sockets are,
// which statistics it keeps, and the two listeners that work before and without any
// control plane (health and metrics). Stock Envoy takes every bootstrap that Build makes.
// The names and defaults are Istio's [agent B5–B24].
package bootstrap

import (
	"fmt"
	"net/netip"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Input is what a bootstrap depends on. Build does not change it.
type Input struct {
	// NodeID is in the form type~ip~id~domain.
	NodeID, Cluster string
	Metadata        map[string]any
	Locality        mesh.Locality
	// IPs are the node's addresses; they decide which IP families are used.
	IPs         []netip.Addr
	Config      *meshv1.ProxyConfig
	Annotations map[string]string
	// XDSSocket and SDSSocket are the paths of the agent's sockets.
	XDSSocket, SDSSocket string
	// HealthPort and PrometheusPort are those of the static listeners, 1–65535.
	HealthPort, PrometheusPort uint32
	Switches                   Switches
}

// Switches are the choices that have a name in the agent's environment or flags.
type Switches struct {
	// StateOfTheWorld asks for xDS without deltas (ISTIO_DELTA_XDS=false).
	StateOfTheWorld bool
	// DualStack has the static listeners accept both families (ISTIO_DUAL_STACK).
	DualStack bool
	// LogJSON has Envoy log JSON (--log_as_json).
	LogJSON bool
	// DeferredClusters has Envoy make a cluster's parts on its first request.
	DeferredClusters bool
	// CountConnections keeps the counters that a drain waits for (EXIT_ON_ZERO_ACTIVE_CONNECTIONS).
	CountConnections bool
	// OutlierLog is the file for outlier ejections; empty for none.
	OutlierLog string
}

const (
	adminProfile = "/var/lib/istio/data/envoy.prof"
	textLog      = "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t"
)

// Build makes the bootstrap. Its errors name the field or annotation that cannot be used.
func Build(in Input) (*Bootstrap, error) {
	metadata, err := structpb.NewStruct(in.Metadata)
	if err != nil {
		return nil, fmt.Errorf("build the node's metadata: %w", err)
	}
	fam := familyOf(in)
	var p packer
	b := &bootstrapv3.Bootstrap{
		Node: &corev3.Node{
			Id:       in.NodeID,
			Cluster:  in.Cluster,
			Metadata: metadata,
			Locality: &corev3.Locality{Region: in.Locality.Region, Zone: in.Locality.Zone, SubZone: in.Locality.Subzone},
		},
		Admin:               p.admin(in, fam),
		DynamicResources:    dynamic(in),
		StaticResources:     p.static(in, fam),
		ClusterManager:      manager(in),
		OverloadManager:     p.overload(in),
		LayeredRuntime:      runtime(in.Config.GetRuntimeValues()),
		BootstrapExtensions: p.extensions(),
		ApplicationLogConfig: &bootstrapv3.Bootstrap_ApplicationLogConfig{
			LogFormat: logFormat(in.Switches.LogJSON),
		},
		// A stats scope is made when a cluster is first used, which halves what an idle
		// cluster costs.
		DeferredStatOptions: &bootstrapv3.Bootstrap_DeferredStatOptions{EnableDeferredCreationStats: true},
	}
	if err := stats(in, b); err != nil {
		return nil, err
	}
	return &Bootstrap{Message: b, packed: p}, nil
}

// family holds the addresses of a node's IP family.
type family struct {
	loopback, wildcard string
	// also is the wildcard of the other family where a listener takes both.
	also string
}

// familyOf is IPv6 where every address of the node is, else IPv4. [agent B24]
func familyOf(in Input) family {
	var v4, v6 bool
	for _, ip := range in.IPs {
		v4 = v4 || ip.Is4()
		v6 = v6 || ip.Is6()
	}
	f := family{loopback: "127.0.0.1", wildcard: "0.0.0.0"}
	switch {
	case v6 && !v4:
		f = family{loopback: "::1", wildcard: "::"}
	case v6 && v4 && in.Switches.DualStack:
		f.also = "::"
	}
	return f
}

// admin is Envoy's administration interface, reachable from the machine alone.
func (p *packer) admin(in Input, fam family) *bootstrapv3.Admin {
	port := in.Config.GetProxyAdminPort()
	if port == 0 {
		port = mesh.AdminPort
	}
	return &bootstrapv3.Admin{
		AccessLog:   []*accessLog{p.discardLog()},
		ProfilePath: adminProfile,
		Address:     socket(fam.loopback, uint32(port)),
	}
}

// dynamic says that listeners and clusters come over the agent's stream, and that Envoy
// waits for the first of them for as long as it takes.
func dynamic(in Input) *bootstrapv3.Bootstrap_DynamicResources {
	ads := &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   durationpb.New(0),
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
	api := corev3.ApiConfigSource_DELTA_GRPC
	if in.Switches.StateOfTheWorld {
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

// logFormat is that of Envoy's own log, so that it reads like the agent's beside it.
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

// Ignored names the fields and annotations that an agent reads but does not act on, so that
// their user can be told. b is what Build made of in.
func Ignored(in Input, b *Bootstrap) []string {
	var out []string
	c := in.Config
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"tracing", c.GetTracing() != nil},
		{"statsdUdpAddress", c.GetStatsdUdpAddress() != ""},
		{"envoyMetricsService", c.GetEnvoyMetricsService() != nil},
		{"envoyAccessLogService", c.GetEnvoyAccessLogService() != nil},
		{"privateKeyProvider", c.GetPrivateKeyProvider() != nil},
		{"proxyBootstrapTemplatePath", c.GetProxyBootstrapTemplatePath() != ""},
		{"readinessProbe", c.GetReadinessProbe() != nil},
		{"annotation " + noteEviction + " (not a multiple of the flush interval)", in.Annotations[noteEviction] != "" && b.Message.GetStatsEvictionInterval() == nil},
	} {
		if f.set {
			out = append(out, f.name)
		}
	}
	return out
}
