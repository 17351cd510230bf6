package meshup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// CountFailures is for Options.ProxyConfig: it has Envoy count what Trouble looks at.
const CountFailures = `proxyStatsMatcher:
  inclusionSuffixes: [update_rejected, upstream_cx_connect_fail, ssl.connection_error, ssl.handshake]`

// troubleFilter matches the statistics that ought to stay zero: refused updates, whatever
// waits for more configuration, connections that could not be made, broken TLS.
const troubleFilter = `(update_rejected|warming|upstream_cx_connect_fail|ssl\.connection_error)`

// Trouble reads, from every Envoy, the statistics that ought to be zero and are not; the
// keys are "pod: statistic".
func (m *Mesh) Trouble(ctx context.Context) (map[string]int64, error) {
	out := map[string]int64{}
	for _, p := range m.Pods() {
		if !p.Spec.Sidecar() {
			continue
		}
		stats, err := p.Stats(ctx, url.QueryEscape(troubleFilter))
		if err != nil {
			return nil, err
		}
		for name, n := range stats {
			// The agent's own sockets come and go with the control plane.
			if n != 0 && !strings.HasPrefix(name, "cluster.xds-grpc.") && !strings.HasPrefix(name, "cluster.sds-grpc.") {
				out[p.Spec.Key()+": "+name] = n
			}
		}
	}
	return out, nil
}

// Worse compares two results of Trouble: nil if nothing grew and nothing is warming now.
func Worse(before, after map[string]int64) error {
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
