package compile_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/incr"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// After random histories, the statuses of the Gateway API that are kept up to date, and the Secrets that Gateways may use, are those that a
// fresh model gives.
func TestStatusesOfTheGatewayAPIAreThoseFromScratch(t *testing.T) {
	type rules struct {
		status     *incr.Rule[object.Key, *object.GatewayStatus]
		references *incr.Rule[struct{}, map[credentials.Reference]bool]
	}
	derive := func(w *world) rules {
		return rules{
			incr.Derive(w.graph, model.LevelCompile, "statuses", w.model.GatewayStatus),
			incr.Derive(w.graph, model.LevelCompile, "references", func(r *incr.Reader, _ struct{}) map[credentials.Reference]bool {
				return w.model.CertificateReferences(r)
			}),
		}
	}
	said, referred, second := 0, 0, wait.Seed(t, 7)
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, second))
		data := make([]byte, 8000)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		h, w, d := newHistory(t), newWorld(), &dice{data: data}
		kept := derive(w)
		kept.references.Want(struct{}{})
		wanted := map[object.Key]bool{}
		for step := 0; len(d.data) > 0 && step < 400; step++ {
			c := d.change()
			h.note(c)
			w.model.Apply([]object.Change{c})
			w.graph.Run()
			if !wanted[c.Key] {
				wanted[c.Key] = true
				kept.status.Want(c.Key)
			}
			if step%20 != 19 {
				continue
			}
			f := newWorld()
			scratch := derive(f)
			h.fill(f)
			for k := range wanted {
				got, _ := kept.status.Value(k)
				want := scratch.status.Want(k)
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("step %d: the status of %s is\n%+v, from scratch\n%+v", step, k, got, want)
				}
				if want != nil {
					said++
				}
			}
			got, _ := kept.references.Value(struct{}{})
			want := scratch.references.Want(struct{}{})
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("step %d: the references are %v, from scratch %v", step, got, want)
			}
			referred += len(want)
		}
	}
	if said < 20 || referred < 3 {
		t.Errorf("%d statuses and %d references were compared: too few", said, referred)
	}
}
