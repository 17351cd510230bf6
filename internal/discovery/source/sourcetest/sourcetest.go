// Package sourcetest is the conformance suite for sources of configuration.
//
// It tests what the control plane relies on: the first batch has everything that exists,
// and only that one is Synced; a change has a complete object; an object that is written
// again with an equal value is not a change; an object that cannot be decoded keeps its
// last good value and is listed in Problems until it is repaired; only objects that were
// emitted are removed. Sources test files, watches and reconnects themselves.
package sourcetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Source is the source under test. Run calls emit from one goroutine until ctx ends, and then
// returns nil.
type Source interface {
	Run(ctx context.Context, emit func(object.Batch)) error
}

// Harness is a new and empty store, such as a directory or an API server, that a source reads.
type Harness struct {
	// Source creates a source. It may be called again after the previous source has ended.
	Source func(t *testing.T) Source
	// Put creates or replaces an object, given as one YAML document.
	Put func(t *testing.T, key object.Key, yaml string)
	// Delete deletes an object.
	Delete func(t *testing.T, key object.Key)
}

// bound is how long a test waits for a batch before it fails.
const bound = 30 * time.Second

// The objects of the suite.
var (
	service = object.Key{Kind: object.Service, Namespace: "shop", Name: "a"}
	route   = object.Key{Kind: object.VirtualService, Namespace: "shop", Name: "a"}
	other   = object.Key{Kind: object.Namespace, Name: "other"}
)

const (
	service80  = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {ports: [{name: http, port: 80}]}\n"
	service81  = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {ports: [{name: http, port: 81}]}\n"
	routeGood  = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: shop}\nspec: {hosts: [a], http: [{route: [{destination: {host: a}}]}]}\n"
	routeTimed = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: shop}\nspec: {hosts: [a], http: [{timeout: 5s, route: [{destination: {host: a}}]}]}\n"
	routeBad   = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, namespace: shop}\nspec: {hosts: [a], http: [{timeout: soon}]}\n"
	otherGood  = "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n"
)

// Run runs the suite; fresh returns a new Harness for each of its tests.
func Run(t *testing.T, fresh func(t *testing.T) Harness) {
	for _, tt := range []struct {
		name string
		test func(t *testing.T, h Harness)
	}{
		{"empty", empty},
		{"first batch", initial},
		{"add, update, delete", edits},
		{"equal value", equal},
		{"last good value", lastGoodValue},
		{"never valid", neverValid},
		{"second source", twice},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, fresh(t)) })
	}
}

// recording is a running source and what it has emitted.
type recording struct {
	t        *testing.T
	batches  chan object.Batch
	stop     func()
	state    map[object.Key]object.Object
	problems []object.Problem
	syncs    int
}

// start runs a source and receives its first batch, which must be Synced.
func start(t *testing.T, h Harness) *recording {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &recording{t: t, batches: make(chan object.Batch, 1000), state: map[object.Key]object.Object{}}
	src := h.Source(t)
	done := make(chan error, 1)
	go func() { done <- src.Run(ctx, func(b object.Batch) { r.batches <- b }) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run returned %v at the end of its context, want nil", err)
			}
		case <-time.After(bound):
			t.Error("Run does not return at the end of its context")
		}
	}
	t.Cleanup(r.stop)
	if b := r.next("the first batch"); !b.Synced {
		t.Fatalf("the first batch is not Synced: %+v", b)
	}
	return r
}

// next receives one batch and checks what applies to every batch.
func (r *recording) next(what string) object.Batch {
	r.t.Helper()
	select {
	case b := <-r.batches:
		r.apply(b)
		return b
	case <-time.After(bound):
		r.t.Fatalf("%s: nothing was emitted", what)
	}
	panic("unreachable")
}

func (r *recording) apply(b object.Batch) {
	r.t.Helper()
	if len(b.Changes) == 0 && b.Problems == nil && !b.Synced {
		r.t.Error("an empty batch was emitted")
	}
	if b.Synced {
		r.syncs++
	}
	if r.syncs != 1 {
		r.t.Errorf("Synced %d times", r.syncs)
	}
	for _, c := range b.Changes {
		_, known := r.state[c.Key]
		switch {
		case c.Object == nil && !known:
			r.t.Errorf("%s is removed, but was not emitted", c.Key)
		case c.Object == nil:
			delete(r.state, c.Key)
		case c.Object.Key != c.Key:
			r.t.Errorf("a change of %s carries %s", c.Key, c.Object.Key)
		default:
			r.state[c.Key] = *c.Object
		}
	}
	if b.Problems != nil {
		r.problems = b.Problems
	}
}

// until receives batches until cond returns true.
func (r *recording) until(what string, cond func() bool) {
	r.t.Helper()
	for !cond() {
		r.next(what)
	}
}

// nothingElse puts an object that changes, and checks that only that is emitted.
func (r *recording) nothingElse(h Harness, what string) {
	r.t.Helper()
	h.Put(r.t, other, otherGood)
	b := r.next(what)
	if len(b.Changes) != 1 || b.Changes[0].Key != other {
		r.t.Errorf("%s: emitted %+v, want only %s", what, b, other)
	}
}

// port returns the first port of the suite's Service, or 0 if there is no Service.
func (r *recording) port() uint32 {
	if o, ok := r.state[service]; ok {
		return o.Spec.(*object.ServiceSpec).Ports[0].Port
	}
	return 0
}

// hasProblem reports whether a problem with a field and a text is listed for key.
func (r *recording) hasProblem(key object.Key) bool {
	return slices.ContainsFunc(r.problems, func(p object.Problem) bool { return p.Key == key && p.Text != "" && p.Field != "" })
}
