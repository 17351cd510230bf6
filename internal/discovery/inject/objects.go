package inject

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networkingv1beta1 "istio.io/api/networking/v1beta1"

	"github.com/pilothouse/pilothouse/internal/object"
)

// ProxyConfig is one ProxyConfig object. The Spec is not modified.
type ProxyConfig struct {
	Namespace, Name string
	Created         time.Time
	Spec            *networkingv1beta1.ProxyConfig
}

// ProxyConfigOf returns an object of the kind ProxyConfig as it is used here.
func ProxyConfigOf(o *object.Object) ProxyConfig {
	spec, ok := o.Spec.(*networkingv1beta1.ProxyConfig)
	if !ok {
		panic(fmt.Sprintf("inject: %s has a spec of type %T", o.Key, o.Spec))
	}
	return ProxyConfig{Namespace: o.Namespace, Name: o.Name, Created: o.Meta.Created, Spec: spec}
}

// ProxyConfigs are the ProxyConfig objects of a mesh. They do not change, and are safe for concurrent use; nil has
// none.
type ProxyConfigs struct {
	byNamespace map[string][]ProxyConfig // the oldest first
}

// NewProxyConfigs returns a set of objects, which are given in any order.
func NewProxyConfigs(list []ProxyConfig) *ProxyConfigs {
	p := &ProxyConfigs{byNamespace: map[string][]ProxyConfig{}}
	for _, o := range list {
		if o.Spec != nil {
			p.byNamespace[o.Namespace] = append(p.byNamespace[o.Namespace], o)
		}
	}
	for _, objects := range p.byNamespace {
		slices.SortFunc(objects, func(a, b ProxyConfig) int {
			return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
		})
	}
	return p
}

// With returns the set with other objects added, which are younger than all others and replace those of the same name.
func (p *ProxyConfigs) With(more []ProxyConfig) *ProxyConfigs {
	if len(more) == 0 {
		return p
	}
	var all []ProxyConfig
	if p != nil {
		for _, objects := range p.byNamespace {
			all = append(all, objects...)
		}
	}
	for _, o := range more {
		i := slices.IndexFunc(all, func(b ProxyConfig) bool { return b.Namespace == o.Namespace && b.Name == o.Name })
		if i >= 0 {
			all[i].Spec = o.Spec // updated, it would keep its time
			continue
		}
		if o.Created.IsZero() {
			o.Created = notCreated
		}
		all = append(all, o)
	}
	return NewProxyConfigs(all)
}

// notCreated is the time of creation of an object that is younger than all others.
var notCreated = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// The levels of objects, the more important ones last.
const (
	ofMesh = iota
	ofNamespace
	ofWorkload
	levels
)

// maxIgnored is how many objects without effect are named.
const maxIgnored = 5

// applicable returns the object of each level for a Pod, nil if there is none: the oldest. ignored are the others.
func (p *ProxyConfigs) applicable(root, namespace string, podLabels map[string]string) (used [levels]*networkingv1beta1.ProxyConfig, ignored []string) {
	if p == nil {
		return used, nil
	}
	var names [levels]string
	take := func(level int, o *ProxyConfig) {
		if used[level] == nil {
			used[level], names[level] = o.Spec, o.Namespace+"/"+o.Name
			return
		}
		if len(ignored) == maxIgnored {
			return
		}
		ignored = append(ignored, fmt.Sprintf("ProxyConfig %s/%s has no effect: %s is older and is for the same Pods", o.Namespace, o.Name, names[level]))
	}
	if root != namespace {
		for i := range p.byNamespace[root] {
			if o := &p.byNamespace[root][i]; len(o.Spec.GetSelector().GetMatchLabels()) == 0 {
				take(ofMesh, o)
			}
		}
	}
	for i := range p.byNamespace[namespace] {
		o := &p.byNamespace[namespace][i]
		switch want := o.Spec.GetSelector().GetMatchLabels(); {
		case len(want) > 0 && subset(want, podLabels):
			take(ofWorkload, o)
		case len(want) > 0:
		case namespace == root:
			take(ofMesh, o)
		default:
			take(ofNamespace, o)
		}
	}
	return used, ignored
}

func subset(want, have map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// effectiveConfig returns the proxy configuration of a Pod: that of the mesh, with the fields of the ProxyConfig
// objects of the root namespace and of the Pod's namespace, of the annotation, and of the object that selects the
// Pod, each over those before it. ignored are sentences about objects that have no effect. [control-plane 1.9.29]
func effectiveConfig(m *meshv1.MeshConfig, objects *ProxyConfigs, namespace string, podLabels map[string]string, annotation configAnnotation) (config *meshv1.ProxyConfig, ignored []string) {
	config = proto.CloneOf(m.GetDefaultConfig())
	used, ignored := objects.applicable(m.GetRootNamespace(), namespace, podLabels)
	overlay(config, used[ofMesh])
	overlay(config, used[ofNamespace])
	annotation.over(config)
	overlay(config, used[ofWorkload])
	return config, ignored
}

// overlay puts the fields of an object over a configuration; nil has none.
func overlay(config *meshv1.ProxyConfig, o *networkingv1beta1.ProxyConfig) {
	if o.GetConcurrency() != nil {
		config.Concurrency = wrapperspb.Int32(o.GetConcurrency().GetValue())
	}
	if o.GetImage().GetImageType() != "" {
		config.Image = &networkingv1beta1.ProxyImage{ImageType: o.GetImage().GetImageType()}
	}
	for k, v := range o.GetEnvironmentVariables() {
		if config.ProxyMetadata == nil {
			config.ProxyMetadata = map[string]string{}
		}
		config.ProxyMetadata[k] = v
	}
}
