package e2e_test

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// rawMessage is a message of a service whose messages are not compiled in: its fields by number.
type rawMessage map[protowire.Number][]any

// parseRaw parses an encoded message: numbers as uint64, everything else as bytes.
func parseRaw(b []byte) (rawMessage, error) {
	out := rawMessage{}
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		b = b[size:]
		var value any
		switch typ {
		case protowire.VarintType:
			value, size = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			value, size = protowire.ConsumeBytes(b)
		default:
			return nil, fmt.Errorf("field %d has type %d, want a number or bytes", n, typ)
		}
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		out[n], b = append(out[n], value), b[size:]
	}
	return out, nil
}

func (m rawMessage) text(n protowire.Number) string {
	for _, v := range m[n] {
		if b, ok := v.([]byte); ok {
			return string(b)
		}
	}
	return ""
}

func (m rawMessage) all(n protowire.Number) (out []rawMessage, err error) {
	for _, v := range m[n] {
		b, ok := v.([]byte)
		if !ok {
			return nil, fmt.Errorf("field %d is no message", n)
		}
		one, err := parseRaw(b)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// segments takes spans in SkyWalking's gRPC: the request's way in one proxy is a segment, of which the first span says where it is from.
var segments = grpc.ServiceDesc{
	ServiceName: "skywalking.v3.TraceSegmentReportService", HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{StreamName: "collect", ClientStreams: true, Handler: func(s any, stream grpc.ServerStream) error {
		for {
			m := &emptypb.Empty{} // keeps what it does not know
			switch err := stream.RecvMsg(m); {
			case errors.Is(err, io.EOF):
				return stream.SendMsg(&emptypb.Empty{})
			case err != nil:
				return err
			}
			one, err := segmentOf(m.ProtoReflect().GetUnknown())
			if err != nil {
				return err
			}
			s.(*spans).add(one)
		}
	}}},
}

// segmentOf is a SegmentObject as one span.
func segmentOf(b []byte) (out span, err error) {
	segment, err := parseRaw(b)
	if err != nil {
		return out, err
	}
	out = span{Trace: segment.text(1), ID: segment.text(2), Service: segment.text(4), Tags: map[string]string{}}
	list, err := segment.all(3)
	if err != nil || len(list) == 0 {
		return out, errors.Join(err, fmt.Errorf("segment %s has %d spans", out.ID, len(list)))
	}
	for _, one := range list {
		refs, refsErr := one.all(5)
		tags, tagsErr := one.all(12)
		if err := errors.Join(refsErr, tagsErr); err != nil {
			return out, err
		}
		for _, r := range refs {
			out.Parent = r.text(3)
		}
		for _, t := range tags {
			out.Tags[t.text(1)] = t.text(2)
		}
	}
	return out, nil
}

// wayByService checks who has sent the spans of a request's way, where spans do not say which side they are.
func wayByService(list []span) error {
	for i, want := range []string{"ingress-1.istio-system", "server.tokens", "server.tokens", "canary.tokens"} {
		if list[i].Service != want {
			return fmt.Errorf("span %d is of %q, want %q", i, list[i].Service, want)
		}
	}
	return nil
}

// TestTracesOfSkyWalking has the segments of a request's way be one trace at a collector of SkyWalking.
func TestTracesOfSkyWalking(t *testing.T) {
	t.Parallel() // it waits most of the time
	x := startTracing(t, "    - {name: sky, skywalking: {service: collector.tokens.svc.cluster.local, port: 4317, accessToken: key}}\n", func(*meshup.Options) {})
	x.collect(t, &segments)
	x.put(t, "[{providers: [{name: sky}], randomSamplingPercentage: 100, customTags: {lit: {literal: {value: a}}}}]")
	x.awaitChain(t, "all proxies send segments", nil, func(h http.Header) string {
		parts := strings.Split(h.Get("Sw8"), "-")
		if len(parts) < 2 {
			return ""
		}
		id, err := base64.StdEncoding.DecodeString(parts[1])
		if err != nil {
			t.Errorf("sw8: %q: %v", h.Get("Sw8"), err)
		}
		return string(id)
	}, func(list []span) error {
		if err := wayByService(list); err != nil {
			return err
		}
		return hasTags(list[1], map[string]string{"lit": "a", "istio.namespace": "tokens", "istio.canonical_service": "server-of-all"})
	})
}

// unpack parses one value of MessagePack: maps as map[string]any, lists as []any, integers as uint64.
func unpack(b []byte) (value any, rest []byte, err error) {
	short := errors.New("MessagePack ends early")
	take := func(n int) (uint64, error) {
		if len(b) < n {
			return 0, short
		}
		var padded [8]byte
		copy(padded[8-n:], b[:n])
		b = b[n:]
		return binary.BigEndian.Uint64(padded[:]), nil
	}
	kind, err := take(1)
	if err != nil {
		return nil, nil, err
	}
	text, list, fields, size := false, false, false, 0
	var n uint64
	switch c := byte(kind); {
	case c < 0x80 || c >= 0xe0:
		return uint64(int64(int8(c))), b, nil
	case c < 0x90:
		fields, n = true, uint64(c&0x0f)
	case c < 0xa0:
		list, n = true, uint64(c&0x0f)
	case c < 0xc0:
		text, n = true, uint64(c&0x1f)
	case c == 0xc0, c == 0xc2, c == 0xc3:
		return c == 0xc3, b, nil
	case c == 0xca, c == 0xcb:
		n, err = take(4 << (c - 0xca))
		if c == 0xca {
			return float64(math.Float32frombits(uint32(n))), b, err
		}
		return math.Float64frombits(n), b, err
	case c >= 0xcc && c <= 0xcf:
		n, err = take(1 << (c - 0xcc))
		return n, b, err
	case c >= 0xd0 && c <= 0xd3:
		n, err = take(1 << (c - 0xd0))
		return n, b, err
	case c >= 0xc4 && c <= 0xc6:
		text, size = true, 1<<(c-0xc4)
	case c >= 0xd9 && c <= 0xdb:
		text, size = true, 1<<(c-0xd9)
	case c == 0xdc, c == 0xdd:
		list, size = true, 2<<(c-0xdc)
	case c == 0xde, c == 0xdf:
		fields, size = true, 2<<(c-0xde)
	default:
		return nil, nil, fmt.Errorf("MessagePack of kind %#x", c)
	}
	if size > 0 {
		if n, err = take(size); err != nil {
			return nil, nil, err
		}
	}
	if n > uint64(len(b)) {
		return nil, nil, short
	}
	switch {
	case text:
		return string(b[:n]), b[n:], nil
	case list:
		out := []any{}
		for range n {
			if value, b, err = unpack(b); err != nil {
				return nil, nil, err
			}
			out = append(out, value)
		}
		return out, b, nil
	case fields:
		out := map[string]any{}
		for range n {
			var key any
			if key, b, err = unpack(b); err != nil {
				return nil, nil, err
			}
			if value, b, err = unpack(b); err != nil {
				return nil, nil, err
			}
			out[fmt.Sprint(key)] = value
		}
		return out, b, nil
	}
	return nil, nil, short
}

// datadog takes spans as Datadog's agent does.
func (s *spans) datadog(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var all any
	if err == nil {
		all, _, err = unpack(body)
	}
	traces, ok := all.([]any)
	if err != nil || !ok {
		http.Error(w, fmt.Sprint(r.Method, err), http.StatusBadRequest)
		return
	}
	id := func(v any) string {
		if n, _ := v.(uint64); n != 0 {
			return strconv.FormatUint(n, 10)
		}
		return ""
	}
	for _, trace := range traces {
		list, _ := trace.([]any)
		for _, one := range list {
			f, _ := one.(map[string]any)
			meta, _ := f["meta"].(map[string]any)
			out := span{Trace: id(f["trace_id"]), ID: id(f["span_id"]), Parent: id(f["parent_id"]), Service: fmt.Sprint(f["service"]), Tags: map[string]string{}}
			for k, v := range meta {
				out.Tags[k] = fmt.Sprint(v)
			}
			s.add(out)
		}
	}
	fmt.Fprint(w, `{"rate_by_service": {}}`)
}

// TestTracesOfDatadog has the spans of a request's way be one trace at Datadog's agent.
func TestTracesOfDatadog(t *testing.T) {
	t.Parallel() // it waits most of the time
	x := startTracing(t, "    - {name: dog, datadog: {service: collector.tokens.svc.cluster.local, port: 9411}}\n", func(*meshup.Options) {})
	x.put(t, "[{providers: [{name: dog}], randomSamplingPercentage: 100, customTags: {lit: {literal: {value: a}}}}]")
	x.awaitChain(t, "all proxies send spans", nil, func(h http.Header) string { return h.Get("X-Datadog-Trace-Id") }, func(list []span) error {
		if err := wayByService(list); err != nil {
			return err
		}
		return hasTags(list[1], map[string]string{"lit": "a", "istio.namespace": "tokens", "istio.canonical_service": "server-of-all"})
	})
}
