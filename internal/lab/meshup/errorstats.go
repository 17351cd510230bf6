package meshup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// CountFailures is for Options.ProxyConfig: with it Envoy has the statistics that ErrorStats reads.
const CountFailures = `proxyStatsMatcher:
  inclusionSuffixes: [update_rejected, upstream_cx_connect_fail, ssl.connection_error, ssl.handshake]`

// errorFilter matches statistics that are zero in a healthy mesh: rejected updates, warming resources,
// failed connections, TLS errors.
const errorFilter = `(update_rejected|warming|upstream_cx_connect_fail|ssl\.connection_error)`

// ErrorStats reads from every Envoy the statistics of errors that are not zero. The keys are
// "pod: statistic".
func (m *Mesh) ErrorStats(ctx context.Context) (map[string]int64, error) {
	var all []Inspector
	for _, p := range m.Pods() {
		if p.Spec.Proxied() {
			all = append(all, p.Inspector)
		}
	}
	return ErrorStats(ctx, all)
}

// ErrorStats reads from the Envoys of Pods the statistics of errors that are not zero. The keys are
// "pod: statistic".
func ErrorStats(ctx context.Context, pods []Inspector) (map[string]int64, error) {
	out := map[string]int64{}
	for _, p := range pods {
		stats, err := p.Stats(ctx, url.QueryEscape(errorFilter))
		if err != nil {
			return nil, err
		}
		for name, n := range stats {
			// The agent's own sockets come and go with the control plane.
			if n != 0 && !strings.HasPrefix(name, "cluster."+mesh.XDSCluster+".") && !strings.HasPrefix(name, "cluster."+mesh.SDSCluster+".") {
				out[p.Name+": "+name] = n
			}
		}
	}
	return out, nil
}

// CompareErrorStats returns an error if a statistic has grown between two results of ErrorStats, or if anything
// is warming.
func CompareErrorStats(before, after map[string]int64) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(after)) {
		switch {
		case strings.Contains(name, "warming"):
			errs = append(errs, fmt.Errorf("%s is %d", name, after[name]))
		case after[name] > before[name]:
			errs = append(errs, fmt.Errorf("%s went from %d to %d", name, before[name], after[name]))
		}
	}
	return errors.Join(errs...)
}
