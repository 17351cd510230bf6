package mesh

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Values of INTERCEPTION_MODE. [control-plane 1.5.16]
const (
	// InterceptionTPROXY is the one with which inbound connections keep the addresses of their clients.
	InterceptionTPROXY = "TPROXY"
	// InterceptionNone is the one with which nothing is captured.
	InterceptionNone = "NONE"
)

// Metadata has the keys of a node's metadata that the control plane uses. [control-plane 1.5.6–1.5.8]
type Metadata struct {
	Name, Namespace, ServiceAccount string
	ClusterID, Network              string
	// IstioVersion is the version of Istio whose agent the proxy's agent is, or stands for.
	IstioVersion string
	Labels       map[string]string
	InstanceIPs  []netip.Addr
	// Interception is REDIRECT, InterceptionTPROXY or InterceptionNone, in upper case; empty means REDIRECT. Other
	// values are not rejected here.
	Interception string
	// Generator is empty for Envoy, else the name of the generator that the client asks for
	// ("grpc", "api", "event").
	Generator  string
	DNSCapture bool
	// DNSAutoAllocate is set if the agent resolves hosts to allocated addresses, whatever the control plane's default is.
	DNSAutoAllocate bool

	// AutoRegisterGroup is the WorkloadGroup that the proxy wants a WorkloadEntry of; empty for none. [agent V7]
	AutoRegisterGroup string
	// ReadinessProbe is set if the node's ProxyConfig has one, so that the agent reports its application's health.
	ReadinessProbe bool
	// AccessLogService is set if the ProxyConfig has a service of access logs: the bootstrap has AccessLogServiceCluster.
	AccessLogService bool

	HTTP10 bool
	// VirtualHosts is set if the proxy accepts virtual hosts as resources of their own (VHDS), which
	// the delta protocol alone can carry.
	VirtualHosts bool
	// FileSecrets is set if the proxy gets the secrets of files from SDSFilesCluster, which FileSecretsKey says.
	FileSecrets bool
	// SelfDiscovery is set if the proxy asks for the endpoints of its own workload, which SelfDiscoveryKey says.
	SelfDiscovery bool
	// ProxylessCertificates is set if a gRPC library has a certificate provider, which ProxylessCertificatesKey says.
	ProxylessCertificates bool
	// BootstrapDifferences is set if the agent merges a bootstrap with differences into its own, which BootstrapKey says.
	BootstrapDifferences bool
	// CompliancePolicy is what CompliancePolicyKey says; values that nobody knows have no meaning.
	CompliancePolicy string
	// Epoch is what EpochKey says, as decimal digits; empty if it is not known.
	Epoch string
	// Topology is that of the node's ProxyConfig.
	Topology Topology
	// Tracing is that of the node's ProxyConfig.
	Tracing Tracing
	// Texts are the other values that are texts.
	Texts Texts
	// NotApplied are the fields of the node's ProxyConfig that the proxy does not get.
	NotApplied ProxyConfigFields
}

// Limits on the metadata that a peer may send.
const (
	maxMetadataKeys = 512
	maxLabels       = 256
	// maxLabelBytes limits the names and values of all labels together. Kubernetes allows 317
	// bytes for a name and 63 for a value.
	maxLabelBytes  = 32 << 10
	maxInstanceIPs = 64
	// maxText limits each other value, in bytes. Names in Kubernetes have at most 253.
	maxText = 256
)

// VirtualHostsKey is the key of the metadata by which a proxy says that it accepts virtual hosts as resources of
// their own. [control-plane 1.5.12]
const VirtualHostsKey = "VIRTUAL_HOST_DISCOVERY"

// FileSecretsKey is the key of the metadata by which a proxy says that the secrets of files are at SDSFilesCluster.
// [control-plane 1.5.13]
const FileSecretsKey = "file-credential"

// SelfDiscoveryKey is the key of the metadata by which a proxy says that its bootstrap has the cluster [LocalCluster].
// [agent E7]
const SelfDiscoveryKey = "ENABLE_SELF_DISCOVERY"

// GeneratorGRPC is the value of GENERATOR for gRPC libraries, which get resources of their own. [control-plane 1.6.12]
const GeneratorGRPC = "grpc"

// ProxylessCertificatesKey is the key of the metadata by which a gRPC library's bootstrap says that it has the certificate
// provider [ProxylessProvider]. It is this project's own: without it, no
// cluster uses mutual TLS unless a DestinationRule says so. [control-plane 1.5.14]
const ProxylessCertificatesKey = "GRPC_CERTIFICATE_PROVIDER"

// The names in the bootstraps of gRPC libraries: of the certificate provider, of the certificates that it provides, and what the
// names of servers' listeners begin with. [agent G2, G3]
const (
	ProxylessProvider       = "default"
	ProxylessListenerPrefix = "xds.istio.io/grpc/lds/inbound/"
)

// autoRegisterKey is the key of the metadata with the WorkloadGroup.
const autoRegisterKey = "AUTO_REGISTER_GROUP"

// CompliancePolicyKey is the key of the metadata by which a proxy says that its TLS is limited, with a value of Istio's
// COMPLIANCE_POLICY. [agent E34]
const CompliancePolicyKey = "COMPLIANCE_POLICY"

// EpochKey is the key of the metadata in which our agent says which of its Envoys a stream is of: the number of its restart epoch.
// [control-plane 1.5.15]
const EpochKey = "ENVOY_EPOCH"

// epoch returns the value of EpochKey, empty if it is no number: it is only shown.
func epoch(v any) string {
	n, err := strconv.ParseUint(Text(v), 10, 31)
	if err != nil {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// metadataKeys are the keys that DecodeMetadata reads.
var metadataKeys = map[string]bool{
	"NAME": true, "NAMESPACE": true, "SERVICE_ACCOUNT": true, "CLUSTER_ID": true, "NETWORK": true, "INTERCEPTION_MODE": true,
	"GENERATOR": true, "DNS_CAPTURE": true, "DNS_AUTO_ALLOCATE": true, "HTTP10": true, "LABELS": true, "INSTANCE_IPS": true,
	"ISTIO_VERSION": true, autoRegisterKey: true, VirtualHostsKey: true, FileSecretsKey: true, SelfDiscoveryKey: true, ProxylessCertificatesKey: true, CompliancePolicyKey: true, EpochKey: true,
	BootstrapKey: true,
}

// proxyConfigKey is the key that DecodeMetadata reads the names of fields in. It is not among
// metadataKeys, since its value, which may be large, need not be decoded; see [IsProxyConfig].
const proxyConfigKey = "PROXY_CONFIG"

// IsProxyConfig reports whether the value of a key is the node's ProxyConfig. Of it only the names
// of fields count, but for one: whoever does not decode it whole sets NotApplied by [ProxyConfigField],
// ReadinessProbe by [IsReadinessProbe], Topology by [IsTopology] and [DecodeTopology],
// Tracing by [IsTracing] and [DecodeTracing], and AccessLogService by [IsAccessLogService] and [DecodeAccessLogService].
func IsProxyConfig(key string) bool { return key == proxyConfigKey }

// ReadsMetadata reports whether DecodeMetadata reads the value of a key, whatever it is. Values of other keys need not be
// decoded or kept, but for those for which IsText is true.
func ReadsMetadata(key string) bool { return metadataKeys[key] }

// DecodeMetadata decodes node metadata in the encodings that agents use: booleans and numbers
// may be strings, lists may be comma-separated strings, and values of LABELS need not be
// strings. It ignores keys for which ReadsMetadata and IsProxyConfig are false, but for Texts, and values of an unexpected type.
// It returns an error that names the key if INSTANCE_IPS has an invalid address or a limit is
// exceeded.
func DecodeMetadata(raw map[string]any) (Metadata, error) {
	if len(raw) > maxMetadataKeys {
		return Metadata{}, fmt.Errorf("node metadata: %d keys, want at most %d", len(raw), maxMetadataKeys)
	}
	m := Metadata{
		Name:           Text(raw["NAME"]),
		Namespace:      Text(raw["NAMESPACE"]),
		ServiceAccount: Text(raw["SERVICE_ACCOUNT"]),
		ClusterID:      Text(raw["CLUSTER_ID"]),
		Network:        Text(raw["NETWORK"]),
		IstioVersion:   Text(raw["ISTIO_VERSION"]),
		Interception:   strings.ToUpper(Text(raw["INTERCEPTION_MODE"])),
		Generator:      Text(raw["GENERATOR"]),
		DNSCapture:     Bool(raw["DNS_CAPTURE"]),
		HTTP10:         Bool(raw["HTTP10"]),
		VirtualHosts:   Bool(raw[VirtualHostsKey]),
		FileSecrets:    Bool(raw[FileSecretsKey]),
		SelfDiscovery:  Bool(raw[SelfDiscoveryKey]),
		Topology:       topology(raw[proxyConfigKey]),
		NotApplied:     notApplied(raw[proxyConfigKey]),
		Texts:          NewTexts(raw),

		DNSAutoAllocate:       Bool(raw["DNS_AUTO_ALLOCATE"]),
		ProxylessCertificates: Bool(raw[ProxylessCertificatesKey]),
		BootstrapDifferences:  Bool(raw[BootstrapKey]),

		CompliancePolicy:  Text(raw[CompliancePolicyKey]),
		AutoRegisterGroup: Text(raw[autoRegisterKey]),
		ReadinessProbe:    hasReadinessProbe(raw[proxyConfigKey]),
		AccessLogService:  accessLogService(raw[proxyConfigKey]),
		Epoch:             epoch(raw[EpochKey]),
	}
	whole := false
	if m.Tracing, whole = tracing(raw[proxyConfigKey]); !whole {
		m.NotApplied |= TracingNotApplied
	}
	for key, v := range map[string]string{
		"NAME": m.Name, "NAMESPACE": m.Namespace, "SERVICE_ACCOUNT": m.ServiceAccount, "CLUSTER_ID": m.ClusterID,
		"NETWORK": m.Network, "INTERCEPTION_MODE": m.Interception, "GENERATOR": m.Generator, "ISTIO_VERSION": m.IstioVersion, autoRegisterKey: m.AutoRegisterGroup,
		CompliancePolicyKey: m.CompliancePolicy,
	} {
		if len(v) > maxText {
			return Metadata{}, fmt.Errorf("node metadata %s: %d bytes, want at most %d", key, len(v), maxText)
		}
	}
	if l, ok := raw["LABELS"].(map[string]any); ok {
		if len(l) > maxLabels {
			return Metadata{}, fmt.Errorf("node metadata LABELS: %d labels, want at most %d", len(l), maxLabels)
		}
		m.Labels = make(map[string]string, len(l))
		size := 0
		for k, v := range l {
			m.Labels[k] = Text(v)
			size += len(k) + len(m.Labels[k])
		}
		if size > maxLabelBytes {
			return Metadata{}, fmt.Errorf("node metadata LABELS: %d bytes of names and values, want at most %d", size, maxLabelBytes)
		}
	}
	for _, s := range List(raw["INSTANCE_IPS"]) {
		ip, err := netip.ParseAddr(s)
		if err != nil || ip.Zone() != "" {
			return Metadata{}, fmt.Errorf("node metadata INSTANCE_IPS: invalid IP address %.100q: want an address without a zone", s)
		}
		if len(m.InstanceIPs) == maxInstanceIPs {
			return Metadata{}, fmt.Errorf("node metadata INSTANCE_IPS: more than %d addresses", maxInstanceIPs)
		}
		m.InstanceIPs = append(m.InstanceIPs, ip.Unmap())
	}
	return m, nil
}

// Text returns a metadata value as a string: a string unchanged, a number or boolean in its
// shortest form, anything else as "".
func Text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return ""
}

// Bool returns a metadata value as a boolean, by strconv.ParseBool of its Text; a value that is
// not a boolean is false.
func Bool(v any) bool {
	b, err := strconv.ParseBool(Text(v))
	return err == nil && b
}

// List returns a metadata value as a list: the elements of a list, or of a comma-separated
// string, without surrounding space. Empty elements are dropped.
func List(v any) []string {
	var parts []string
	switch v := v.(type) {
	case string:
		parts = strings.Split(v, ",")
	case []any:
		for _, e := range v {
			parts = append(parts, Text(e))
		}
	}
	out := parts[:0]
	for _, p := range parts {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}
