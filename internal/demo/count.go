package demo

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// hops are the Pods behind each step of a request's way; their apps' counts add up.
var hops = []struct {
	service string
	pods    []string
}{
	{"productpage", []string{"productpage-1.bookshop"}},
	{"reviews", []string{"reviews-v1-1.bookshop", "reviews-v2-1.bookshop"}},
	{"ratings", []string{"ratings-1.bookshop"}},
}

// served asks the apps of every hop how much they have answered.
func (d *demo) served(ctx context.Context) ([]int64, error) {
	out := make([]int64, len(hops))
	for i, h := range hops {
		for _, pod := range h.pods {
			n, err := d.mesh.Pod(pod).Served(ctx)
			if err != nil {
				return nil, err
			}
			out[i] += n
		}
	}
	return out, nil
}

// counted plays fn, in which only the load may make requests, and checks that every
// request that was sent was served once at every hop, no more and no less, and that no
// Envoy counted anything that it ought not to.
func (d *demo) counted(ctx context.Context, fn func() error) error {
	before, err := d.served(ctx)
	if err != nil {
		return err
	}
	sent := d.load.sent()
	if err := d.untroubled(ctx, fn); err != nil {
		return err
	}
	after, err := d.served(ctx)
	if err != nil {
		return err
	}
	sent = d.load.sent() - sent
	d.hold(fmt.Sprintf("each of the %d requests was served once at every hop", sent), everyHop(int64(sent), before, after))
	return nil
}

// settling is how long an Envoy may take over an update.
const settling = 5 * time.Second

// untroubled plays fn and checks what the Envoys counted meanwhile.
func (d *demo) untroubled(ctx context.Context, fn func() error) error {
	before, err := d.mesh.Trouble(ctx)
	if err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	// Other Envoys than the one that was looked at may be taking an edit just now: what
	// warms has a moment. What was counted stays so, and fails after it.
	err = meshup.Await(ctx, settling, "every Envoy is well", func(ctx context.Context) error {
		after, err := d.mesh.Trouble(ctx)
		if err != nil {
			return err
		}
		return meshup.Worse(before, after)
	})
	d.hold("no Envoy refused an update, is still warming, or missed a connection", err)
	return nil
}

// updates counts how often the Envoys took clusters or listeners.
func (d *demo) updates(ctx context.Context) (int64, error) {
	var all int64
	for _, p := range d.mesh.Pods() {
		if !p.Spec.Sidecar() {
			continue
		}
		stats, err := p.Stats(ctx, url.QueryEscape(`^(cluster_manager\.cds|listener_manager\.lds)\.update_success$`))
		if err != nil {
			return 0, err
		}
		if len(stats) == 0 {
			return 0, fmt.Errorf("count the updates of %s: its Envoy counts none", p.Spec.Key())
		}
		for _, n := range stats {
			all += n
		}
	}
	return all, nil
}

func everyHop(sent int64, before, after []int64) error {
	for i, h := range hops {
		if n := after[i] - before[i]; n != sent {
			return fmt.Errorf("%s served %d of %d", h.service, n, sent)
		}
	}
	return nil
}
