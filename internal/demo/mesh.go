package demo

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// Mesh is a running mesh with the Pods of the bookshop, on which the scenarios act.
type Mesh interface {
	// Pods are the Pods of the sample.
	Pods() []Pod
	// Discovery finds the replicas of pilot-discovery that are ready, whose pages are on their loopback.
	Discovery(ctx context.Context) ([]meshup.Dialer, error)
	// Applied is told that a file of the configuration has been edited.
	Applied(ctx context.Context, file string) error
	// KillDiscovery ends pilot-discovery without a warning, so that it is not started again.
	KillDiscovery(ctx context.Context) error
	// StartDiscovery starts it again and waits until it is ready.
	StartDiscovery(ctx context.Context) error
	// Hints are lines for a person who wants to look into the mesh.
	Hints() []string
	// Close ends everything.
	Close() error
}

// Pod is a Pod of the mesh.
type Pod struct {
	meshup.Inspector
	// Workload is the name of the Pod in the sample, without a number: reviews-v1.
	Workload string
	// Proxied is whether it has a proxy: a sidecar, or that of a gateway.
	Proxied bool
	// IP is its address.
	IP netip.Addr
}

// Site is where and how a mesh is to be started.
type Site struct {
	// ConfigDir is the copy of the sample, which the scenarios edit.
	ConfigDir string
	// WorkDir is for state and logs, the latter in its folder log. It is removed after Close.
	WorkDir string
	// Line prints a line of progress.
	Line func(format string, args ...any)
	// Log gets what is started; nil: no log.
	Log *slog.Logger
}

// pod is the Pod of a workload.
func (d *demo) pod(workload string) (Pod, error) {
	for _, p := range d.mesh.Pods() {
		if p.Workload == workload {
			return p, nil
		}
	}
	return Pod{}, fmt.Errorf("%s has no Pod of %s", d.o.ConfigDir, workload)
}

// proxied are the Pods with a proxy.
func (d *demo) proxied() []Pod {
	var all []Pod
	for _, p := range d.mesh.Pods() {
		if p.Proxied {
			all = append(all, p)
		}
	}
	return all
}

// errorStats reads the statistics of errors of all Envoys.
func (d *demo) errorStats(ctx context.Context) (map[string]int64, error) {
	var all []meshup.Inspector
	for _, p := range d.proxied() {
		all = append(all, p.Inspector)
	}
	return meshup.ErrorStats(ctx, all)
}
