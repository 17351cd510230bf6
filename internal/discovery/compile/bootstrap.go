package compile

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/patch"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
)

// Bootstrap is what EnvoyFilters change in the bootstrap that an agent builds (decision 69). It is immutable.
type Bootstrap struct {
	// Version identifies the contents.
	Version string
	// Body is the encoded envoy.config.bootstrap.v3.Bootstrap with the differences; empty if there are none.
	Body []byte
	// Results say what became of the patches, in their order.
	Results []PatchResult
}

// BootstrapKey is the key of the rule of bootstraps.
type BootstrapKey struct{ Proxy model.ProxyKey }

// BootstrapKeyOf returns the key for a proxy. What only Envoy knows does not count, since agents ask before its start.
func BootstrapKeyOf(k model.ProxyKey) BootstrapKey {
	k.Caps = 0
	return BootstrapKey{k}
}

// Bootstraps returns the rule that computes them. Proxies that the same patches are for have the same.
func (c *Compiler) Bootstraps() *incr.Rule[BootstrapKey, *Bootstrap] { return c.bootstraps }

// bootstrapFor returns the bootstrap of a proxy.
func (c *Compiler) bootstrapFor(r *incr.Reader, k BootstrapKey) *Bootstrap {
	return c.inner.bootstrapOf.Of(r, c.model.BootstrapPatching(r, k.Proxy))
}

// mergeBootstrap merges the patches that a text names.
func (c *Compiler) mergeBootstrap(r *incr.Reader, patchings string) *Bootstrap {
	var found []sourced
	for _, s := range c.filtersOf(r, patchings) {
		for _, p := range c.inner.parsedPatches.Of(r, s.Key) {
			if s.Has(p.Index) {
				found = append(found, sourced{s.Key, p})
			}
		}
	}
	patches := make([]*patch.Patch, len(found))
	for i, p := range found {
		patches[i] = p.Patch
	}
	merged, results := patch.Bootstrap(patches)
	b := &Bootstrap{Body: marshal.Must(merged)}
	sum := sha256.Sum256(b.Body)
	b.Version = hex.EncodeToString(sum[:8])
	for i, res := range results {
		b.Results = append(b.Results, PatchResult{Filter: found[i].Filter, Index: found[i].Patch.Index, Result: res})
	}
	return b
}

// filtersOf returns the EnvoyFilters that a text names and that exist, in the order in which they are applied.
func (c *Compiler) filtersOf(r *incr.Reader, patchings string) (out []model.Patching) {
	var filters []*model.EnvoyFilter
	of := map[*model.EnvoyFilter]model.Patching{}
	for _, p := range model.Patchings(patchings) {
		if f, ok := c.model.EnvoyFilter(r, p.Key); ok {
			filters, of[f] = append(filters, f), p
		}
	}
	slices.SortFunc(filters, func(a, b *model.EnvoyFilter) int { return c.model.ComparePatches(r, a, b) })
	for _, f := range filters {
		out = append(out, of[f])
	}
	return out
}
