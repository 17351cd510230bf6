package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// scrape is where the application has its metrics, for the agent, which adds them to the proxy's. [agent M2]
type scrape struct {
	Scrape  string         `json:"scrape"`
	Path    string         `json:"path"`
	Port    string         `json:"port"`
	Targets []scrapeTarget `json:"targets,omitempty"`
}

type scrapeTarget struct {
	Port string `json:"port"`
	Path string `json:"path"`
}

// proxyPorts are the ports of a Pod that are the proxy's own, with what is there.
var proxyPorts = map[string]string{
	strconv.Itoa(mesh.AdminPort):      "Envoy's administration",
	strconv.Itoa(mesh.OutboundPort):   "captured outbound traffic",
	strconv.Itoa(mesh.InboundPort):    "captured inbound traffic",
	"15004":                           "debugging",
	"15008":                           "the tunnel",
	strconv.Itoa(mesh.DNSPort):        "captured DNS",
	strconv.Itoa(mesh.StatusPort):     "the merged metrics",
	strconv.Itoa(mesh.HealthPort):     "health",
	strconv.Itoa(mesh.PrometheusPort): "Envoy's metrics, which are merged already",
}

// prometheusField returns which annotation of Prometheus a name is: scrape, port or path. Prometheus
// replaces what is not a letter or a digit by an underscore, so that several names mean the same.
func prometheusField(name string) string {
	name = strings.NewReplacer(".", "_", "/", "_", "-", "_").Replace(name)
	field, ok := strings.CutPrefix(name, "prometheus_io_")
	if ok && slices.Contains([]string{"scrape", "port", "path"}, field) {
		return field
	}
	return ""
}

// mergePrometheus lets Prometheus scrape the agent, which scrapes the application. [control-plane 1.15.8]
func (in *injection) mergePrometheus(proxy *corev1.Container, late *lateEnv) error {
	fields := map[string]string{}
	for k, v := range in.pod.Annotations {
		if f := prometheusField(k); f != "" {
			fields[f] = v
		}
	}
	target := strconv.Itoa(int(in.c.mesh.GetDefaultConfig().GetStatusPort()))
	before := in.status != nil && fields["port"] == target // what an earlier injection wrote
	enabled := true
	if m := in.c.mesh.GetEnablePrometheusMerge(); m != nil {
		enabled = m.GetValue()
	}
	if v, err := strconv.ParseBool(in.pod.Annotations[annotationMerge]); err == nil {
		enabled = v
	}
	if v, err := strconv.ParseBool(fields["scrape"]); !enabled || err == nil && !v {
		return nil
	}
	if before {
		if proxy != nil {
			late.prometheus = envValue(proxy, envPrometheus)
		}
	} else {
		s := scrape{Scrape: fields["scrape"], Path: fields["path"], Port: fields["port"]}
		var err error
		if s.Targets, err = scrapeTargets(in.pod.Annotations[annotationTargets]); err != nil {
			return fmt.Errorf("invalid value '%s' for annotation '%s': %w", clip(in.pod.Annotations[annotationTargets]), annotationTargets, err)
		}
		if what := proxyPorts[s.Port]; what != "" && s.Port != target {
			return fmt.Errorf("invalid prometheus scrape configuration: invalid value '%s' for annotation 'prometheus.io/port': the port is reserved for %s, and cannot be scraped", s.Port, what)
		}
		if s.Port == target { // as if nothing was set: the agent's own metrics are merged anyway
			s = scrape{Targets: s.Targets}
		}
		if proxy != nil && (s.Scrape != "" || s.Path != "" || s.Port != "" || len(s.Targets) > 0) {
			text, err := json.Marshal(s)
			if err != nil {
				return fmt.Errorf("encode the annotations of Prometheus: %w", err)
			}
			late.prometheus = string(text)
		}
	}
	for k := range in.pod.Annotations {
		if prometheusField(k) != "" {
			delete(in.pod.Annotations, k)
		}
	}
	in.pod.Annotations["prometheus.io/scrape"] = "true"
	in.pod.Annotations["prometheus.io/port"] = target
	in.pod.Annotations["prometheus.io/path"] = "/stats/prometheus"
	return nil
}

// scrapeTargets parses PORT[:PATH],PORT[:PATH]. [agent M3]
func scrapeTargets(text string) ([]scrapeTarget, error) {
	var out []scrapeTarget
	for _, part := range mesh.List(text) {
		port, path, _ := strings.Cut(part, ":")
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("invalid port %q: want 1–65535", clip(port))
		}
		if what := proxyPorts[port]; what != "" {
			return nil, fmt.Errorf("port %s is reserved for %s", port, what)
		}
		if path != "" && path[0] != '/' {
			return nil, fmt.Errorf("invalid path %q: want a path that begins with a slash", clip(path))
		}
		out = append(out, scrapeTarget{Port: port, Path: path})
	}
	return out, nil
}
