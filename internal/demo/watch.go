package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// refresh is how often the live table is drawn.
const refresh = 250 * time.Millisecond

// synced is what /debug/syncz says of one proxy.
type synced struct {
	Proxy      string `json:"proxy"`
	Generation int64  `json:"generation"`
	Applied    int64  `json:"applied"`
	Types      map[string]struct {
		Nack string `json:"nack"`
	} `json:"types"`
}

// settled says whether the proxy has applied what it is meant to have. A proxy that
// reconnected with everything in place was sent nothing and is settled too.
func (s synced) settled() bool {
	return s.Generation > 0 && s.Applied >= s.Generation && s.refused() == ""
}

func (s synced) refused() string {
	for typ, t := range s.Types {
		if t.Nack != "" {
			return typ + ": " + t.Nack
		}
	}
	return ""
}

// syncz asks pilot-discovery who is connected and how far.
func (d *demo) syncz(ctx context.Context) (map[string]synced, error) {
	text, err := d.mesh.Get(ctx, d.mesh.Net.Host(), d.mesh.DiscoveryURL()+"/debug/syncz")
	if err != nil {
		return nil, err
	}
	var list []synced
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read /debug/syncz: %w", err)
	}
	out := map[string]synced{}
	for _, s := range list {
		out[s.Proxy] = s
	}
	return out, nil
}

// watch keeps the table up to date until ctx ends. Where the output is no terminal it has
// nothing to do.
func (d *demo) watch(ctx context.Context) {
	if d.o.Size == nil {
		return
	}
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.look(ctx)
			d.screen.draw(d.tables())
		}
	}
}

// followSize fits the table to the terminal as soon as that has another size, until ctx ends.
func (d *demo) followSize(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.o.Resized:
			d.screen.redraw()
		}
	}
}

// look asks how the proxies are. What cannot be asked just now (pilot-discovery or an
// Envoy is down: some acts mean it to be) shows as unknown.
func (d *demo) look(ctx context.Context) {
	known, _ := d.syncz(ctx)
	var all []proxyState
	for _, p := range d.mesh.Pods() {
		if !p.Spec.Sidecar() {
			continue
		}
		s, connected := known[p.Spec.Key()]
		ends, _ := p.CertificateEnds(ctx)
		all = append(all, proxyState{
			Name: p.Spec.Key(), Connected: connected, Ends: ends,
			Applied: s.Applied, Generation: s.Generation, Refused: s.refused(),
		})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.proxies = all
}

// awaitAllSettled waits until every sidecar is connected and has acknowledged everything.
func (d *demo) awaitAllSettled(ctx context.Context) error {
	return meshup.Await(ctx, 30*time.Second, "every proxy is in sync", func(ctx context.Context) error {
		known, err := d.syncz(ctx)
		if err != nil {
			return err
		}
		for _, p := range d.mesh.Pods() {
			if s, ok := known[p.Spec.Key()]; p.Spec.Sidecar() && (!ok || !s.settled()) {
				return fmt.Errorf("%s is not: %+v", p.Spec.Key(), s)
			}
		}
		return nil
	})
}
