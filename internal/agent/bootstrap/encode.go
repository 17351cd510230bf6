package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// protojson builds descriptors of every file that a message depends on,
// which for Envoy's types takes 4 ms and 2 MB of memory, in every Pod, to write one file. So
// this encoder walks the generated Go structs by the names in their tags. It supports the types that
// bootstraps contain and returns an error for any other; a test compares it with protojson.

// Bootstrap is a built bootstrap.
type Bootstrap struct {
	// Message is the bootstrap. Its Any fields have types but no values before Complete.
	Message *bootstrapv3.Bootstrap
	// Warnings name annotations without effect, one line each, for the log.
	Warnings []string
	// packed are the messages behind the Any fields, inner ones before outer ones.
	packed packer
}

// packer makes Any values, and remembers their messages.
type packer struct {
	order    []*anypb.Any
	messages map[*anypb.Any]proto.Message
}

func (p *packer) pack(m proto.Message) *anypb.Any {
	a := &anypb.Any{TypeUrl: "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())}
	if p.messages == nil {
		p.messages = map[*anypb.Any]proto.Message{}
	}
	p.messages[a] = m
	p.order = append(p.order, a)
	return a
}

// Complete fills in the values of the Any fields, for readers other than Encode, and returns Message. It changes Message, so
func (b *Bootstrap) Complete() (*bootstrapv3.Bootstrap, error) {
	for _, a := range b.packed.order {
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(b.packed.messages[a])
		if err != nil {
			return nil, fmt.Errorf("pack %s: %w", a.GetTypeUrl(), err)
		}
		a.Value = value
	}
	return b.Message, nil
}

// Encode writes the bootstrap as JSON, with equal bytes for equal bootstraps.
func (b *Bootstrap) Encode() ([]byte, error) {
	e := encoder{messages: b.packed.messages}
	if err := e.message(reflect.ValueOf(b.Message), ""); err != nil {
		return nil, fmt.Errorf("encode bootstrap: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, e.out.Bytes(), "", " "); err != nil {
		return nil, fmt.Errorf("encode bootstrap: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

type encoder struct {
	out      bytes.Buffer
	messages map[*anypb.Any]proto.Message
}

// enums are the names of the enumerations that bootstraps use.
var enums = map[reflect.Type]map[int32]string{
	reflect.TypeFor[corev3.ApiVersion]():                                         corev3.ApiVersion_name,
	reflect.TypeFor[corev3.ApiConfigSource_ApiType]():                            corev3.ApiConfigSource_ApiType_name,
	reflect.TypeFor[corev3.RoutingPriority]():                                    corev3.RoutingPriority_name,
	reflect.TypeFor[clusterv3.Cluster_DiscoveryType]():                           clusterv3.Cluster_DiscoveryType_name,
	reflect.TypeFor[clusterv3.Cluster_DnsLookupFamily]():                         clusterv3.Cluster_DnsLookupFamily_name,
	reflect.TypeFor[corev3.SocketAddress_Protocol]():                             corev3.SocketAddress_Protocol_name,
	reflect.TypeFor[tracev3.ZipkinConfig_CollectorEndpointVersion]():             tracev3.ZipkinConfig_CollectorEndpointVersion_name,
	reflect.TypeFor[tlsv3.TlsParameters_TlsProtocol]():                           tlsv3.TlsParameters_TlsProtocol_name,
	reflect.TypeFor[tlsv3.TlsParameters_CompliancePolicy]():                      tlsv3.TlsParameters_CompliancePolicy_name,
	reflect.TypeFor[tlsv3.SubjectAltNameMatcher_SanType]():                       tlsv3.SubjectAltNameMatcher_SanType_name,
	reflect.TypeFor[tlsv3.CertificateValidationContext_TrustChainVerification](): tlsv3.CertificateValidationContext_TrustChainVerification_name,
}

// message writes a generated struct as an object; typeURL is not empty inside an Any.
func (e *encoder) message(ptr reflect.Value, typeURL string) error {
	e.out.WriteByte('{')
	first := true
	member := func(name string) {
		if !first {
			e.out.WriteByte(',')
		}
		first = false
		e.text(name)
		e.out.WriteByte(':')
	}
	if typeURL != "" {
		member("@type")
		e.text(typeURL)
	}
	s := ptr.Elem()
	for i := range s.NumField() {
		field, tag := s.Field(i), s.Type().Field(i).Tag
		if tag.Get("protobuf_oneof") != "" && !field.IsNil() {
			choice := field.Elem().Elem() // the one field of the choice's own struct
			field, tag = choice.Field(0), choice.Type().Field(0).Tag
		} else if empty(field) {
			continue
		}
		name := protoName(tag.Get("protobuf"))
		if name == "" {
			continue
		}
		member(name)
		if err := e.value(field); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	e.out.WriteByte('}')
	return nil
}

// protoName is the field's name in a generated struct tag: "bytes,1,opt,name=id,proto3".
func protoName(tag string) string {
	for part := range strings.SplitSeq(tag, ",") {
		if name, ok := strings.CutPrefix(part, "name="); ok {
			return name
		}
	}
	return ""
}

// empty reports whether proto3 omits the field.
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

func (e *encoder) value(v reflect.Value) error {
	if names, ok := enums[v.Type()]; ok {
		e.text(names[int32(v.Int())])
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		e.text(v.String())
	case reflect.Bool:
		e.out.WriteString(strconv.FormatBool(v.Bool()))
	case reflect.Uint32:
		e.out.WriteString(strconv.FormatUint(v.Uint(), 10))
	case reflect.Int64:
		e.text(strconv.FormatInt(v.Int(), 10))
	case reflect.Float64:
		return e.plain(v.Float())
	case reflect.Slice:
		return e.list(v)
	case reflect.Map:
		return e.mapping(v)
	case reflect.Pointer:
		return e.pointer(v)
	default:
		return fmt.Errorf("unsupported type %s", v.Type())
	}
	return nil
}

func (e *encoder) list(v reflect.Value) error {
	e.out.WriteByte('[')
	for i := range v.Len() {
		if i > 0 {
			e.out.WriteByte(',')
		}
		if err := e.value(v.Index(i)); err != nil {
			return err
		}
	}
	e.out.WriteByte(']')
	return nil
}

func (e *encoder) mapping(v reflect.Value) error {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	e.out.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			e.out.WriteByte(',')
		}
		e.text(k.String())
		e.out.WriteByte(':')
		if err := e.value(v.MapIndex(k)); err != nil {
			return err
		}
	}
	e.out.WriteByte('}')
	return nil
}

// pointer writes a message. Well-known types have their own JSON form.
func (e *encoder) pointer(v reflect.Value) error {
	switch m := v.Interface().(type) {
	case *anypb.Any:
		inner, ok := e.messages[m]
		if !ok {
			return fmt.Errorf("unknown content of Any %s: make it with pack", m.GetTypeUrl())
		}
		return e.message(reflect.ValueOf(inner), m.GetTypeUrl())
	case *durationpb.Duration:
		e.text(seconds(m.AsDuration()))
	case *structpb.Struct:
		return e.plain(m.AsMap())
	case *wrapperspb.BoolValue:
		return e.plain(m.GetValue())
	case *wrapperspb.UInt32Value:
		return e.plain(m.GetValue())
	case proto.Message:
		return e.message(v, "")
	default:
		return fmt.Errorf("unsupported type %s", v.Type())
	}
	return nil
}

// plain writes a value with encoding/json.
func (e *encoder) plain(v any) error {
	enc := json.NewEncoder(&e.out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// text writes a string; encoding one cannot fail.
func (e *encoder) text(s string) { _ = e.plain(s) }

// seconds formats a duration as protojson does: with 0, 3, 6 or 9 fractional digits.
func seconds(d time.Duration) string {
	s := strconv.FormatInt(int64(d/time.Second), 10)
	if rest := d % time.Second; rest != 0 {
		frac := fmt.Sprintf("%09d", rest)
		frac = strings.TrimSuffix(strings.TrimSuffix(frac, "000"), "000")
		s += "." + frac
	}
	return s + "s"
}
