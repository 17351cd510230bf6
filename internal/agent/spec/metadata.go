package spec

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// lastApplied repeats the whole object. It is left out: nothing uses it in a node, and it would be sent on every stream.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// booleanKeys are the metadata keys that control planes compare with the strings "true" and
// "false", so that other spellings are normalized. [agent B7]
var booleanKeys = map[string]bool{
	"HTTP10": true, "DNS_CAPTURE": true, "DNS_AUTO_ALLOCATE": true, "ENABLE_HBONE": true, "DISABLE_HBONE_SEND": true,
	"UNPRIVILEGED_POD": true, "ENABLE_SELF_DISCOVERY": true, "METADATA_DISCOVERY": true,
	mesh.VirtualHostsKey:             true,
	"INBOUND_LISTENER_EXACT_BALANCE": true, "OUTBOUND_LISTENER_EXACT_BALANCE": true,
	"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": true, "ENVOY_SKIP_DEPRECATED_LOGS": true,
}

// metadata makes the node's metadata: first the free keys of the environment, then the keys that
// the agent sets, which win; then the fields of the node that depend on it. [agent B7, E3]
func (b *builder) metadata() error {
	n, config := &b.s.Node, b.s.Config
	m := map[string]any{
		"ISTIO_VERSION":                 ContractVersion,
		"ENVOY_SKIP_DEPRECATED_LOGS":    strconv.FormatBool(b.set.Bool("ENVOY_SKIP_DEPRECATED_LOGS")),
		"WORKLOAD_IDENTITY_SOCKET_FILE": b.set.Text("WORKLOAD_IDENTITY_SOCKET_FILE"),
	}
	delta := b.set.Bool("ISTIO_DELTA_XDS")
	if delta {
		m[mesh.VirtualHostsKey] = "true"
	}
	if err := b.freeMetadata(m); err != nil {
		return err
	}
	if !delta {
		// Envoy takes virtual hosts as resources of their own by the delta protocol only.
		delete(m, mesh.VirtualHostsKey)
	}
	// Whatever asks for it: control planes rely on an extension that stock Envoy does not have.
	m["METADATA_DISCOVERY"] = "false"
	m["NAME"] = strings.TrimSuffix(n.ID.ID, "."+n.Identity.Namespace)
	m["NAMESPACE"] = n.Identity.Namespace
	m["SERVICE_ACCOUNT"] = n.Identity.ServiceAccount
	ips := make([]string, len(n.IPs))
	for i, ip := range n.IPs {
		ips[i] = ip.String()
	}
	m["INSTANCE_IPS"] = strings.Join(ips, ",")
	if len(n.Labels) > 0 {
		m["LABELS"] = texts(n.Labels)
	}
	m[mesh.WorkloadFactsKey] = mesh.WorkloadFacts(first(mesh.Text(m["WORKLOAD_NAME"]), m["NAME"].(string)), n.Identity.Namespace, mesh.Text(m["CLUSTER_ID"]), n.Labels)
	if len(n.Annotations) > 0 {
		m["ANNOTATIONS"] = texts(n.Annotations)
	}
	if san := b.set.TextOr("ISTIOD_SAN", host(config.GetDiscoveryAddress())); san != "" {
		m["PILOT_SAN"] = []any{san}
	}
	if id := config.GetMeshId(); id != "" && m["MESH_ID"] == nil {
		m["MESH_ID"] = id
	}
	if p := b.set.Text("outlierLogPath"); p != "" {
		m["OUTLIER_LOG_PATH"] = p
	}
	if p := b.set.Int("stsPort"); p != 0 {
		m["STS_PORT"] = strconv.Itoa(p)
	}
	if _, given := b.set.Given("EXIT_ON_ZERO_ACTIVE_CONNECTIONS"); given {
		m["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"] = strconv.FormatBool(b.set.Bool("EXIT_ON_ZERO_ACTIVE_CONNECTIONS"))
	}
	for _, port := range []string{"ENVOY_STATUS_PORT", "ENVOY_PROMETHEUS_PORT"} {
		m[port] = float64(b.set.Int(port))
	}
	var err error
	if m["PROXY_CONFIG"], err = configMap(config); err != nil {
		return err
	}
	n.Metadata = m
	n.Cluster, n.Locality = b.serviceCluster(), b.locality()
	return nil
}

// freeMetadata copies ISTIO_META_* (text) and ISTIO_METAJSON_* (JSON objects). Labels and annotations given
// there override those of the files.
func (b *builder) freeMetadata(m map[string]any) error {
	n := &b.s.Node
	for key, value := range b.set.Prefixed("ISTIO_META_*") {
		m[key] = value
		if booleanKeys[key] {
			m[key] = strconv.FormatBool(mesh.Bool(strings.ToLower(first(value, "false"))))
		}
	}
	objects := b.set.Prefixed("ISTIO_METAJSON_*")
	// Sorted, so that the result is deterministic if two objects have the same key. Objects override texts.
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		if objects[key] == "" {
			continue
		}
		var object map[string]any
		if err := json.Unmarshal([]byte(objects[key]), &object); err != nil {
			return fmt.Errorf("environment ISTIO_METAJSON_%s: want a JSON object: %w", key, err)
		}
		switch key {
		case "LABELS":
			m["STATIC_LABELS"] = object
			n.Labels = overlay(n.Labels, textMap(object))
		case "ANNOTATIONS":
			n.Annotations = overlay(n.Annotations, textMap(object))
		default:
			maps.Copy(m, object)
		}
	}
	return nil
}

// host returns an address without its port and brackets, or "" if it has no port.
func host(address string) string {
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		return ""
	}
	return strings.Trim(address[:i], "[]")
}

// texts converts labels or annotations to metadata, without lastApplied.
func texts(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		if k != lastApplied {
			out[k] = v
		}
	}
	return out
}

func textMap(m map[string]any) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = mesh.Text(v)
	}
	return out
}
