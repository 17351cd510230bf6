package demo

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// hop is a service on the way of a request.
type hop struct {
	service string
	// workloads are those of its Pods.
	workloads []string
}

// shopHops are those of a request to productpage.
var shopHops = []hop{
	{"productpage", []string{"productpage"}},
	{"reviews", []string{"reviews-v1", "reviews-v2"}},
	{"ratings", []string{"ratings"}},
}

// served returns how many requests the apps of each hop have answered.
func (d *demo) served(ctx context.Context, hops []hop) ([]int64, error) {
	out := make([]int64, len(hops))
	for i, h := range hops {
		for _, workload := range h.workloads {
			p, err := d.pod(workload)
			if err != nil {
				return nil, err
			}
			n, err := p.Served(ctx)
			if err != nil {
				return nil, err
			}
			out[i] += n
		}
	}
	return out, nil
}

// counted runs fn, in which only the load may make requests, to productpage. It checks that each request that was
// sent was served exactly once at every hop, and what withoutErrors checks.
func (d *demo) counted(ctx context.Context, fn func() error) error {
	return d.countedAt(ctx, shopHops, fn)
}

// countedAt is counted for requests on another way.
func (d *demo) countedAt(ctx context.Context, hops []hop, fn func() error) error {
	before, err := d.served(ctx, hops)
	if err != nil {
		return err
	}
	sent := d.load.sent()
	if err := d.withoutErrors(ctx, fn); err != nil {
		return err
	}
	after, err := d.served(ctx, hops)
	if err != nil {
		return err
	}
	sent = d.load.sent() - sent
	d.check(fmt.Sprintf("each of the %d requests was served once at every hop", sent), everyHop(hops, int64(sent), before, after))
	return nil
}

// updateBound bounds the time that an Envoy needs for an update.
const updateBound = 5 * time.Second

// withoutErrors runs fn and checks that no Envoy counted an error.
func (d *demo) withoutErrors(ctx context.Context, fn func() error) error {
	before, err := d.errorStats(ctx)
	if err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	// An Envoy may still be applying an edit, so that clusters are warming. Errors stay counted, and fail
	// the check when the time is over.
	err = meshup.Await(ctx, updateBound, "no Envoy has errors or is warming", func(ctx context.Context) error {
		after, err := d.errorStats(ctx)
		if err != nil {
			return err
		}
		return meshup.CompareErrorStats(before, after)
	})
	d.check("no Envoy rejected an update, is still warming, or could not connect", err)
	return nil
}

// updates counts the updates of clusters and listeners of all Envoys.
func (d *demo) updates(ctx context.Context) (int64, error) {
	var all int64
	for _, p := range d.proxied() {
		stats, err := p.Stats(ctx, url.QueryEscape(`^(cluster_manager\.cds|listener_manager\.lds)\.update_success$`))
		if err != nil {
			return 0, err
		}
		if len(stats) == 0 {
			return 0, fmt.Errorf("count the updates of %s: its Envoy counts none", p.Name)
		}
		for _, n := range stats {
			all += n
		}
	}
	return all, nil
}

func everyHop(hops []hop, sent int64, before, after []int64) error {
	for i, h := range hops {
		if n := after[i] - before[i]; n != sent {
			return fmt.Errorf("%s served %d of %d", h.service, n, sent)
		}
	}
	return nil
}
