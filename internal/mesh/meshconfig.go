package mesh

import (
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	"time"
)

// DefaultMeshConfig returns a new MeshConfig with the default of every field that a mesh leaves
// unset. [control-plane 1.4]
func DefaultMeshConfig() *meshv1.MeshConfig {
	return &meshv1.MeshConfig{
		ProxyListenPort:                OutboundPort,
		ProxyInboundListenPort:         InboundPort,
		ConnectTimeout:                 durationpb.New(10 * time.Second),
		ProtocolDetectionTimeout:       durationpb.New(0),
		EnableAutoMtls:                 wrapperspb.Bool(true),
		TrustDomain:                    DefaultTrustDomain,
		RootNamespace:                  DefaultRootNamespace,
		OutboundTrafficPolicy:          &meshv1.MeshConfig_OutboundTrafficPolicy{Mode: meshv1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY},
		InboundTrafficPolicy:           &meshv1.MeshConfig_InboundTrafficPolicy{Mode: meshv1.MeshConfig_InboundTrafficPolicy_PASSTHROUGH},
		DnsRefreshRate:                 durationpb.New(60 * time.Second),
		DefaultServiceExportTo:         []string{"*"},
		DefaultVirtualServiceExportTo:  []string{"*"},
		DefaultDestinationRuleExportTo: []string{"*"},
		EnableTracing:                  true,
		IngressControllerMode:          meshv1.MeshConfig_STRICT,
		IngressClass:                   "istio",
		IngressService:                 ingressService,
		DefaultConfig:                  DefaultProxyConfig(),
	}
}

// DefaultProxyConfig returns a new ProxyConfig with the agent's defaults. [agent 1.3]
func DefaultProxyConfig() *meshv1.ProxyConfig {
	return &meshv1.ProxyConfig{
		ConfigPath:               "./etc/istio/proxy",
		BinaryPath:               "/usr/local/bin/envoy",
		ClusterName:              &meshv1.ProxyConfig_ServiceCluster{ServiceCluster: "istio-proxy"},
		DrainDuration:            durationpb.New(45 * time.Second),
		TerminationDrainDuration: durationpb.New(5 * time.Second),
		ProxyAdminPort:           AdminPort,
		StatusPort:               StatusPort,
		ControlPlaneAuthPolicy:   meshv1.AuthenticationPolicy_MUTUAL_TLS,
		DiscoveryAddress:         "istiod.istio-system.svc:15012",
		StatNameLength:           189,
	}
}
