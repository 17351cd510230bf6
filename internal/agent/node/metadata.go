package node

import (
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

const (
	metaPrefix     = "ISTIO_META_"
	metaJSONPrefix = "ISTIO_METAJSON_"
	// lastApplied repeats the whole object; a node has no use for it and pays for it on
	// every stream.
	lastApplied = "kubectl.kubernetes.io/last-applied-configuration"
)

// booleanKeys are those of the metadata keys that control planes read as "true" or
// "false", strings both, whatever spelling the user chose. [agent B7]
var booleanKeys = map[string]bool{
	"HTTP10": true, "DNS_CAPTURE": true, "DNS_AUTO_ALLOCATE": true, "ENABLE_HBONE": true, "DISABLE_HBONE_SEND": true,
	"UNPRIVILEGED_POD": true, "ENABLE_SELF_DISCOVERY": true, "METADATA_DISCOVERY": true,
	"INBOUND_LISTENER_EXACT_BALANCE": true, "OUTBOUND_LISTENER_EXACT_BALANCE": true,
	"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": true, "ENVOY_SKIP_DEPRECATED_LOGS": true,
}

// describe makes the node's metadata: the environment's free keys first, what the agent
// knows over them. [agent B7, E3]
func (f *Facts) describe(in Input) error {
	m := map[string]any{
		"ISTIO_VERSION":                 ContractVersion,
		"METADATA_DISCOVERY":            "false",
		"ENVOY_SKIP_DEPRECATED_LOGS":    f.flagText("ENVOY_SKIP_DEPRECATED_LOGS", "true"),
		"WORKLOAD_IDENTITY_SOCKET_FILE": first(f.Env["WORKLOAD_IDENTITY_SOCKET_FILE"], "socket"),
	}
	if err := f.free(m); err != nil {
		return err
	}
	m["NAME"] = strings.TrimSuffix(f.ID.ID, "."+f.Identity.Namespace)
	m["NAMESPACE"] = f.Identity.Namespace
	m["SERVICE_ACCOUNT"] = f.Identity.ServiceAccount
	ips := make([]string, len(f.IPs))
	for i, ip := range f.IPs {
		ips[i] = ip.String()
	}
	m["INSTANCE_IPS"] = strings.Join(ips, ",")
	if len(f.Labels) > 0 {
		m["LABELS"] = texts(f.Labels)
	}
	if len(f.Annotations) > 0 {
		m["ANNOTATIONS"] = texts(f.Annotations)
	}
	if san := first(f.Env["ISTIOD_SAN"], host(f.Config.GetDiscoveryAddress())); san != "" {
		m["PILOT_SAN"] = []any{san}
	}
	if id := f.Config.GetMeshId(); id != "" && m["MESH_ID"] == nil {
		m["MESH_ID"] = id
	}
	if p := in.Flags.OutlierLogPath; p != "" {
		m["OUTLIER_LOG_PATH"] = p
	}
	if p := in.Flags.STSPort; p != 0 {
		m["STS_PORT"] = strconv.Itoa(p)
	}
	if f.Env["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"] != "" {
		m["EXIT_ON_ZERO_ACTIVE_CONNECTIONS"] = f.flagText("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "false")
	}
	if err := f.ports(m); err != nil {
		return err
	}
	config, err := configMap(f.Config)
	if err != nil {
		return err
	}
	m["PROXY_CONFIG"] = config
	f.Metadata = m
	return nil
}

// free takes over ISTIO_META_* (text) and ISTIO_METAJSON_* (JSON objects). Those two that
// carry the workload's own labels and annotations are laid over what the files said.
func (f *Facts) free(m map[string]any) error {
	names := make([]string, 0, len(f.Env))
	for name := range f.Env {
		names = append(names, name)
	}
	sort.Strings(names) // so that the last of two that collide is always the same
	for _, name := range names {
		if key, ok := strings.CutPrefix(name, metaPrefix); ok && key != "" {
			m[key] = f.Env[name]
			if booleanKeys[key] {
				m[key] = f.flagText(name, "false")
			}
			continue
		}
		key, ok := strings.CutPrefix(name, metaJSONPrefix)
		if !ok || f.Env[name] == "" {
			continue
		}
		var object map[string]any
		if err := json.Unmarshal([]byte(f.Env[name]), &object); err != nil {
			return fmt.Errorf("read environment %s: want a JSON object: %w", name, err)
		}
		switch key {
		case "LABELS":
			m["STATIC_LABELS"] = object
			f.Labels = overlay(f.Labels, textMap(object))
		case "ANNOTATIONS":
			f.Annotations = overlay(f.Annotations, textMap(object))
		default:
			for k, v := range object {
				m[k] = v
			}
		}
	}
	return nil
}

// ports puts the ports of the static listeners in, as numbers.
func (f *Facts) ports(m map[string]any) error {
	for _, p := range []struct {
		name string
		port int
	}{{"ENVOY_STATUS_PORT", mesh.HealthPort}, {"ENVOY_PROMETHEUS_PORT", mesh.PrometheusPort}} {
		n, err := Port(f.Env, p.name, p.port)
		if err != nil {
			return err
		}
		m[p.name] = float64(n)
	}
	return nil
}

// Port reads a TCP port (1–65535) from the environment; where the variable is not set it
// is the default.
func Port(env map[string]string, name string, otherwise int) (int, error) {
	v := env[name]
	if v == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("read environment %s: %q is no port", name, v)
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

// flagText reads a boolean variable and returns it as control planes want it.
func (f *Facts) flagText(name, otherwise string) string {
	v := first(f.Env[name], otherwise)
	return strconv.FormatBool(mesh.Truth(strings.ToLower(v)))
}

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

// unquote reads a quoted value; one without quotes is taken as it stands.
func unquote(s string) (string, error) {
	if !strings.HasPrefix(s, `"`) {
		return s, nil
	}
	return strconv.Unquote(s)
}
