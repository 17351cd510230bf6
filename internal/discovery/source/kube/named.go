package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/object"
)

// maxNamed is how many ConfigMaps are read that policies and Gateways name: each is a request every 8 seconds, on average.
const maxNamed = 200

// rereadNamed is how often each is read, on average.
const rereadNamed = 8 * time.Second

// named are the ConfigMaps with certificates of CAs that BackendTLSPolicies and Gateways name. Only these are read, since a cluster may have many large ones.
// An object is emitted once its ConfigMaps have been read, so that it is never in force without them for a moment.
type named struct {
	of    map[object.Key]*namedMap
	stale bool // what names them has changed
}

// namedMap is how reading one of them goes.
type namedMap struct {
	read bool // it is known whether it exists
	health
}

// mapsOf returns the ConfigMaps that a policy or a Gateway names; none for other objects.
func mapsOf(o *object.Object) (out []object.Key) {
	if o == nil || !names(o.Kind) {
		return nil
	}
	add := func(group gatewayv1.Group, kind gatewayv1.Kind, name gatewayv1.ObjectName, namespace string) {
		if group == "" && kind == "ConfigMap" && name != "" {
			out = append(out, object.Key{Kind: object.ConfigMap, Namespace: namespace, Name: string(name)})
		}
	}
	switch spec := o.Spec.(type) {
	case *gatewayv1.BackendTLSPolicySpec:
		for _, ref := range spec.Validation.CACertificateRefs {
			add(ref.Group, ref.Kind, ref.Name, o.Namespace)
		}
	case *gatewayv1.GatewaySpec:
		for _, v := range validations(spec) {
			for _, ref := range v.CACertificateRefs {
				namespace := o.Namespace
				if ref.Namespace != nil && *ref.Namespace != "" {
					namespace = string(*ref.Namespace)
				}
				add(ref.Group, ref.Kind, ref.Name, namespace)
			}
		}
	}
	return out
}

// validations returns how a Gateway verifies the certificates of clients.
func validations(spec *gatewayv1.GatewaySpec) (out []*gatewayv1.FrontendTLSValidation) {
	if spec == nil || spec.TLS == nil || spec.TLS.Frontend == nil {
		return nil
	}
	all := []gatewayv1.TLSConfig{spec.TLS.Frontend.Default}
	for _, p := range spec.TLS.Frontend.PerPort {
		all = append(all, p.TLS)
	}
	for _, c := range all {
		if c.Validation != nil {
			out = append(out, c.Validation)
		}
	}
	return out
}

// names reports whether objects of a kind name ConfigMaps.
func names(k object.Kind) bool { return k == object.BackendTLSPolicy || k == object.KubernetesGateway }

// moved notes that an object has changed.
func (n *named) moved(k object.Key) { n.stale = n.stale || names(k.Kind) }

// unreadable reports whether a ConfigMap must not be read, so that what is remembered of it stays in force.
func (n *named) unreadable(k object.Key) bool {
	m := n.of[k]
	return m != nil && !m.read && m.fault.lasting
}

// whole reports whether everything is known of them that can be.
func (n *named) whole() bool {
	for k, m := range n.of {
		if !m.read && !n.unreadable(k) {
			return false
		}
	}
	return !n.stale
}

// waits reports whether an object names one that is being read for the first time.
func (n *named) waits(o *object.Object) bool {
	return slices.ContainsFunc(mapsOf(o), func(k object.Key) bool {
		m := n.of[k]
		return m != nil && !m.read && !m.fault.lasting
	})
}

// sorted returns their keys in the order of listings.
func (n *named) sorted() (out []object.Key) {
	for k := range n.of {
		out = append(out, k)
	}
	slices.SortFunc(out, compareKeys)
	return out
}

// follow returns the ConfigMaps that are to be read from now on, and those that are not any more, which are removed.
func (m *merger) follow(now time.Time) (begun, ended []object.Key) {
	if !m.named.stale {
		return nil, nil
	}
	m.named.stale = false
	wanted := map[object.Key]bool{}
	for k, h := range m.objects {
		if !names(k.Kind) {
			continue
		}
		for _, o := range []*object.Object{h.good, h.emitted} { // until the former replaces the latter, both are needed
			for _, at := range mapsOf(o) {
				wanted[at] = at != m.own // that one is read anyway
			}
		}
	}
	for k, n := range m.named.of {
		if wanted[k] && !n.limited() {
			continue
		}
		delete(m.named.of, k)
		m.stale = true
		if !n.limited() {
			m.remove(k)
			ended = append(ended, k)
		}
	}
	slices.SortFunc(ended, compareKeys)
	for k, want := range wanted {
		if want && m.named.of[k] == nil {
			begun = append(begun, k)
		}
	}
	slices.SortFunc(begun, compareKeys)
	room := min(max(maxNamed-len(m.named.of), 0), len(begun))
	for i, k := range begun {
		n := &namedMap{health: health{behind: now}}
		m.named.of[k] = n
		if i >= room {
			m.fail(&n.health, fault{text: tooMany, lasting: true}, now)
		}
	}
	return begun[:room], ended
}

// tooMany is the fault of those that are not read.
var tooMany = fmt.Sprintf("policies and Gateways name more than %d ConfigMaps", maxNamed)

// limited reports whether one is not read because there are too many.
func (n *namedMap) limited() bool { return n.fault.text == tooMany }

// readNamed reads one of the ConfigMaps until ctx ends, again and again: to watch it, the control plane would have to be allowed to list all
// ConfigMaps of the cluster.
func (s *Source) readNamed(ctx context.Context, key object.Key) {
	pause := rereadNamed
	if s.o.Backoff[1] > 0 {
		pause = s.o.Backoff[1]
	}
	path := "/api/v1/namespaces/" + url.PathEscape(key.Namespace) + "/configmaps/" + url.PathEscape(key.Name)
	for {
		var x corev1.ConfigMap
		err := s.get(ctx, path, &x)
		f, failed := faultOf(err)
		s.send(ctx, func(m *merger, now time.Time) {
			n := m.named.of[key]
			switch {
			case n == nil:
			case failed && !f.missing:
				m.fail(&n.health, f.fault, now)
			default:
				if i := s.item(object.ConfigMap, &x); err == nil && i.entry.key == key {
					m.put(i.entry)
				} else {
					m.remove(key)
				}
				n.read = true
				m.reading(&n.health)
			}
		})
		select {
		case <-time.After(pause/2 + rand.N(pause)): // not all at once
		case <-ctx.Done():
			return
		}
	}
}
