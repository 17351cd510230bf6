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

const (
	metaPrefix     = "ISTIO_META_"
	metaJSONPrefix = "ISTIO_METAJSON_"
	// lastApplied repeats the whole object. Nothing uses it in a node, and it would be sent on
	// every stream.
	lastApplied = "kubectl.kubernetes.io/last-applied-configuration"
)

// booleanKeys are the metadata keys that control planes read as the strings "true" and
// "false", however the user spelled them. [agent B7]
var booleanKeys = map[string]bool{
	"HTTP10": true, "DNS_CAPTURE": true, "DNS_AUTO_ALLOCATE": true, "ENABLE_HBONE": true, "DISABLE_HBONE_SEND": true,
	"UNPRIVILEGED_POD": true, "ENABLE_SELF_DISCOVERY": true, "METADATA_DISCOVERY": true,
	"INBOUND_LISTENER_EXACT_BALANCE": true, "OUTBOUND_LISTENER_EXACT_BALANCE": true,
	"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": true, "ENVOY_SKIP_DEPRECATED_LOGS": true,
}

// metadata makes the node's metadata: the environment's free keys first, what the agent
// knows over them; then what depends on it. [agent B7, E3]
func (b *builder) metadata() error {
	n, config := &b.s.Node, b.s.Config
	m := map[string]any{
		"ISTIO_VERSION":                 ContractVersion,
		"METADATA_DISCOVERY":            "false",
		"ENVOY_SKIP_DEPRECATED_LOGS":    b.boolText("ENVOY_SKIP_DEPRECATED_LOGS", "true"),
		"WORKLOAD_IDENTITY_SOCKET_FILE": first(b.env["WORKLOAD_IDENTITY_SOCKET_FILE"], ownSocket),
	}
	if err := b.freeMetadata(m); err != nil {
		return err
	}
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
	if len(n.Annotations) > 0 {
		m["ANNOTATIONS"] = texts(n.Annotations)
	}
	if san := first(b.env["ISTIOD_SAN"], host(config.GetDiscoveryAddress())); san != "" {
		m["PILOT_SAN"] = []any{san}
	}
	if id := config.GetMeshId(); id != "" && m["MESH_ID"] == nil {
		m["MESH_ID"] = id
	}
	if p := b.in.Flags.OutlierLogPath; p != "" {
		m["OUTLIER_LOG_PATH"] = p
	}
	if p := b.in.Flags.STSPort; p != 0 {
		m["STS_PORT"] = strconv.Itoa(p)
	}
	if b.env["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"] != "" {
		m["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"] = b.boolText("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "false")
	}
	if err := b.ports(m); err != nil {
		return err
	}
	var err error
	if m["PROXY_CONFIG"], err = configMap(config); err != nil {
		return err
	}
	n.Metadata = m
	n.Cluster, n.Locality = b.serviceCluster(), b.locality()
	return nil
}

// freeMetadata takes over ISTIO_META_* (text) and ISTIO_METAJSON_* (JSON objects). The two of those that
// hold the workload's own labels and annotations go over the files'.
func (b *builder) freeMetadata(m map[string]any) error {
	n := &b.s.Node
	// Sorted, so that the last of two that collide is always the same.
	for _, name := range slices.Sorted(maps.Keys(b.env)) {
		if key, ok := strings.CutPrefix(name, metaPrefix); ok && key != "" {
			m[key] = b.env[name]
			if booleanKeys[key] {
				m[key] = b.boolText(name, "false")
			}
			continue
		}
		key, ok := strings.CutPrefix(name, metaJSONPrefix)
		if !ok || b.env[name] == "" {
			continue
		}
		var object map[string]any
		if err := json.Unmarshal([]byte(b.env[name]), &object); err != nil {
			return fmt.Errorf("environment %s: want a JSON object: %w", name, err)
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

// ports adds the ports of the static listeners, as numbers.
func (b *builder) ports(m map[string]any) error {
	for _, p := range []struct {
		name string
		port int
	}{{"ENVOY_STATUS_PORT", mesh.HealthPort}, {"ENVOY_PROMETHEUS_PORT", mesh.PrometheusPort}} {
		n, err := port(b.env, p.name, p.port)
		if err != nil {
			return err
		}
		m[p.name] = float64(n)
	}
	return nil
}

// port reads a TCP port (1–65535) from the environment.
func port(env map[string]string, name string, byDefault int) (int, error) {
	v := env[name]
	if v == "" {
		return byDefault, nil
	}
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("environment %s: invalid port %q: want 1–65535", name, v)
	}
	return int(n), nil
}

// host is an address without its port and brackets; empty where it has no port.
func host(address string) string {
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		return ""
	}
	return strings.Trim(address[:i], "[]")
}

// boolText reads a boolean variable and returns it as control planes want it.
func (b *builder) boolText(name, byDefault string) string {
	v := first(b.env[name], byDefault)
	return strconv.FormatBool(mesh.Truth(strings.ToLower(v)))
}

// texts is m as metadata.
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
