package compile_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/envoytest"
	"github.com/pilothouse/pilothouse/test/wait"
)

// TestEnvoyAcceptsRandomMeshes compiles meshes of random objects, those that
// validation lets through, and asks a real Envoy about everything that each proxy would
// be sent. It finds what no golden thought of: two chains that match the same, a domain
// given twice, two listeners at one address.
func TestEnvoyAcceptsRandomMeshes(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, wait.Seed(t, 11)))
			data := make([]byte, 4000)
			for i := range data {
				data[i] = byte(r.Uint32())
			}
			w, d, store := newWorld(), &dice{data: data}, config.NewStore()
			for range 80 {
				w.model.Apply(store.Apply([]object.Change{d.change()}))
			}
			w.graph.Run()
			for _, n := range newHistory(t).proxies {
				if n.Metadata.Generator != "" {
					continue // no Envoy
				}
				b := envoytest.Bootstrap()
				all := w.bytes(w.join(n))
				for _, k := range sortedKeys(all) {
					if all[k] != nil { // a virtual host without routes for this client is not sent
						add(b, message(t, k.Kind, all[k]))
					}
				}
				envoytest.Validate(t, b)
			}
		})
	}
}
