package patch

import (
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// bootstrap checks the value of a patch of the bootstrap: it must leave alone what the agent needs. [agent B26]
func (p *parser) bootstrap(b *bootstrapv3.Bootstrap) {
	fields := b.ProtoReflect().Descriptor().Fields()
	owned := false
	for i := range fields.Len() {
		f := fields.Get(i)
		if !b.ProtoReflect().Has(f) {
			continue
		}
		if why := mesh.OwnBootstrapField(string(f.Name())); why != "" {
			p.fail("patch.value."+string(f.Name()), "must not be changed: %s", why)
			owned = true
		}
	}
	if !owned {
		p.faults = append(p.faults, Fault{Field: "applyTo", Severity: Note,
			Text: "takes effect at proxies whose agents have BOOTSTRAP_XDS_AGENT=true, when their Envoy is started or replaced"})
	}
}

// Bootstrap returns what patches change in a bootstrap: the differences, which the agent merges into the one that it builds. A patch
// after which they are invalid is left out. There is a Result for each patch. [control-plane 1.6.19]
func Bootstrap(patches []*Patch) (*bootstrapv3.Bootstrap, []Result) {
	results := make([]Result, len(patches))
	b, _ := run(&bootstrapv3.Bootstrap{}, patches, results, func(p *Patch) bool { return p.ApplyTo == networking.EnvoyFilter_BOOTSTRAP },
		func(b *bootstrapv3.Bootstrap, p *Patch) (bool, error) {
			p.mergeInto(b, p.Value)
			return true, mergeable(b)
		})
	return b, results
}

// mergeable returns why Envoy would refuse a bootstrap with these differences, as far as it is known without the agent's.
func mergeable(b *bootstrapv3.Bootstrap) error {
	if size := proto.Size(b); size > mesh.MaxBootstrap {
		return fmt.Errorf("what is merged into the bootstrap would have %d bytes: want at most %d", size, mesh.MaxBootstrap)
	}
	var clusters, layers, listeners []string
	for _, c := range b.GetStaticResources().GetClusters() {
		clusters = append(clusters, c.GetName())
	}
	for _, l := range b.GetLayeredRuntime().GetLayers() {
		layers = append(layers, l.GetName())
		if l.GetAdminLayer() != nil {
			return fmt.Errorf("the runtime layer %q is an admin_layer, of which the agent's bootstrap has the one that there may be", l.GetName())
		}
	}
	for _, l := range b.GetStaticResources().GetListeners() {
		if l.GetAddress() == nil && l.GetInternalListener() == nil {
			return fmt.Errorf("the static listener %q has no address", l.GetName())
		}
		if l.GetName() != "" {
			listeners = append(listeners, l.GetName())
		}
	}
	for _, list := range []struct {
		what  string
		names []string
		own   bool
	}{{"static clusters", clusters, true}, {"runtime layers", layers, true}, {"static listeners", listeners, false}} {
		seen := map[string]bool{}
		for _, name := range list.names {
			if list.own && mesh.OwnBootstrapName(name) {
				return fmt.Errorf("there would be two %s %q, since the agent's bootstrap has one: use another name", list.what, name)
			}
			if seen[name] {
				return fmt.Errorf("there would be two %s %q", list.what, name)
			}
			seen[name] = true
		}
	}
	return contents(b.ProtoReflect())
}

// contents checks the configurations of extensions in a message by the rules of Envoy's API, which validation of the message leaves out.
func contents(m protoreflect.Message) (err error) {
	if a, ok := m.Interface().(interface {
		proto.Message
		UnmarshalNew() (proto.Message, error)
	}); ok {
		inner, err := a.UnmarshalNew()
		if err != nil {
			return nil //nolint:nilerr // Parse has read it; Envoy knows types that this program does not
		}
		if err := validate(inner); err != nil {
			return err
		}
		return contents(inner.ProtoReflect())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, e protoreflect.Value) bool {
					err = contents(e.Message())
					return err == nil
				})
			}
		case f.Message() == nil:
		case f.IsList():
			for i := 0; i < v.List().Len() && err == nil; i++ {
				err = contents(v.List().Get(i).Message())
			}
		default:
			err = contents(v.Message())
		}
		return err == nil
	})
	return err
}
