package agent

import (
	"log/slog"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/lastgood"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/status"
	"github.com/pilothouse/pilothouse/internal/run"
)

// maxKept is the maximum size of a configuration that is kept, in bytes.
const maxKept = 64 << 20

// keptPart keeps Envoy's configuration.
type keptPart struct {
	store *lastgood.Store // nil if it is not kept
	tasks []run.Task
}

// newCopy prepares the copy of Envoy's configuration. Whatever is wrong with the folder is logged later, and costs the copy only.
func newCopy(s *spec.Spec, version string, log *slog.Logger) keptPart {
	c := s.Upstream.Copy
	if c == nil || s.Envoy.CustomBootstrap != "" || s.Envoy.Disabled {
		return keptPart{}
	}
	store := lastgood.New(lastgood.Options{
		Dir: copyDir(c), MaxAge: c.MaxAge, MaxSize: maxKept, Log: log.With("scope", "xdsproxy"),
		Binding: lastgood.Binding{
			Node: s.Node.ID.String(), Cluster: s.Node.Cluster, Identity: s.Node.Identity.SPIFFE(), Discovery: s.Upstream.Discovery, Version: version,
		},
	})
	return keptPart{store: store, tasks: []run.Task{{Name: "copy of the configuration", Run: store.Run}}}
}

// copyDir is the folder in which configuration is kept; empty for none.
func copyDir(c *spec.ConfigCopy) string {
	switch {
	case c == nil:
		return ""
	case c.Dir != "":
		return c.Dir
	case mounted(spec.DataDir):
		return spec.DataDir
	}
	return c.ConfigDir
}

// mounted reports whether a folder is the root of a volume.
func mounted(dir string) bool {
	var own, above syscall.Stat_t
	return syscall.Stat(dir, &own) == nil && syscall.Stat(filepath.Dir(dir), &above) == nil && own.Dev != above.Dev
}

// KeptReport is the copy of Envoy's configuration.
type KeptReport struct {
	Path string `json:"path"`
	// Confirmed is when discovery last confirmed it, if there is one.
	Confirmed time.Time `json:"confirmed,omitzero"`
	Bytes     int64     `json:"bytes"`
	Resources int       `json:"resources"`
	// Serving says that Envoy has its configuration from the copy, since discovery is away. Served counts how often that began.
	Serving bool   `json:"serving"`
	Served  uint64 `json:"served"`
	// Dropped counts resources of the copy that Envoy refused.
	Dropped uint64 `json:"dropped"`
	// Problem is why it cannot be written or read.
	Problem string `json:"problem,omitempty"`
}

func (k keptPart) report() *KeptReport {
	if k.store == nil {
		return nil
	}
	s := k.store.State()
	return &KeptReport{
		Path: s.Path, Confirmed: s.Confirmed, Bytes: s.Bytes, Resources: s.Resources, Serving: s.Streams > 0, Served: s.Served,
		Dropped: s.Dropped, Problem: s.Problem,
	}
}

// metrics adds the metrics of the copy.
func (k keptPart) metrics(page *status.Page, now time.Time) {
	if k.store == nil {
		return
	}
	s := k.store.State()
	if !s.Confirmed.IsZero() {
		page.Gauge("xds_copy_age_seconds", "The time since discovery last confirmed the copy of Envoy's configuration.", max(0, now.Sub(s.Confirmed).Seconds()))
		page.Gauge("xds_copy_bytes", "The size of the file with the copy of Envoy's configuration.", float64(s.Bytes))
	}
	page.Gauge("xds_copy_serving", "Whether Envoy has its configuration from the copy, since discovery is away.", status.BoolValue(s.Streams > 0))
	page.Counter("xds_copy_served_total", "How often Envoy got its configuration from the copy.", float64(s.Served))
	page.Counter("xds_copy_dropped_total", "Resources of the copy that Envoy refused.", float64(s.Dropped))
	page.Gauge("xds_copy_failing", "Whether the copy of Envoy's configuration cannot be written.", status.BoolValue(s.Problem != ""))
}
