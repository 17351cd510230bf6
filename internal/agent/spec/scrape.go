package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Target is where the application has metrics, on this host. [agent E30, M2, M3]
type Target struct {
	Port int
	// Path is the path and the query; it begins with a slash.
	Path string
}

const scrapeVariable = "ISTIO_PROMETHEUS_ANNOTATIONS"

// scrapeJSON are the annotations of Prometheus, as injection writes them.
type scrapeJSON struct {
	Scrape  string       `json:"scrape"`
	Path    string       `json:"path"`
	Port    string       `json:"port"`
	Targets []targetJSON `json:"targets"`
}

type targetJSON struct {
	Port string `json:"port"`
	Path string `json:"path"`
}

// maxTargets is how many ports of an application are scraped.
const maxTargets = 32

// targets reads where the application's metrics are. A router has no application.
func (b *builder) targets(statusPort int) []Target {
	text := b.set.Text(scrapeVariable)
	if text == "" || b.in.Role != mesh.Sidecar {
		return nil
	}
	out, err := b.parseTargets(text, statusPort)
	if err != nil {
		b.set.Fail(scrapeVariable, "%w", err)
	}
	return out
}

func (b *builder) parseTargets(text string, statusPort int) ([]Target, error) {
	var in scrapeJSON
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, fmt.Errorf("parse JSON: %w: want an object with scrape, path, port and targets, as injection writes it", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("parse JSON: there is text after the object: want one object with scrape, path, port and targets")
	}
	if in.Scrape == "false" {
		return nil, nil
	}
	named := in.Targets
	if len(named) == 0 {
		named = []targetJSON{{Port: in.Port, Path: in.Path}}
	}
	if len(named) > maxTargets {
		return nil, fmt.Errorf("key targets: %d targets: want at most %d", len(named), maxTargets)
	}
	own := []int{
		statusPort, b.set.Int("ENVOY_STATUS_PORT"), b.set.Int("ENVOY_PROMETHEUS_PORT"), b.set.Int("ENVOY_SECURE_METRICS_PORT"), b.set.Int("ENVOY_SECURE_MERGED_METRICS_PORT"),
	}
	var out []Target
	for _, t := range named {
		if t.Port == "" {
			t.Port = "80"
		}
		port, err := strconv.ParseUint(t.Port, 10, 16)
		switch {
		case err != nil || port == 0:
			return nil, fmt.Errorf("key port: invalid port %s: want 1–65535", printable.Quote(t.Port, 100))
		case mesh.IsProxyPort(uint32(port)) || slices.Contains(own, int(port)):
			return nil, fmt.Errorf("key port: port %d is the proxy's own, and would be scraped in a loop or twice: want the application's; remove the annotation prometheus.io/port: %[1]d of the Pod", port)
		}
		if t.Path == "" {
			t.Path = "/metrics"
		}
		path, err := httpTarget(t.Path)
		if err != nil {
			return nil, fmt.Errorf("key path: %w", err)
		}
		if target := (Target{Port: int(port), Path: path}); !slices.Contains(out, target) {
			out = append(out, target)
		}
	}
	return out, nil
}
