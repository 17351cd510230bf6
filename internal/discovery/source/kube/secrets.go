package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

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
	of := collection{path: "/api/v1/namespaces/" + o.Namespace + "/secrets", label: RemoteLabel, typed: true}
	of.item = func(x runtime.Object) *item {
		i := &item{}
		if secret, ok := x.(*corev1.Secret); ok {
			i.ObjectMeta, i.secret = nameOf(&secret.ObjectMeta), secret.Data
		}
		return i
	}
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
