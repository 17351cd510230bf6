package bootstrap

import (
	"fmt"
	"math"
	"strconv"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	internalv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3"
	downstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// manager returns nil if all settings of the cluster manager have their default. [agent B21, B25]
func manager(s *spec.Spec) (*bootstrapv3.ClusterManager, error) {
	load := s.Envoy.LoadStats
	if s.Envoy.OutlierLog == "" && !s.Envoy.DeferredClusters && load == "" && !s.Envoy.SelfDiscovery {
		return nil, nil
	}
	m := &bootstrapv3.ClusterManager{EnableDeferredClusterCreation: s.Envoy.DeferredClusters}
	if s.Envoy.SelfDiscovery {
		m.LocalClusterName = localCluster
	}
	if load != "" {
		m.LoadStatsConfig = &corev3.ApiConfigSource{}
		if err := protojson.Unmarshal([]byte(load), m.LoadStatsConfig); err != nil {
			return nil, fmt.Errorf("environment ISTIO_META_LOAD_STATS_CONFIG_JSON: want an envoy.config.core.v3.ApiConfigSource as JSON: %w", err)
		}
	}
	if p := s.Envoy.OutlierLog; p != "" {
		m.OutlierDetection = &bootstrapv3.ClusterManager_OutlierDetection{EventLogPath: p}
	}
	return m, nil
}

// self is the cluster of the node's own service, by whose endpoints Envoy knows how the service's load is spread over zones. A control
// plane that does not know it delays the start for as long as a secret would. [agent B13, E7]
func self() *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 localCluster,
		AltStatName:          localCluster + ";",
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		ConnectTimeout:       durationpb.New(secretTimeout),
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			InitialFetchTimeout:   durationpb.New(secretTimeout),
			ResourceApiVersion:    corev3.ApiVersion_V3,
		}},
	}
}

const connectionsKey = "overload.global_downstream_max_connections"

// overload limits the total number of connections that a proxy accepts. [agent B20]
func (p *packer) overload(s *spec.Spec) *overloadv3.OverloadManager {
	limit := int64(math.MaxInt32)
	for _, text := range []string{
		s.Config.GetRuntimeValues()[connectionsKey],
		mesh.Text(s.Node.Metadata["GLOBAL_DOWNSTREAM_MAX_CONNECTIONS"]),
	} {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 {
			limit = n
		}
	}
	if n := s.Config.GetConnectionSettings().GetGlobalDownstreamConnectionLimit().GetValue(); n > 0 {
		limit = int64(n)
	}
	return &overloadv3.OverloadManager{ResourceMonitors: []*overloadv3.ResourceMonitor{{
		Name: "envoy.resource_monitors.global_downstream_max_connections",
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: p.pack(&downstreamv3.DownstreamConnectionsConfig{
			MaxActiveDownstreamConnections: limit,
		})},
	}}}
}

// runtime makes Envoy's runtime layers: our defaults, overridden by the user's values, of which an empty
// one removes a key; then the layer that the admin interface writes. [agent B9]
func runtime(user map[string]string, policy pki.TLSPolicy) *bootstrapv3.LayeredRuntime {
	fields := map[string]*structpb.Value{
		"envoy.deprecated_features:envoy.config.listener.v3.Listener.hidden_envoy_deprecated_use_original_dst": structpb.NewBoolValue(true),
		"envoy.reloadable_features.http_reject_path_with_fragment":                                             structpb.NewBoolValue(false),
		"envoy.reloadable_features.fixed_heap_use_allocated":                                                   structpb.NewBoolValue(true),
		"envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update":                                       structpb.NewBoolValue(false),
		"re2.max_program_size.error_level":                                                                     structpb.NewStringValue("32768"),
	}
	if policy == pki.FIPS1402 {
		fields["envoy.reloadable_features.google_grpc_disable_tls_13"] = structpb.NewBoolValue(true)
	}
	for k, v := range user {
		switch v {
		case "":
			delete(fields, k)
		case "true", "false":
			fields[k] = structpb.NewBoolValue(v == "true")
		default:
			fields[k] = structpb.NewStringValue(v)
		}
	}
	// The overload manager enforces this limit.
	delete(fields, connectionsKey)
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{
		{Name: "global config", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: fields}}},
		{Name: "admin", LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}}},
	}}
}

// extensions are the bootstrap extensions: internal listeners, which control
// planes may send.
func (p *packer) extensions() []*corev3.TypedExtensionConfig {
	return []*corev3.TypedExtensionConfig{{
		Name:        "envoy.bootstrap.internal_listener",
		TypedConfig: p.pack(&internalv3.InternalListener{BufferSizeKb: wrapperspb.UInt32(64)}),
	}}
}

func digits(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
