// Package sourcetest is the suite that every source of configuration passes.
//
// It says what the loop behind a source relies on: the first batch holds everything that
// there is, and Synced, once; a change carries a whole value; an equal value is no
// change; what cannot be decoded keeps its last good value and is listed in Problems
// until it is repaired; nothing is taken back that was not emitted. A source's own tests
// add what is special to it (files, watches, reconnects).
package sourcetest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Source is what is tested. Run emits batches from one goroutine until ctx ends, then
// returns nil.
type Source interface {
	Run(ctx context.Context, emit func(object.Batch)) error
}

// Harness is a fresh, empty place that a source reads from. Put, for one, writes a file
// or calls an API server.
type Harness struct {
	// Source makes a source of the place. It may be called again after the former
	// source has ended.
	Source func(t *testing.T) Source
	// Put stores an object, whole, given as one YAML document.
	Put func(t *testing.T, key object.Key, yaml string)
	// Delete ends an object.
	Delete func(t *testing.T, key object.Key)
}

// bound is how long anything may take before a test gives up.
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

// Run runs the suite; fresh makes a place for each of its tests.
func Run(t *testing.T, fresh func(t *testing.T) Harness) {
	for _, tt := range []struct {
		name string
		test func(t *testing.T, h Harness)
	}{
		{"an empty place syncs", empty},
		{"everything that is there comes in one batch", initial},
		{"add, update, delete", edits},
		{"an equal value is no change", equal},
		{"what does not decode keeps its last good value", spoiled},
		{"what never was good is a problem, and no more", neverGood},
		{"a second source says the same", twice},
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

// start runs a source and takes its first batch, which must be the synced one.
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
		t.Fatalf("the first batch is not the synced one: %+v", b)
	}
	return r
}

// next takes one batch and checks what holds for every batch.
func (r *recording) next(what string) object.Batch {
	r.t.Helper()
	select {
	case b := <-r.batches:
		r.take(b)
		return b
	case <-time.After(bound):
		r.t.Fatalf("%s: nothing was emitted", what)
	}
	panic("unreachable")
}

func (r *recording) take(b object.Batch) {
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
			r.t.Errorf("%s is taken back, but was never emitted", c.Key)
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

// until takes batches until cond holds.
func (r *recording) until(what string, cond func() bool) {
	r.t.Helper()
	for !cond() {
		r.next(what)
	}
}

// quiet puts an object that changes, and checks that nothing but it is emitted.
func (r *recording) quiet(h Harness, what string) {
	r.t.Helper()
	h.Put(r.t, other, otherGood)
	b := r.next(what)
	if len(b.Changes) != 1 || b.Changes[0].Key != other {
		r.t.Errorf("%s: emitted %+v, want only %s", what, b, other)
	}
}

// port is the first port of the suite's Service, 0 where there is none.
func (r *recording) port() uint32 {
	if o, ok := r.state[service]; ok {
		return o.Spec.(*object.ServiceSpec).Ports[0].Port
	}
	return 0
}

func (r *recording) names(key object.Key) bool {
	return slices.ContainsFunc(r.problems, func(p object.Problem) bool { return p.Key == key && p.Text != "" && p.Field != "" })
}
