// Package environment_test shows that a directory of YAML is all that proxy.Environment asks for.
//
// The adapter here is what a user of the public package would write around a source of
// his own: it keeps the objects that the directory source emits, and answers the five
// interfaces from them.
package environment_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/proxy"
)

const domain = "svc.cluster.local"

// directory answers from what a source has emitted.
type directory struct {
	mu      sync.Mutex
	objects map[object.Key]*object.Object
	synced  chan struct{}
}

func newDirectory() *directory {
	return &directory{objects: map[object.Key]*object.Object{}, synced: make(chan struct{})}
}

// environment is a proxy.Environment of one directory.
func (d *directory) environment() proxy.Environment {
	return proxy.Environment{ServiceDiscovery: d, ServiceAccounts: d, ConfigStore: d, Secrets: d, Mesh: d}
}

// take is what the source's Run calls.
func (d *directory) take(b object.Batch) {
	d.mu.Lock()
	for _, c := range b.Changes {
		if c.Object == nil {
			delete(d.objects, c.Key)
		} else {
			d.objects[c.Key] = c.Object
		}
	}
	d.mu.Unlock()
	if b.Synced {
		close(d.synced)
	}
}

// of lists the objects of a kind, by namespace and name, once there is something to list.
func (d *directory) of(ctx context.Context, kind object.Kind, namespace string) ([]*object.Object, error) {
	select {
	case <-d.synced:
	case <-ctx.Done():
		return nil, fmt.Errorf("list %s objects: %w", kind, ctx.Err())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*object.Object
	for key, o := range d.objects {
		if key.Kind == kind && (namespace == "" || key.Namespace == namespace) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b *object.Object) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return out, nil
}

func (d *directory) find(ctx context.Context, kind object.Kind, namespace, name string) (*object.Object, error) {
	all, err := d.of(ctx, kind, namespace)
	if i := slices.IndexFunc(all, func(o *object.Object) bool { return o.Name == name }); i >= 0 {
		return all[i], nil
	}
	return nil, err
}

func hostOf(o *object.Object) string { return o.Name + "." + o.Namespace + "." + domain }

func (d *directory) Services(ctx context.Context) ([]proxy.Service, error) {
	all, err := d.of(ctx, object.Service, "")
	var out []proxy.Service
	for _, o := range all {
		spec := o.Spec.(*object.ServiceSpec)
		s := proxy.Service{Host: hostOf(o), Addresses: spec.ClusterIPs}
		for _, p := range spec.Ports {
			s.Ports = append(s.Ports, proxy.Port{
				Name: p.Name, Number: p.Port, Protocol: mesh.ProtocolOf(p.Name, p.AppProtocol, p.Protocol).String(),
			})
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b proxy.Service) int { return strings.Compare(a.Host, b.Host) })
	return out, err
}

// behind lists the Pods that a service selects, and the service itself; nil if it is not known.
func (d *directory) behind(ctx context.Context, host string) (*object.Object, []*object.Object, error) {
	name, rest, _ := strings.Cut(host, ".")
	namespace := strings.TrimSuffix(rest, "."+domain)
	service, err := d.find(ctx, object.Service, namespace, name)
	if service == nil {
		return nil, nil, err
	}
	selector := service.Spec.(*object.ServiceSpec).Selector
	pods, err := d.of(ctx, object.Pod, namespace)
	pods = slices.DeleteFunc(pods, func(p *object.Object) bool {
		for k, v := range selector {
			if p.Meta.Labels[k] != v {
				return true
			}
		}
		return len(selector) == 0 || p.Spec.(*object.PodSpec).Done
	})
	return service, pods, err
}

func (d *directory) Endpoints(ctx context.Context, host, port string) ([]proxy.Endpoint, error) {
	service, pods, err := d.behind(ctx, host)
	if service == nil {
		return nil, err
	}
	var out []proxy.Endpoint
	for _, sp := range service.Spec.(*object.ServiceSpec).Ports {
		if sp.Name != port {
			continue
		}
		number := cmp.Or(sp.TargetPort, sp.Port)
		for _, p := range pods {
			spec := p.Spec.(*object.PodSpec)
			for _, ip := range spec.IPs {
				out = append(out, proxy.Endpoint{Address: netip.AddrPortFrom(ip, uint16(number)), Ready: spec.Ready})
			}
		}
	}
	slices.SortFunc(out, func(a, b proxy.Endpoint) int { return a.Address.Compare(b.Address) })
	return out, err
}

func (d *directory) Accounts(ctx context.Context, host string) ([]string, error) {
	_, pods, err := d.behind(ctx, host)
	accounts := map[string]bool{}
	for _, p := range pods {
		accounts[p.Namespace+"/"+p.Spec.(*object.PodSpec).ServiceAccount] = true
	}
	return slices.Sorted(maps.Keys(accounts)), err
}

func configOf(o *object.Object) proxy.Config {
	return proxy.Config{
		Kind: string(o.Kind), Namespace: o.Namespace, Name: o.Name,
		Labels: o.Meta.Labels, Annotations: o.Meta.Annotations, Spec: o.Spec,
	}
}

func (d *directory) Get(ctx context.Context, kind, namespace, name string) (proxy.Config, bool, error) {
	o, err := d.find(ctx, object.Kind(kind), namespace, name)
	if o == nil {
		return proxy.Config{}, false, err
	}
	return configOf(o), true, nil
}

func (d *directory) List(ctx context.Context, kind, namespace string) ([]proxy.Config, error) {
	all, err := d.of(ctx, object.Kind(kind), namespace)
	var out []proxy.Config
	for _, o := range all {
		out = append(out, configOf(o))
	}
	return out, err
}

func (d *directory) TLSSecret(ctx context.Context, namespace, name string) (proxy.TLSSecret, bool, error) {
	o, err := d.find(ctx, object.Secret, namespace, name)
	if o == nil {
		return proxy.TLSSecret{}, false, err
	}
	data := o.Spec.(*object.SecretSpec).Data
	s := proxy.TLSSecret{Certificate: data["tls.crt"], PrivateKey: data["tls.key"]}
	return s, len(s.Certificate) > 0 && len(s.PrivateKey) > 0, nil
}

func (d *directory) MeshConfig(ctx context.Context) (*meshv1.MeshConfig, error) {
	o, err := d.find(ctx, object.ConfigMap, mesh.DefaultRootNamespace, config.MeshConfigMap)
	if o == nil {
		return proxy.DefaultMeshConfig(), err
	}
	m, verdicts := config.MeshConfig(o.Spec.(*object.ConfigMapSpec).Data[config.MeshKey])
	if config.Rejected(verdicts) {
		return nil, fmt.Errorf("read the mesh configuration of %s: %v", o.Key, verdicts)
	}
	return m, nil
}
