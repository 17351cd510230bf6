package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
)

// RemoteLabel selects the Secrets that name remote clusters.
const RemoteLabel = "istio/multiCluster=true"

// ErrRefused is within an error of FollowSecrets that does not end by itself, such as a missing permission.
var ErrRefused = errors.New("refused")

// Secret is one Secret of the control plane's namespace. Its data must not be logged.
type Secret struct {
	Name string
	Data map[string][]byte
}

// FollowSecrets calls report with all Secrets of o.Namespace that have RemoteLabel whenever they have changed, and with
// an error, which lasts until the next list, when they cannot be read. It returns when ctx ends. Calls of report may
// come from several goroutines, but those with Secrets come in their order.
func FollowSecrets(ctx context.Context, o Options, report func([]Secret, error)) error {
	c, err := newClient(o.Config)
	if err != nil {
		return err
	}
	s := &Source{o: o, client: c}
	of := collection{path: "/api/v1/namespaces/" + o.Namespace + "/secrets", label: RemoteLabel, typed: true, item: secretItem}
	known := map[string]*item{} // of the reflector's goroutine
	read := false               // whole, once; of the same goroutine
	const reading, away, refused = 0, 1, 2
	var state atomic.Int32 // what was reported last
	all := func() {
		state.Store(reading)
		out := make([]Secret, 0, len(known))
		for _, i := range known {
			out = append(out, Secret{i.Name, i.secret})
		}
		slices.SortFunc(out, func(a, b Secret) int { return strings.Compare(a.Name, b.Name) })
		report(out, nil)
	}
	of.seen = func(c contact) {
		f, failed := faultOf(c.err)
		switch {
		case failed && f.lasting:
			if state.Swap(refused) != refused { // else the text would change between list and watch
				report(nil, fmt.Errorf("%w: %w", ErrRefused, errors.New(f.text)))
			}
		case failed:
			if state.Swap(away) != away {
				report(nil, errors.New(f.text))
			}
		case c.watch && read && state.Load() != reading:
			all() // the watch goes on where it ended, without a list that would say that reading works
		}
	}
	s.reflect(klog.NewContext(ctx, klog.Logger{}), "Secret", of, &store{
		put:    func(i *item) { known[i.Name] = i; all() },
		remove: func(i *item) { delete(known, i.Name); all() },
		replace: func(list []*item) {
			read = true
			clear(known)
			for _, i := range list {
				known[i.Name] = i
			}
			all()
		},
	})
	return nil
}

// SecretEvents are told of the Secrets of a namespace. The data must not be logged, and is not kept.
type SecretEvents interface {
	Put(name string, data map[string][]byte)
	Remove(name string)
	// Replace is told of all Secrets.
	Replace(all map[string]map[string][]byte)
	// Failed is told why Secrets cannot be read, once, and of nil when they are read again after that.
	Failed(err error)
}

// otherSecrets leaves out the types that are never for TLS, of which a namespace may have many and large ones.
const otherSecrets = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token"

// FollowNamespace tells of the Secrets of a namespace that may be for TLS until ctx ends. Calls do not overlap, except those of Failed.
// Something that may end by itself is a failure if nothing was read yet, or once it has lasted for o.Patience.
func FollowNamespace(ctx context.Context, o Options, namespace string, to SecretEvents) error {
	c, err := newClient(o.Config)
	if err != nil {
		return err
	}
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	s := &Source{o: o, client: c}
	of := collection{path: "/api/v1/namespaces/" + url.PathEscape(namespace) + "/secrets", field: otherSecrets, typed: true, item: secretItem}
	var mu sync.Mutex // guards failing and since
	failing, since := false, time.Time{}
	reads := func() {
		mu.Lock()
		ended := failing
		failing, since = false, time.Time{}
		mu.Unlock()
		if ended {
			to.Failed(nil)
		}
	}
	var read atomic.Bool // whole, once
	of.seen = func(c contact) {
		f, failed := faultOf(c.err)
		switch {
		case failed:
			mu.Lock()
			if since.IsZero() {
				since = time.Now()
			}
			tell := !failing && (f.lasting || time.Since(since) >= o.Patience)
			failing = failing || tell
			mu.Unlock()
			if tell {
				to.Failed(errors.New(f.text))
			}
		case c.watch && read.Load():
			reads()
		}
	}
	s.reflect(klog.NewContext(ctx, klog.Logger{}), "Secret", of, &store{
		put:    func(i *item) { to.Put(i.Name, i.secret) },
		remove: func(i *item) { to.Remove(i.Name) },
		replace: func(list []*item) {
			all := make(map[string]map[string][]byte, len(list))
			for _, i := range list {
				all[i.Name] = i.secret
			}
			to.Replace(all)
			read.Store(true)
			reads()
		},
	})
	return nil
}

// secretItem is a Secret with its data.
func secretItem(x runtime.Object) *item {
	i := &item{}
	if secret, ok := x.(*corev1.Secret); ok {
		i.ObjectMeta, i.secret = nameOf(&secret.ObjectMeta), secret.Data
	}
	return i
}
