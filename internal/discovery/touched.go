package discovery

import (
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// hasStatus reports whether statuses of objects of a kind are written: of Istio's kinds, of the Gateway API's, and of Ingresses.
func hasStatus(k object.Kind) bool { return decode.NewSpec(k) != nil || hasGatewayStatus(k) }

// hasGatewayStatus reports whether a kind is one of the Gateway API that has a status, or Ingress, whose status depends on other objects as theirs do.
func hasGatewayStatus(k object.Kind) bool {
	switch k {
	case object.GatewayClass, object.KubernetesGateway, object.ListenerSet, object.HTTPRoute, object.GRPCRoute, object.TLSRoute, object.TCPRoute, object.UDPRoute, object.BackendTLSPolicy, object.Ingress:
		return true
	}
	return false
}

// touched are the objects whose statuses may have to say something else, so that nobody has to look at all objects. It
// belongs to the loop's goroutine. Nil notes nothing.
type touched struct {
	keys map[object.Key]bool
	// refusals is set if proxies may refuse something else than before, members if proxies have come or gone or have another class.
	refusals, members bool
	// refused are the objects to which refusals were traced last.
	refused map[object.Key]bool
	// wake has an element if something was noted.
	wake chan struct{}
}

func newTouched() *touched {
	return &touched{keys: map[object.Key]bool{}, wake: make(chan struct{}, 1)}
}

// object notes that an object has changed, or what is wrong with it.
func (t *touched) object(k object.Key) {
	if t != nil && hasStatus(k.Kind) {
		t.keys[k] = true
		t.signal()
	}
}

// problems notes the objects that problems are about.
func (t *touched) problems(list []object.Problem) {
	if t == nil {
		return
	}
	for i := range list {
		t.object(list[i].Key)
	}
}

// refuse notes that proxies may refuse something else.
func (t *touched) refuse() {
	if t != nil {
		t.refusals = true
		t.signal()
	}
}

// move notes that proxies have come or gone, or have another class.
func (t *touched) move() {
	if t != nil {
		t.members = true
		t.signal()
	}
}

func (t *touched) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// take returns the objects that were noted since the last call, and whether proxies have moved. refusals are those
// of each object now; they are asked for only if they may differ.
func (t *touched) take(refusals func() map[object.Key]bool) (keys []object.Key, moved bool) {
	if t.refusals {
		now := refusals()
		for _, m := range []map[object.Key]bool{t.refused, now} {
			for k := range m {
				if hasStatus(k.Kind) {
					t.keys[k] = true
				}
			}
		}
		t.refused = now
	}
	for k := range t.keys {
		keys = append(keys, k)
	}
	moved = t.members
	clear(t.keys)
	t.refusals, t.members = false, false
	return keys, moved
}
