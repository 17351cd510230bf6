package bootstrap

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// forOthers are the fields that the agent neither uses nor warns about, and why.
var forOthers = map[string]string{
	"gatewayTopology":                 appliedByControlPlane,
	"proxyHeaders":                    namedByControlPlane,
	"interceptionMode":                "the injector converts it to ISTIO_META_INTERCEPTION_MODE and the flags of istio-iptables",
	"holdApplicationUntilProxyStarts": "the injector converts it to the start order of the Pod's containers",
	"image":                           "the injector chooses the container's image from it",
	"connectionSettings":              namedByControlPlane, // all but globalDownstreamConnectionLimit
}

const (
	namedByControlPlane   = "the control plane finds it in the node's metadata and names it as not applied"
	appliedByControlPlane = "the control plane applies it, from the node's metadata"
)

// examples are valid values for the fields for which the generic value is invalid or has no effect.
var examples = map[string]string{
	"controlPlaneAuthPolicy":  `{"controlPlaneAuthPolicy": "NONE"}`,
	"runtimeValues":           `{"runtimeValues": {"a.b": "c"}}`,
	"tracing.customTags":      `{"tracing": {"customTags": {"k": {"literal": {"value": "v"}}}}}`,
	"tracing.enableIstioTags": `{"tracing": {"enableIstioTags": false}}`,
	"privateKeyProvider":      `{"privateKeyProvider": {"cryptomb": {"pollDelay": "0.002s", "fallback": true}}}`,
	"statsCompression":        `{"statsCompression": false}`,
	"statsdUdpAddress":        `{"statsdUdpAddress": "10.0.0.9:8125"}`,
	"envoyMetricsService":     `{"envoyMetricsService": ` + collector + `}`,
	"envoyAccessLogService":   `{"envoyAccessLogService": ` + collector + `}`,
	"tracing":                 `{"tracing": {"zipkin": {"address": "10.0.0.9:9411"}, "tlsSettings": ` + collectorTLS + `}}`,
	"fileFlushInterval":       `{"fileFlushInterval": "3s"}`,
	"tracingServiceName":      `{"tracingServiceName": "CANONICAL_NAME_ONLY"}`,
	"proxyStatsMatcher":       `{"proxyStatsMatcher": {"inclusionPrefixes": ["x"]}}`,
	"connectionSettings":      `{"connectionSettings": {"globalDownstreamConnectionLimit": 7}}`,
}

const (
	collectorTLS = `{"mode": "MUTUAL", "clientCertificate": "/a", "privateKey": "/b", "caCertificates": "/c", "subjectAltNames": ["d"], "sni": "e", "caCrl": "/f", "insecureSkipVerify": true}`
	collector    = `{"address": "10.0.0.9:1", "tcpKeepalive": {"probes": 1, "time": "1s", "interval": "1s"}, "tlsSettings": ` + collectorTLS + `}`
)

// tracers are the fields of tracing that concern the bootstrap. The others say what is traced, which the control plane decides.
var tracers = []string{"zipkin", "datadog", "lightstep", "stackdriver", "openCensusAgent", "tlsSettings"}

// Every field of ProxyConfig changes what the agent or Envoy does, or a warning names it.
func TestEveryProxyConfigFieldHasAnEffectOrAWarning(t *testing.T) {
	before, warnings := outcome(t, "{}")
	if len(warnings) > 0 {
		t.Fatalf("the defaults give the warnings %q", warnings)
	}
	for _, fd := range leaves((&meshv1.ProxyConfig{}).ProtoReflect().Descriptor()) {
		name := fd[0].JSONName()
		text := cmp.Or(examples[path(fd)], examples[name])
		if text == "" || len(fd) > 1 && !strings.Contains(text, fd[len(fd)-1].JSONName()) {
			c := &meshv1.ProxyConfig{}
			set(c.ProtoReflect(), fd)
			b, err := protojson.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		after, warnings := outcome(t, text)
		moved, named := after != before, strings.Contains(strings.Join(warnings, "\n"), name)
		reason := forOthers[name]
		if fd[len(fd)-1].JSONName() == "globalDownstreamConnectionLimit" {
			reason = ""
		}
		if name == "tracing" && !slices.Contains(tracers, fd[1].JSONName()) {
			reason = appliedByControlPlane
		}
		switch {
		case reason == "" && !moved && !named:
			t.Errorf("%s (%s) changes nothing and no warning names it", path(fd), text)
		case reason == namedByControlPlane && mesh.ProxyConfigField(name, fd[min(1, len(fd)-1)].JSONName()) == 0:
			t.Errorf("%s (%s) is not among the fields that the control plane names", path(fd), text)
		case name == "tracing" && reason == appliedByControlPlane && !decodes(t, text):
			t.Errorf("%s (%s) does not count for the control plane", path(fd), text)
		case reason != "" && (moved || named):
			t.Errorf("%s (%s) has an effect or a warning: remove it from the exceptions", path(fd), text)
		}
	}
}

// decodes reports whether the control plane finds something in the tracing of a ProxyConfig that differs from the defaults.
func decodes(t *testing.T, config string) bool {
	t.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(config), &fields); err != nil {
		t.Fatal(err)
	}
	got, whole := mesh.DecodeTracing(fields["tracing"])
	return whole && got != mesh.Tracing{}
}

// outcome returns everything that a proxy configuration determines, except the copy of itself that is sent to the
// control plane.
func outcome(t *testing.T, config string) (all string, warnings []string) {
	t.Helper()
	s, err := spec.Build(spec.Input{
		Role: mesh.Sidecar, Env: map[string]string{"PROXY_CONFIG": config},
		Host: spec.Host{Interfaces: []spec.Interface{{Name: "eth0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}},
	})
	if err != nil {
		return "", []string{err.Error()} // it is refused
	}
	s.Node.Metadata = maps.Clone(s.Node.Metadata)
	delete(s.Node.Metadata, "PROXY_CONFIG")
	b, err := Build(s)
	if err != nil {
		return "", []string{err.Error()} // it is refused
	}
	text, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	warnings = append(s.Warnings, b.Warnings...)
	s.Config, s.ConfigSources, s.Warnings = nil, nil, nil
	s.Envoy.Env = slices.DeleteFunc(s.Envoy.Env, func(v string) bool { return strings.HasPrefix(v, "PROXY_CONFIG=") })
	rest, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(rest) + string(text), warnings
}

// leaves returns the paths of all fields that are scalars or well-known types.
func leaves(d protoreflect.MessageDescriptor) [][]protoreflect.FieldDescriptor {
	var out [][]protoreflect.FieldDescriptor
	fields := d.Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		m := fd.Message()
		if m == nil || fd.IsMap() || strings.HasPrefix(string(m.FullName()), "google.protobuf.") {
			out = append(out, []protoreflect.FieldDescriptor{fd})
			continue
		}
		inner := leaves(m)
		if len(inner) == 0 {
			inner = [][]protoreflect.FieldDescriptor{nil}
		}
		for _, below := range inner {
			out = append(out, append([]protoreflect.FieldDescriptor{fd}, below...))
		}
	}
	return out
}

func path(fds []protoreflect.FieldDescriptor) string {
	var out []string
	for _, fd := range fds {
		out = append(out, fd.JSONName())
	}
	return strings.Join(out, ".")
}

// set gives the field at a path a value other than its default.
func set(m protoreflect.Message, fds []protoreflect.FieldDescriptor) {
	fd := fds[0]
	switch {
	case fd.IsMap():
		entries := m.Mutable(fd).Map()
		v := entries.NewValue()
		if fd.MapValue().Message() == nil {
			v = value(fd.MapValue())
		}
		entries.Set(protoreflect.ValueOfString("k").MapKey(), v)
	case fd.IsList() && fd.Message() != nil:
		list := m.Mutable(fd).List()
		e := list.NewElement()
		if len(fds) > 1 {
			set(e.Message(), fds[1:])
		}
		list.Append(e)
	case fd.IsList():
		m.Mutable(fd).List().Append(value(fd))
	case len(fds) > 1:
		set(m.Mutable(fd).Message(), fds[1:])
	case fd.Message() != nil && !strings.HasPrefix(string(fd.Message().FullName()), "google.protobuf."):
		m.Mutable(fd) // a message without fields
	case fd.Message() != nil:
		m.Set(fd, protoreflect.ValueOfMessage(wellKnown(fd).ProtoReflect()))
	default:
		m.Set(fd, value(fd))
	}
}

func wellKnown(fd protoreflect.FieldDescriptor) proto.Message {
	switch fd.Message().FullName() {
	case "google.protobuf.Duration":
		return durationpb.New(7e9)
	case "google.protobuf.BoolValue":
		return wrapperspb.Bool(true)
	case "google.protobuf.Int32Value":
		return wrapperspb.Int32(7)
	case "google.protobuf.UInt32Value":
		return wrapperspb.UInt32(7)
	case "google.protobuf.Int64Value":
		return wrapperspb.Int64(7)
	case "google.protobuf.UInt64Value":
		return wrapperspb.UInt64(7)
	case "google.protobuf.StringValue":
		return wrapperspb.String("x")
	case "google.protobuf.DoubleValue":
		return wrapperspb.Double(7)
	}
	m := fd.Message()
	panic("no example of a " + string(m.FullName()))
}

func value(fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(7)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(7)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(7)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(7)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(7)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(7)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("x")
	}
	panic("no example of a " + fd.Kind().String())
}
