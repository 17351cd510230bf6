// Package patch applies the patches of EnvoyFilters to Envoy's messages.
//
// ParseExtension makes patches of a WasmPlugin or TrafficExtension, which come before those of EnvoyFilters. Parse makes a Patch of one of an EnvoyFilter's configPatches: its value is a message of the type that it is for, so that
// unknown fields and types are refused when the object is read. Cluster, Listener, RouteConfiguration, VirtualHost, Extension and Bootstrap
// apply patches, in their order, to a copy of a message. A patch that would make the message invalid is left out, and the
// Result says why. All functions are pure, and do not change what they are given. [control-plane 1.9.25–1.9.28]
package patch

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The names of network filters that have parts of their own.
const (
	connectionManager = "envoy.filters.network.http_connection_manager"
	httpRouter        = "envoy.filters.http.router"
)

// Context is a part of a proxy's configuration.
type Context = networking.EnvoyFilter_PatchContext

// The contexts.
const (
	Inbound  = networking.EnvoyFilter_SIDECAR_INBOUND
	Outbound = networking.EnvoyFilter_SIDECAR_OUTBOUND
	Gateway  = networking.EnvoyFilter_GATEWAY
)

// Patch is one of an EnvoyFilter's patches. It must not be changed.
type Patch struct {
	// Index is the patch's in configPatches.
	Index     int
	ApplyTo   networking.EnvoyFilter_ApplyTo
	Operation networking.EnvoyFilter_Patch_Operation
	// Class is where ADD puts a filter; UNSPECIFIED is before the last one.
	Class networking.EnvoyFilter_Patch_FilterClass
	Match *networking.EnvoyFilter_EnvoyConfigObjectMatch
	// Value is a message of the type that ApplyTo names, nil for REMOVE.
	Value proto.Message
	// Discovers are the extension configurations that filters in Value take from this control plane.
	Discovers []Discovery
	// Listening are the ports at which a router listens for the port in a match for routes, which is that of a server.
	Listening []uint32
	// Place is that of the filter of an extension, nil for patches of EnvoyFilters.
	Place *Place
}

// ServerPort returns the port in a match for routes of a router; 0 if there is none.
func (p *Patch) ServerPort() uint32 { return p.Match.GetRouteConfiguration().GetPortNumber() }

// Fault is what is wrong with a patch; Field is below the patch.
type Fault struct {
	Field, Text string
	Severity    Severity
}

// Severity says what follows from a Fault.
type Severity uint8

// The severities.
const (
	// Invalid: the EnvoyFilter is refused.
	Invalid Severity = iota
	// NotApplied: the patch is left out.
	NotApplied
	// Partly: the patch is applied without what the fault says.
	Partly
	// Note: nothing is wrong.
	Note
)

// Result says what became of a patch.
type Result struct {
	// Applied is set if the patch has matched something and was applied to it.
	Applied bool
	// Refused says why the patch was left out where it has matched; empty if it was not.
	Refused string
}

// row says what patches may do to one part of the configuration.
type row struct {
	empty      func() proto.Message
	operations []networking.EnvoyFilter_Patch_Operation
	match      string // the name of the match's field; others are refused
}

const (
	merge        = networking.EnvoyFilter_Patch_MERGE
	add          = networking.EnvoyFilter_Patch_ADD
	remove       = networking.EnvoyFilter_Patch_REMOVE
	insertBefore = networking.EnvoyFilter_Patch_INSERT_BEFORE
	insertAfter  = networking.EnvoyFilter_Patch_INSERT_AFTER
	insertFirst  = networking.EnvoyFilter_Patch_INSERT_FIRST
	replace      = networking.EnvoyFilter_Patch_REPLACE
	mergeReplace = networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST
)

type operations = []networking.EnvoyFilter_Patch_Operation

var rows = map[networking.EnvoyFilter_ApplyTo]row{
	networking.EnvoyFilter_CLUSTER:  {func() proto.Message { return &clusterv3.Cluster{} }, operations{merge, mergeReplace, add, remove}, "cluster"},
	networking.EnvoyFilter_LISTENER: {func() proto.Message { return &listenerv3.Listener{} }, operations{merge, mergeReplace, add, remove}, "listener"},
	networking.EnvoyFilter_LISTENER_FILTER: {func() proto.Message { return &listenerv3.ListenerFilter{} },
		operations{add, remove, replace, insertBefore, insertAfter, insertFirst}, "listener"},
	networking.EnvoyFilter_FILTER_CHAIN: {func() proto.Message { return &listenerv3.FilterChain{} }, operations{merge, mergeReplace, add, remove}, "listener"},
	networking.EnvoyFilter_NETWORK_FILTER: {func() proto.Message { return &listenerv3.Filter{} },
		operations{merge, mergeReplace, add, remove, replace, insertBefore, insertAfter, insertFirst}, "listener"},
	networking.EnvoyFilter_HTTP_FILTER: {func() proto.Message { return &hcmv3.HttpFilter{} },
		operations{merge, mergeReplace, add, remove, replace, insertBefore, insertAfter, insertFirst}, "listener"},
	networking.EnvoyFilter_ROUTE_CONFIGURATION: {func() proto.Message { return &routev3.RouteConfiguration{} }, operations{merge, mergeReplace}, "routeConfiguration"},
	networking.EnvoyFilter_VIRTUAL_HOST:        {func() proto.Message { return &routev3.VirtualHost{} }, operations{merge, mergeReplace, add, remove, replace}, "routeConfiguration"},
	networking.EnvoyFilter_HTTP_ROUTE: {func() proto.Message { return &routev3.Route{} },
		operations{merge, mergeReplace, add, remove, insertBefore, insertAfter, insertFirst}, "routeConfiguration"},
	networking.EnvoyFilter_EXTENSION_CONFIG: {func() proto.Message { return &corev3.TypedExtensionConfig{} }, operations{add}, ""},
	networking.EnvoyFilter_BOOTSTRAP:        {func() proto.Message { return &bootstrapv3.Bootstrap{} }, operations{merge}, ""},
}

// Parse returns the patch with an index in configPatches, nil if it cannot be applied, and what is wrong with it.
func Parse(index int, spec *networking.EnvoyFilter_EnvoyConfigObjectPatch) (*Patch, []Fault) {
	p := parser{patch: &Patch{Index: index, ApplyTo: spec.GetApplyTo(), Operation: spec.GetPatch().GetOperation(), Match: spec.GetMatch()}}
	p.parse(spec)
	if slices.ContainsFunc(p.faults, func(f Fault) bool { return f.Severity < Partly }) {
		return nil, p.faults
	}
	return p.patch, p.faults
}

// parser makes one patch.
type parser struct {
	patch  *Patch
	faults []Fault
}

func (p *parser) fail(field, format string, args ...any) {
	p.faults = append(p.faults, Fault{Field: field, Text: fmt.Sprintf(format, args...)})
}

// leaveOut says that a patch is valid and not applied.
func (p *parser) leaveOut(field, text string) {
	p.faults = append(p.faults, Fault{Field: field, Severity: NotApplied, Text: "not applied: " + text})
}

func (p *parser) parse(spec *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	row, ok := rows[p.patch.ApplyTo]
	if !ok {
		p.fail("applyTo", "invalid value %s: want one of LISTENER, LISTENER_FILTER, FILTER_CHAIN, NETWORK_FILTER, HTTP_FILTER, ROUTE_CONFIGURATION, "+
			"VIRTUAL_HOST, HTTP_ROUTE, CLUSTER, EXTENSION_CONFIG, BOOTSTRAP", p.patch.ApplyTo)
		return
	}
	if !slices.Contains(row.operations, p.patch.Operation) {
		p.fail("patch.operation", "invalid value %s for %s: want one of %s", p.patch.Operation, p.patch.ApplyTo, names(row.operations))
		return
	}
	p.match(row.match)
	p.class(spec.GetPatch().GetFilterClass())
	if p.patch.Operation == remove {
		p.selected("")
		return
	}
	if spec.GetPatch().GetValue() == nil {
		p.fail("patch.value", "is empty; set the configuration to %s", strings.ToLower(p.patch.Operation.String()))
		return
	}
	p.value(row.empty(), spec.GetPatch().GetValue())
}

// class checks and takes over the class of a filter.
func (p *parser) class(c networking.EnvoyFilter_Patch_FilterClass) {
	switch c {
	case networking.EnvoyFilter_Patch_UNSPECIFIED:
		return
	case networking.EnvoyFilter_Patch_AUTHN, networking.EnvoyFilter_Patch_AUTHZ, networking.EnvoyFilter_Patch_STATS:
	default:
		p.fail("patch.filterClass", "invalid value %s: want AUTHN, AUTHZ or STATS", c)
		return
	}
	switch {
	case p.patch.ApplyTo != networking.EnvoyFilter_HTTP_FILTER && p.patch.ApplyTo != networking.EnvoyFilter_NETWORK_FILTER:
		p.faults = append(p.faults, Fault{Field: "patch.filterClass", Severity: Partly, Text: "not applied: it is for HTTP_FILTER and NETWORK_FILTER; remove it"})
	case p.patch.Operation != add:
		p.faults = append(p.faults, Fault{Field: "patch.filterClass", Severity: Partly, Text: fmt.Sprintf("not applied: %s says where the filter is; remove it, or use ADD", p.patch.Operation)})
	default:
		p.patch.Class = c
	}
}

func names(ops operations) string {
	var out []string
	for _, o := range ops {
		out = append(out, o.String())
	}
	return strings.Join(out, ", ")
}

// value decodes and checks the patch's value.
func (p *parser) value(m proto.Message, value *structpb.Struct) {
	if err := decode(value, m); err != nil {
		p.fail("patch.value", "%v", err)
		return
	}
	if err := typed(m); err != nil {
		p.fail("patch.value", "%v", err)
		return
	}
	if b, ok := m.(*bootstrapv3.Bootstrap); ok {
		p.bootstrap(b)
	}
	p.patch.Value, p.patch.Discovers = m, discoveries(m)
	if p.patch.Operation != merge && p.patch.Operation != mergeReplace { // a part of a message need not be valid
		if err := validate(m); err != nil {
			p.fail("patch.value", "%v", err)
		} else if named, ok := m.(interface{ GetName() string }); ok && named.GetName() == "" && p.patch.ApplyTo != networking.EnvoyFilter_FILTER_CHAIN && p.patch.ApplyTo != networking.EnvoyFilter_HTTP_ROUTE {
			p.fail("patch.value", "name is empty; set it")
		}
	}
	if l, ok := m.(*listenerv3.Listener); ok && p.patch.Operation == add && len(l.FilterChains) == 0 && l.DefaultFilterChain == nil {
		p.fail("patch.value", "the listener has no filter chain; add one to filter_chains")
	}
	name := ""
	if named, ok := m.(interface{ GetName() string }); ok {
		name = named.GetName()
	}
	if p.patch.Operation == merge || p.patch.Operation == mergeReplace || p.patch.Operation == replace {
		p.selected(name)
	}
}

// selected checks that a patch that changes a filter says which. The filter that it does not select is that of its value's name.
func (p *parser) selected(name string) {
	field := ""
	switch p.patch.ApplyTo {
	case networking.EnvoyFilter_NETWORK_FILTER:
		name, field = canonical(first(p.patch.filter().GetName(), name)), "match.listener.filterChain.filter.name"
	case networking.EnvoyFilter_HTTP_FILTER:
		name, field = canonical(first(p.patch.filter().GetSubFilter().GetName(), name)), "match.listener.filterChain.filter.subFilter.name"
	case networking.EnvoyFilter_LISTENER_FILTER:
		name, field = first(p.patch.Match.GetListener().GetListenerFilter(), name), "match.listener.listenerFilter"
	default:
		return
	}
	if name == "" {
		p.fail(field, "is empty; set the name of the filter that the operation is for")
	}
}

func first(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// match checks the patch's match.
func (p *parser) match(want string) {
	m := p.patch.Match
	given := ""
	switch m.GetObjectTypes().(type) {
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Listener:
		given = "listener"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_RouteConfiguration:
		given = "routeConfiguration"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Cluster:
		given = "cluster"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Waypoint:
		given = "waypoint"
	}
	switch {
	case given == "" || given == want:
	case p.patch.ApplyTo == networking.EnvoyFilter_EXTENSION_CONFIG:
		p.faults = append(p.faults, Fault{Field: "match." + given, Severity: Partly, Text: "not applied: filters find an extension configuration by its name; remove it"})
	case want == "":
		p.fail("match."+given, "is not what %s is matched by; remove it", p.patch.ApplyTo)
	default:
		p.fail("match."+given, "is not what %s is matched by; use %s", p.patch.ApplyTo, want)
	}
	switch m.GetContext() {
	case networking.EnvoyFilter_ANY, Inbound, Outbound, Gateway:
	case networking.EnvoyFilter_WAYPOINT:
		p.leaveOut("match.context", "there are no waypoints; use SIDECAR_INBOUND")
	default:
		p.fail("match.context", "invalid value %s: want ANY, SIDECAR_INBOUND, SIDECAR_OUTBOUND or GATEWAY", m.GetContext())
	}
	if m.GetListener().GetPortName() != "" {
		p.leaveOut("match.listener.portName", "listeners have no port names; use portNumber")
	}
	for _, key := range slices.Sorted(maps.Keys(m.GetProxy().GetMetadata())) {
		if text := mesh.Uncomparable(key, m.GetProxy().GetMetadata()[key]); text != "" {
			p.leaveOut("match.proxy.metadata", fmt.Sprintf("%q %s", key, text))
		}
	}
	if _, err := regexp.Compile(m.GetProxy().GetProxyVersion()); err != nil {
		p.fail("match.proxy.proxyVersion", "invalid regular expression: %v", err)
	}
}

// decode reads a value as a message, and refuses unknown fields and types.
func decode(value *structpb.Struct, m proto.Message) error {
	text, err := value.MarshalJSON()
	if err != nil {
		return err
	}
	if err := protojson.Unmarshal(text, m); err != nil {
		return errors.New(plain(err.Error()))
	}
	return nil
}

// plain is the text of an error of protojson without its prefix, whose space is sometimes another, and its position, which
// is one in a text that nobody has written.
func plain(text string) string {
	text = strings.TrimSpace(strings.TrimPrefix(strings.ReplaceAll(text, "\u00a0", " "), "proto:"))
	if strings.HasPrefix(text, "(line ") {
		if _, rest, ok := strings.Cut(text, "): "); ok {
			return rest
		}
	}
	if after, ok := strings.CutPrefix(text, "syntax error (line "); ok {
		if _, rest, ok := strings.Cut(after, "): "); ok {
			return rest
		}
	}
	return text
}

// configured is a message with a configuration of a type of its own, such as a filter.
type configured interface {
	proto.Message
	GetTypedConfig() *anypb.Any
}

// typedStructs are the types of messages that stand for one of another type.
var typedStructs = []string{"type.googleapis.com/udpa.type.v1.TypedStruct", "type.googleapis.com/xds.type.v3.TypedStruct"}

// typed replaces the configuration of a filter or transport socket that is written as a TypedStruct by the message that it
// stands for, if its type is known.
func typed(m proto.Message) error {
	var in configured
	switch m := m.(type) {
	case *clusterv3.Cluster:
		if m.TransportSocket == nil {
			return nil
		}
		in = m.TransportSocket
	case *listenerv3.FilterChain:
		if m.TransportSocket == nil {
			return nil
		}
		in = m.TransportSocket
	case configured:
		in = m
	default:
		return nil
	}
	config := in.GetTypedConfig()
	if config == nil || !slices.Contains(typedStructs, config.TypeUrl) {
		return nil
	}
	wrapped, err := config.UnmarshalNew()
	if err != nil {
		return err
	}
	s, ok := wrapped.(interface {
		GetTypeUrl() string
		GetValue() *structpb.Struct
	})
	if !ok {
		return nil
	}
	t, err := protoregistry.GlobalTypes.FindMessageByURL(s.GetTypeUrl())
	if err != nil {
		return nil // Envoy may know it
	}
	inner := t.New().Interface()
	value := s.GetValue()
	if value == nil {
		value = &structpb.Struct{}
	}
	if err := decode(value, inner); err != nil {
		return fmt.Errorf("typed_config: %w", err)
	}
	setConfig(in, pack(inner))
	return nil
}

// setConfig replaces the configuration of a filter or transport socket.
func setConfig(in configured, a *anypb.Any) {
	switch m := in.(type) {
	case *corev3.TransportSocket:
		m.ConfigType = &corev3.TransportSocket_TypedConfig{TypedConfig: a}
	case *listenerv3.Filter:
		m.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: a}
	case *listenerv3.ListenerFilter:
		m.ConfigType = &listenerv3.ListenerFilter_TypedConfig{TypedConfig: a}
	case *hcmv3.HttpFilter:
		m.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: a}
	case *corev3.TypedExtensionConfig:
		m.TypedConfig = a
	default:
		panic(fmt.Sprintf("patch: %T has no typed configuration", in))
	}
}

// validate checks a message, and the configuration in it, by the rules of Envoy's API.
func validate(m proto.Message) error {
	if v, ok := m.(interface{ Validate() error }); ok {
		if err := v.Validate(); err != nil {
			return fmt.Errorf("invalid %s", strings.TrimPrefix(err.Error(), "invalid "))
		}
	}
	c, ok := m.(configured)
	if !ok || c.GetTypedConfig() == nil {
		return nil
	}
	inner, err := c.GetTypedConfig().UnmarshalNew()
	if errors.Is(err, protoregistry.NotFound) {
		return nil // only in a TypedStruct
	}
	if err != nil {
		return err
	}
	return validate(inner)
}
