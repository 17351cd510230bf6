package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// refresh is how often the live table is drawn.
const refreshInterval = 250 * time.Millisecond

// synced is what is used of an entry of /debug/syncz.
type synced struct {
	Proxy      string `json:"proxy"`
	Generation int64  `json:"generation"`
	Applied    int64  `json:"applied"`
	Types      map[string]struct {
		Nack string `json:"nack"`
	} `json:"types"`
}

// inSync reports whether the proxy has applied the current generation. So has a proxy that
// reconnected and needed nothing.
func (s synced) inSync() bool {
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

// syncz gets the connected proxies and their state from every replica of pilot-discovery, by name.
func (d *demo) syncz(ctx context.Context) (map[string]synced, error) {
	out := map[string]synced{}
	replicas, err := d.mesh.Discovery(ctx)
	if err != nil {
		return nil, err
	}
	for _, replica := range replicas {
		text, err := meshup.Get(ctx, replica, "http://127.0.0.1:8080/debug/syncz")
		if err != nil {
			return nil, err
		}
		var list []synced
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, fmt.Errorf("read /debug/syncz: %w", err)
		}
		for _, s := range list {
			out[s.Proxy] = s
		}
	}
	return out, nil
}

// watch keeps the live table up to date until ctx ends. Without a terminal there is none.
func (d *demo) watch(ctx context.Context) {
	if d.o.Size == nil {
		return
	}
	tick := time.NewTicker(refreshInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.screen.draw(d.frame(d.readProxies(ctx)))
		}
	}
}

// followSize redraws the table when the size of the terminal has changed, until ctx ends.
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

// readProxies reads the state of the proxies. What cannot be read, since some scenarios stop
// pilot-discovery or an Envoy, is shown as unknown.
func (d *demo) readProxies(ctx context.Context) []proxyState {
	known, _ := d.syncz(ctx)
	return d.proxyStates(ctx, known)
}

// proxyStates are the rows of the table for what pilot-discovery says.
func (d *demo) proxyStates(ctx context.Context, known map[string]synced) []proxyState {
	var all []proxyState
	for _, p := range d.proxied() {
		s, connected := known[p.Name]
		ends, _ := p.CertificateEnds(ctx)
		all = append(all, proxyState{
			Name: p.Name, Connected: connected, Ends: ends,
			Applied: s.Applied, Generation: s.Generation, Refused: s.refused(),
		})
	}
	return all
}

// awaitInSync waits until every proxy is connected and has acknowledged everything, and returns what pilot-discovery said then.
func (d *demo) awaitInSync(ctx context.Context) (known map[string]synced, err error) {
	err = meshup.Await(ctx, 2*time.Minute, "every proxy is in sync", func(ctx context.Context) error {
		var err error
		known, err = d.syncz(ctx)
		if err != nil {
			return err
		}
		for _, p := range d.proxied() {
			if s, ok := known[p.Name]; !ok || !s.inSync() {
				return fmt.Errorf("%s is not: %+v", p.Name, s)
			}
		}
		return nil
	})
	return known, err
}
