package mesh

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Metadata is what the control plane uses of a node's metadata. [control-plane 1.5.6–1.5.8]
type Metadata struct {
	Name, Namespace, ServiceAccount string
	ClusterID, Network              string
	Labels                          map[string]string
	InstanceIPs                     []netip.Addr
	// Interception is REDIRECT (also where empty), TPROXY or NONE.
	Interception string
	// Generator is empty for Envoy; "grpc", "api" or "event" otherwise.
	Generator  string
	DNSCapture bool
	HTTP10     bool
}

// Bounds on what a peer may send as metadata.
const (
	maxMetadataKeys = 512
	maxLabels       = 256
	// maxLabelBytes bounds all labels together, names and values. Kubernetes allows 317
	// for a name and 63 for a value; few are that long.
	maxLabelBytes  = 32 << 10
	maxInstanceIPs = 64
	// maxText bounds each of the other values, in bytes; Kubernetes' names have at most 253.
	maxText = 256
)

// metadataKeys are the keys that DecodeMetadata reads.
var metadataKeys = map[string]bool{
	"NAME": true, "NAMESPACE": true, "SERVICE_ACCOUNT": true, "CLUSTER_ID": true, "NETWORK": true, "INTERCEPTION_MODE": true,
	"GENERATOR": true, "DNS_CAPTURE": true, "HTTP10": true, "LABELS": true, "INSTANCE_IPS": true,
}

// ReadsMetadata says whether DecodeMetadata looks at a key: what is under others need not
// be decoded or kept.
func ReadsMetadata(key string) bool { return metadataKeys[key] }

// DecodeMetadata reads node metadata in the encodings that agents really use: booleans
// and numbers may be strings, lists comma-separated strings, and LABELS a map whose
// values need not be strings. Other keys are left aside (ReadsMetadata). It fails only on
// what would make the proxy's place in the mesh ambiguous (unreadable INSTANCE_IPS) or on
// sizes past its bounds; the error names the key.
func DecodeMetadata(raw map[string]any) (Metadata, error) {
	if len(raw) > maxMetadataKeys {
		return Metadata{}, fmt.Errorf("node metadata: %d keys, at most %d are taken", len(raw), maxMetadataKeys)
	}
	m := Metadata{
		Name:           Text(raw["NAME"]),
		Namespace:      Text(raw["NAMESPACE"]),
		ServiceAccount: Text(raw["SERVICE_ACCOUNT"]),
		ClusterID:      Text(raw["CLUSTER_ID"]),
		Network:        Text(raw["NETWORK"]),
		Interception:   strings.ToUpper(Text(raw["INTERCEPTION_MODE"])),
		Generator:      Text(raw["GENERATOR"]),
		DNSCapture:     Truth(raw["DNS_CAPTURE"]),
		HTTP10:         Truth(raw["HTTP10"]),
	}
	for key, v := range map[string]string{
		"NAME": m.Name, "NAMESPACE": m.Namespace, "SERVICE_ACCOUNT": m.ServiceAccount, "CLUSTER_ID": m.ClusterID,
		"NETWORK": m.Network, "INTERCEPTION_MODE": m.Interception, "GENERATOR": m.Generator,
	} {
		if len(v) > maxText {
			return Metadata{}, fmt.Errorf("node metadata %s: %d bytes, at most %d are taken", key, len(v), maxText)
		}
	}
	if l, ok := raw["LABELS"].(map[string]any); ok {
		if len(l) > maxLabels {
			return Metadata{}, fmt.Errorf("node metadata LABELS: %d labels, at most %d are taken", len(l), maxLabels)
		}
		m.Labels = make(map[string]string, len(l))
		size := 0
		for k, v := range l {
			m.Labels[k] = Text(v)
			size += len(k) + len(m.Labels[k])
		}
		if size > maxLabelBytes {
			return Metadata{}, fmt.Errorf("node metadata LABELS: %d bytes of names and values, at most %d are taken", size, maxLabelBytes)
		}
	}
	for _, s := range List(raw["INSTANCE_IPS"]) {
		ip, err := netip.ParseAddr(s)
		if err != nil || ip.Zone() != "" {
			return Metadata{}, fmt.Errorf("node metadata INSTANCE_IPS: %.100q is no IP address", s)
		}
		if len(m.InstanceIPs) == maxInstanceIPs {
			return Metadata{}, fmt.Errorf("node metadata INSTANCE_IPS: more than %d addresses", maxInstanceIPs)
		}
		m.InstanceIPs = append(m.InstanceIPs, ip.Unmap())
	}
	return m, nil
}

// Text reads a metadata value as a string: strings as they are, numbers and booleans in
// their shortest form, anything else as "".
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

// Truth reads a metadata value as a boolean: true, "true", "1" and 1 are true.
func Truth(v any) bool {
	b, err := strconv.ParseBool(Text(v))
	return err == nil && b
}

// List reads a metadata value as a list: a list of texts, or a comma-separated string.
// Empty elements are dropped.
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
