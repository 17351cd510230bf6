package discovery

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// bootstraps are what EnvoyFilters change in the bootstraps of the proxies whose agents ask (decision 69). It belongs to the loop's goroutine.
type bootstraps struct {
	compiler *compile.Compiler
	asked    map[string]compile.BootstrapKey // by stream
	byKey    map[compile.BootstrapKey]map[string]*xds.LatestBootstrap
}

func newBootstraps(c *compile.Compiler) *bootstraps {
	return &bootstraps{compiler: c, asked: map[string]compile.BootstrapKey{}, byKey: map[compile.BootstrapKey]map[string]*xds.LatestBootstrap{}}
}

// join returns where the bootstraps for a proxy appear.
func (b *bootstraps) join(id string, proxy model.ProxyKey) *xds.LatestBootstrap {
	key := compile.BootstrapKeyOf(proxy)
	now := b.compiler.Bootstraps().Want(key)
	latest := xds.NewLatestBootstrap(xds.NewBootstrap(now.Version, now.Body))
	b.asked[id] = key
	if b.byKey[key] == nil {
		b.byKey[key] = map[string]*xds.LatestBootstrap{}
	}
	b.byKey[key][id] = latest
	return latest
}

// leave forgets a stream, if it has asked.
func (b *bootstraps) leave(id string) {
	key, ok := b.asked[id]
	if !ok {
		return
	}
	delete(b.asked, id)
	if delete(b.byKey[key], id); len(b.byKey[key]) == 0 {
		delete(b.byKey, key)
	}
	b.compiler.Bootstraps().Unwant(key)
}

// update publishes the bootstraps that moved in the graph.
func (b *bootstraps) update(moved []incr.Moved) {
	for _, m := range moved {
		key, ok := m.Key.(compile.BootstrapKey)
		if !ok || len(b.byKey[key]) == 0 {
			continue
		}
		now, _ := b.compiler.Bootstraps().Value(key)
		next := xds.NewBootstrap(now.Version, now.Body)
		for _, latest := range b.byKey[key] {
			latest.Publish(next)
		}
	}
}

// effects adds what patches do to the bootstraps of the agents that ask.
func (b *bootstraps) effects(to map[patchID]*patchEffect) {
	for key := range b.byKey {
		now, _ := b.compiler.Bootstraps().Value(key)
		for _, r := range now.Results {
			id := patchID{r.Filter, r.Index}
			if to[id] == nil {
				to[id] = &patchEffect{}
			}
			to[id].add("bootstrap of "+key.Proxy.Name+"."+key.Proxy.Namespace, r)
		}
	}
}

// JoinBootstrap implements xds.Bootstraps.
func (l *loop) JoinBootstrap(ctx context.Context, n mesh.Node, who mesh.Identity, id string) (*xds.LatestBootstrap, func(), error) {
	if !l.gate.open.Load() {
		return nil, nil, status.Error(codes.Unavailable, *l.gate.why.Load()+"; try again")
	}
	key := model.KeyOf(n, who.ServiceAccount)
	var latest *xds.LatestBootstrap
	var claimed string
	asked := l.ask(func() {
		if claimed = l.claimed(key); claimed == "" {
			latest = l.bootstraps.join(id, key)
		}
	})
	switch {
	case ctx.Err() != nil && asked && claimed == "":
		l.signals.leave(id)
		return nil, nil, status.FromContextError(ctx.Err()).Err()
	case !asked:
		return nil, nil, status.Error(codes.Unavailable, "the control plane is ending, or makes no progress; try again")
	case claimed != "":
		return nil, nil, status.Errorf(codes.PermissionDenied, "node %s claims %s, but the caller is %s", n.ID, claimed, who)
	}
	return latest, func() { l.signals.leave(id) }, nil
}
