package compile_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// TestEveryFieldIsAppliedOrNamed walks every field of the messages that configuration is
// decoded into. Each is set to a valid value other than its default in a small mesh;
// what the proxies get must then change, or a verdict must name the field as not applied.
func TestEveryFieldIsAppliedOrNamed(t *testing.T) {
	for _, k := range fieldKinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			c := newFieldCheck(t, k)
			used := map[string]bool{}
			for _, f := range c.walk() {
				if fieldExceptions[f.path] != "" {
					used[f.path] = true
					continue
				}
				t.Errorf("%s: %s", f.path, f.why)
			}
			for path := range fieldExceptions {
				if strings.HasPrefix(path, k.name+".") && !used[path] {
					t.Errorf("%s: the exception is not needed any more: remove it", path)
				}
			}
		})
	}
}

// TestSilentFieldIsDetected runs the same walk over a control plane that neither reads a
// field nor speaks of it, and expects to be told of that field and no other.
func TestSilentFieldIsDetected(t *testing.T) {
	for _, silent := range []struct {
		path  string
		field protoreflect.FullName
		only  string // walk no more than what begins so
	}{
		{"DestinationRule.trafficPolicy.connectionPool.tcp.maxConnections", "istio.networking.v1alpha3.ConnectionPoolSettings.TCPSettings.max_connections", "DestinationRule.trafficPolicy.connectionPool.tcp"},
		{"DestinationRule.trafficPolicy.proxyProtocol.version=V2", "istio.networking.v1alpha3.TrafficPolicy.proxy_protocol", "DestinationRule.trafficPolicy.p"},
		{"VirtualService.http.retries.perTryTimeout", "istio.networking.v1alpha3.HTTPRetry.per_try_timeout", ""},
		{"MeshConfig.connectTimeout", "istio.mesh.v1alpha1.MeshConfig.connect_timeout", "MeshConfig.c"},
		{"MeshConfig.defaultProviders.tracing", "istio.mesh.v1alpha1.MeshConfig.default_providers", "MeshConfig.d"},
		{"PeerAuthentication.portLevelMtls.mode=DISABLE", "istio.security.v1beta1.PeerAuthentication.port_level_mtls", ""},
		{"Sidecar.ingress.bind", "istio.networking.v1alpha3.Sidecar.ingress", ""},
	} {
		t.Run(silent.path, func(t *testing.T) {
			t.Parallel()
			name, _, _ := strings.Cut(silent.path, ".")
			kind := fieldKinds[slices.IndexFunc(fieldKinds, func(k fieldKind) bool { return k.name == name })]
			c := newFieldCheck(t, kind)
			c.silent, c.only = silent.field, silent.only
			field := strings.ReplaceAll(string(silent.field.Name()), "_", "")
			var found []string
			for _, f := range c.walk() {
				if fieldExceptions[f.path] == "" {
					found = append(found, f.path)
				}
			}
			if !slices.Contains(found, silent.path) {
				t.Errorf("%s is not read and nothing names it, and the walk found only %q", silent.path, found)
			}
			for _, path := range found {
				if !strings.Contains(strings.ToLower(path), field) {
					t.Errorf("%s is read, and the walk found it silent", path)
				}
			}
		})
	}
}

// fieldKind is a message that configuration is decoded into, and objects in which its
// fields can have an effect.
type fieldKind struct {
	name  string
	kind  object.Kind
	empty proto.Message
	// around are further objects of the mesh, as YAML.
	around string
	// mesh is mesh configuration as YAML, empty for the default.
	mesh string
	// bases are specs as YAML. A field is set in each, until one shows an effect.
	bases []string
}

// finding is a field, or a value of an enumeration ("path=VALUE"), without an effect.
type finding struct{ path, why string }

// fieldCheck walks one kind.
type fieldCheck struct {
	t     *testing.T
	kind  fieldKind
	world *world
	nodes []model.ProxyKey
	bases []proto.Message
	// silent is a field that is cleared before anything sees it.
	silent protoreflect.FullName
	// only is what the paths of the fields to try begin with.
	only string
	// outputs remembers what is compiled from a spec, by the spec's bytes.
	outputs map[string]map[string]string
}

// fetchedKeys are key sets as they are fetched.
var fetchedKeys = []string{
	`{"keys":[{"crv":"Ed25519","kid":"1","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`,
	`{"keys":[{"crv":"Ed25519","kid":"2","kty":"OKP","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`,
}

// fieldNetworks has a gateway to another network than that of the nodes.
var fieldNetworks = &meshv1.MeshNetworks{Networks: map[string]*meshv1.Network{
	"net-2": {Gateways: []*meshv1.Network_IstioNetworkGateway{{Gw: &meshv1.Network_IstioNetworkGateway_Address{Address: "192.0.2.1"}}}},
}}

func newFieldCheck(t *testing.T, k fieldKind) *fieldCheck {
	t.Helper()
	c := &fieldCheck{t: t, kind: k, world: newWorld(), outputs: map[string]map[string]string{}}
	c.world.apply(t, fieldMesh+k.around)
	c.world.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: istio-system, labels: {topology.istio.io/network: net-1}}\n")
	if k.mesh != "" {
		m, verdicts := config.MeshConfig(k.mesh)
		if len(verdicts) > 0 {
			t.Fatal(verdicts)
		}
		c.world.model.SetMesh(m)
	}
	c.world.model.SetNetworks(fieldNetworks)
	c.world.model.SetKeys(jwks.Source{URL: "https://a.example/keys"}, fetchedKeys[0])
	for _, n := range fieldNodes {
		node := proxy(t, n.id, "")
		node.Locality = mesh.ParseLocality(n.locality)
		node.Metadata.Tracing.Tracer = true
		c.nodes = append(c.nodes, model.KeyOf(node, ""))
		c.world.model.Classify().Want(c.nodes[len(c.nodes)-1])
		c.world.compiler.Bootstraps().Want(compile.BootstrapKeyOf(c.nodes[len(c.nodes)-1]))
	}
	for i, text := range k.bases {
		m := proto.Clone(k.empty)
		j, err := yaml.YAMLToJSON([]byte(text))
		if err == nil {
			err = protojson.Unmarshal(j, m)
		}
		if err != nil {
			t.Fatalf("%s, base %d: %v", k.name, i, err)
		}
		if k.kind == object.ConfigMap {
			whole := mesh.DefaultMeshConfig()
			overlay(whole.ProtoReflect(), m.ProtoReflect())
			m = whole
		}
		for _, v := range c.validate(m) {
			if v.Severity == object.Error {
				t.Fatalf("%s, base %d: %v", k.name, i, v)
			}
		}
		c.bases = append(c.bases, m)
	}
	return c
}

// overlay sets in dst what is set in src, as mesh configuration is laid over the defaults.
func overlay(dst, src protoreflect.Message) {
	src.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		dst.Set(f, v)
		return true
	})
}

// notApplied says whether a verdict tells that a field has no effect.
func notApplied(v config.Verdict) bool {
	return v.Severity != object.Info && strings.HasPrefix(v.Text, "not applied")
}

var index = regexp.MustCompile(`\[[^]]*\]`)

// told says whether a verdict names the field, or a part of the object that holds it, as
// not applied.
func (c *fieldCheck) told(verdicts []config.Verdict, path string) bool {
	path = strings.TrimPrefix(path, c.kind.name)
	for _, v := range verdicts {
		if !notApplied(v) {
			continue
		}
		at := index.ReplaceAllString(v.Field, "")
		at = strings.TrimPrefix(strings.TrimPrefix(at, "spec"), "data."+config.MeshKey)
		if path == at || strings.HasPrefix(path, at+".") {
			return true
		}
	}
	return false
}

// object is the object that says what m says, the silent field left out.
func (c *fieldCheck) object(m proto.Message) object.Object {
	key := object.Key{Kind: c.kind.kind, Namespace: "shop", Name: "subject"}
	m = proto.Clone(m)
	silence(m.ProtoReflect(), c.silent)
	if c.kind.kind != object.ConfigMap {
		return object.Object{Key: key, Spec: m}
	}
	key.Name = config.MeshConfigMap
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		c.t.Fatal(err)
	}
	return object.Object{Key: key, Spec: &object.ConfigMapSpec{Data: map[string]string{config.MeshKey: string(text)}}}
}

// silence clears a field wherever it is set.
func silence(m protoreflect.Message, name protoreflect.FullName) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.FullName() == name:
			m.Clear(f)
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { silence(v.Message(), name); return true })
			}
		case f.IsList():
			for i := 0; f.Message() != nil && i < v.List().Len(); i++ {
				silence(v.List().Get(i).Message(), name)
			}
		case f.Message() != nil:
			silence(v.Message(), name)
		}
		return true
	})
}

func (c *fieldCheck) validate(m proto.Message) []config.Verdict { return config.Validate(c.object(m)) }

// output is every resource of every proxy, once the mesh says what m says.
func (c *fieldCheck) output(m proto.Message) map[string]string {
	spec, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		c.t.Fatal(err)
	}
	if out := c.outputs[string(spec)]; out != nil {
		return out
	}
	o := c.object(m)
	if cm, ok := o.Spec.(*object.ConfigMapSpec); ok {
		// The text may hold what is refused as a whole: then it is no input of the compiler.
		if parsed, _ := config.MeshConfig(cm.Data[config.MeshKey]); parsed != nil {
			c.world.model.SetMesh(parsed)
		} else {
			c.world.model.SetMesh(m.(*meshv1.MeshConfig))
		}
	} else {
		c.world.model.Apply([]object.Change{{Key: o.Key, Object: &o}})
	}
	c.world.graph.Run()
	classes := make([]mesh.Class, len(c.nodes))
	c.world.classes = map[mesh.Class]bool{}
	for i, n := range c.nodes {
		classes[i], _ = c.world.model.Classify().Value(n)
		c.world.classes[classes[i]] = true
	}
	c.world.sync()
	out := map[string]string{}
	if m, ok := m.(*meshv1.MeshConfig); ok {
		// The control plane sends these with the trust bundle.
		out["roots"] = string(pki.EncodeCerts(config.MeshRoots(m)...))
	}
	for i, class := range classes {
		for k, b := range c.world.bytes(class) {
			out[fmt.Sprint(i, " ", k.Kind, " ", k.Name)] = string(b)
		}
	}
	for i, n := range c.nodes {
		bootstrap, _ := c.world.compiler.Bootstraps().Value(compile.BootstrapKeyOf(n))
		out[fmt.Sprint(i, " bootstrap")] = string(bootstrap.Body)
	}
	c.outputs[string(spec)] = out
	return out
}

// step is one field on the way to another.
type step = protoreflect.FieldDescriptor

// walk tries every field of the kind's message and returns those without an effect.
func (c *fieldCheck) walk() []finding {
	var found []finding
	c.fields(c.kind.empty.ProtoReflect().Descriptor(), nil, func(path []step) {
		found = append(found, c.try(path)...)
	})
	return found
}

// fields calls f with the way to every field that holds no further fields.
func (c *fieldCheck) fields(d protoreflect.MessageDescriptor, way []step, f func([]step)) {
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		path := append(slices.Clone(way), fd)
		inner := fd.Message()
		if fd.IsMap() {
			inner = fd.MapValue().Message()
		}
		recursive := slices.ContainsFunc(way, func(s step) bool { return s.Message() == inner })
		if inner == nil || strings.HasPrefix(string(inner.FullName()), "google.protobuf.") || inner.Fields().Len() == 0 || recursive {
			f(path)
			continue
		}
		c.fields(inner, path, f)
	}
}

func (c *fieldCheck) pathText(way []step) string {
	text := c.kind.name
	for _, s := range way {
		text += "." + s.JSONName()
	}
	return text
}

// try sets one field in each base; an enumeration has each of its values tried.
func (c *fieldCheck) try(way []step) []finding {
	path, last := c.pathText(way), way[len(way)-1]
	if !strings.HasPrefix(path, c.only) {
		return nil
	}
	if last.Enum() == nil || last.IsList() {
		if why := c.tryValues(way, path, candidates(path, last)); why != "" {
			return []finding{{path, why}}
		}
		return nil
	}
	var found []finding
	for i := range last.Enum().Values().Len() {
		v := last.Enum().Values().Get(i)
		if why := c.tryValues(way, path, []string{string(v.Name())}); why != "" {
			found = append(found, finding{path + "=" + string(v.Name()), why})
		}
	}
	return found
}

// tryValues says why no value shows an effect; empty where one does.
func (c *fieldCheck) tryValues(way []step, path string, values []string) string {
	refused, tried := "", false
	for _, base := range c.bases {
		for _, text := range values {
			before, after := proto.Clone(base), proto.Clone(base)
			reach(before.ProtoReflect(), way)
			holder := reach(after.ProtoReflect(), way)
			last := way[len(way)-1]
			same := holder.Has(last) || last.ContainingOneof() == nil
			old := holder.Get(last)
			set(c.t, holder, last, text)
			if same && old.Equal(holder.Get(last)) && proto.Equal(before, after) {
				continue // the value is the default, or the one that the base has
			}
			verdicts := c.validate(after)
			if c.told(verdicts, path) {
				return ""
			}
			if config.Rejected(verdicts) {
				refused = verdicts[0].Field + ": " + verdicts[0].Text
				continue
			}
			tried = true
			if !maps.Equal(c.output(before), c.output(after)) {
				return ""
			}
		}
	}
	switch {
	case tried:
		return "nothing that a proxy gets changes, and no verdict names it as not applied"
	case refused != "":
		return "no valid value is known; the last was refused: " + refused
	}
	return "" // its default is all that it can be
}

// reach makes what is on the way to the last field, and returns the message that has it.
func reach(m protoreflect.Message, way []step) protoreflect.Message {
	for _, s := range way[:len(way)-1] {
		switch {
		case s.IsMap():
			entries := m.Mutable(s).Map()
			key := mapKey(s, entries)
			if !entries.Has(key) {
				entries.Set(key, entries.NewValue())
			}
			m = entries.Get(key).Message()
		case s.IsList():
			list := m.Mutable(s).List()
			if list.Len() == 0 {
				list.Append(list.NewElement())
			}
			m = list.Get(0).Message()
		default:
			m = m.Mutable(s).Message()
		}
	}
	return m
}

// mapKey is the least key that a map has, or one to make.
func mapKey(s step, entries protoreflect.Map) protoreflect.MapKey {
	var keys []string
	entries.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k.String())
		return true
	})
	slices.Sort(keys)
	key := "x-hint"
	if s.MapKey().Kind() != protoreflect.StringKind {
		key = "8080"
	}
	if len(keys) > 0 {
		key = keys[0]
	}
	return scalar(s.MapKey(), key).MapKey()
}

// set gives a field the value that the text means. A list gets one element, a map one
// entry ("key=value").
func set(t *testing.T, m protoreflect.Message, f step, text string) {
	t.Helper()
	switch {
	case f.IsMap():
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			t.Fatalf("%s: the value for a map is %q, want key=value", f.FullName(), text)
		}
		m.Clear(f)
		m.Mutable(f).Map().Set(scalar(f.MapKey(), key).MapKey(), scalar(f.MapValue(), value))
	case f.IsList() && f.Message() != nil:
		m.Clear(f)
		list := m.Mutable(f).List()
		list.Append(list.NewElement())
	case f.IsList():
		m.Clear(f)
		m.Mutable(f).List().Append(scalar(f, text))
	case f.Message() != nil:
		x := m.NewField(f)
		fill(t, x.Message().Interface(), text)
		m.Set(f, x)
	default:
		m.Set(f, scalar(f, text))
	}
}

// fill reads a message of protobuf's own: a duration, a wrapped value; others are left empty.
func fill(t *testing.T, m proto.Message, text string) {
	t.Helper()
	switch m.(type) {
	case *structpb.Struct:
		text = `{"x": "y"}`
	case *structpb.Value:
		text = `"x"`
	}
	if m.ProtoReflect().Descriptor().Fields().Len() == 0 {
		return
	}
	j := text
	if _, ok := m.(*durationpb.Duration); ok {
		j = strconv.Quote(text)
	}
	if !json.Valid([]byte(j)) {
		j = strconv.Quote(text)
	}
	if err := protojson.Unmarshal([]byte(j), m); err != nil {
		t.Fatalf("%s from %q: %v", m.ProtoReflect().Descriptor().FullName(), text, err)
	}
}

func scalar(f step, text string) protoreflect.Value {
	n, _ := strconv.ParseFloat(text, 64)
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(text == "true")
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(n)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(text))
	case protoreflect.EnumKind:
		if v := f.Enum().Values().ByName(protoreflect.Name(text)); v != nil {
			return protoreflect.ValueOfEnum(v.Number())
		}
		return protoreflect.ValueOfEnum(f.Enum().Values().Get(f.Enum().Values().Len() - 1).Number())
	}
	return protoreflect.ValueOfString(text)
}

// candidates are the values to try for a field: those of the longest entry of fieldValues
// that ends its path, else some that are likely for its type.
func candidates(path string, f step) []string {
	best := ""
	for suffix := range fieldValues {
		if strings.HasSuffix("."+path, "."+suffix) && len(suffix) > len(best) {
			best = suffix
		}
	}
	if best != "" {
		return fieldValues[best]
	}
	if f.IsMap() {
		return []string{"x-hint=7"}
	}
	if m := f.Message(); m != nil {
		switch m.Name() {
		case "Duration":
			return []string{"7s"}
		case "BoolValue":
			return []string{"true", "false"}
		}
		return []string{"7"}
	}
	switch f.Kind() {
	case protoreflect.BoolKind:
		return []string{"true", "false"}
	case protoreflect.StringKind, protoreflect.BytesKind:
		return []string{"hint"}
	}
	return []string{"7"}
}

// TestFieldWalkCoversAllFields keeps the tables honest: every message that is decoded is walked,
// and what no field uses is removed.
func TestFieldWalkCoversAllFields(t *testing.T) {
	for _, kind := range object.Kinds() {
		spec := decode.NewSpec(kind)
		walked := func(k fieldKind) bool {
			return k.kind == kind && k.empty.ProtoReflect().Descriptor() == spec.ProtoReflect().Descriptor()
		}
		if spec != nil && !slices.ContainsFunc(fieldKinds, walked) {
			t.Errorf("%s is decoded into %T, and fieldKinds does not walk it", kind, spec)
		}
	}
	paths := map[string]bool{}
	for _, k := range fieldKinds {
		c := &fieldCheck{t: t, kind: k}
		c.fields(k.empty.ProtoReflect().Descriptor(), nil, func(way []step) { paths[c.pathText(way)] = true })
	}
	for suffix := range fieldValues {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(paths)), func(p string) bool { return strings.HasSuffix("."+p, "."+suffix) }) {
			t.Errorf("fieldValues has %q, and no field ends so", suffix)
		}
	}
	for path, why := range fieldExceptions {
		field, _, _ := strings.Cut(path, "=")
		if !paths[field] || why == "" {
			t.Errorf("fieldExceptions has %q: want the path of a field, and a reason", path)
		}
	}
}
