package sds

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// The few messages of this service are read and written by field number. Envoy's generated
// types would work too, but a request has the whole node with some hundreds of
// extensions: decoding those, and loading the descriptors, costs every Pod
// megabytes, and none of them is used.

// request has the used fields of envoy.service.discovery.v3.DiscoveryRequest.
type request struct {
	names   []string // resource_names = 3
	typeURL string   // type_url = 4
	nonce   string   // response_nonce = 5
	refused bool     // error_detail = 6 is set
	reason  string   // its message = 2
}

// response is encoded as a DiscoveryResponse.
type response struct {
	version, nonce string
	resources      [][]byte // encoded Secrets
}

// decode reads a request and skips unused fields.
func decode(text []byte) (*request, error) {
	r := &request{}
	err := fields(text, func(n protowire.Number, value []byte) error {
		switch n {
		case 3:
			if len(r.names) > maxNames {
				return nil // stream.request rejects it: no need to keep more
			}
			r.names = append(r.names, string(value))
		case 4:
			r.typeURL = string(value)
		case 5:
			r.nonce = string(value)
		case 6:
			r.refused = true
			return fields(value, func(n protowire.Number, value []byte) error {
				if n == 2 && utf8.Valid(value) {
					r.reason = string(value)
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read discovery request: %w", err)
	}
	return r, nil
}

// fields calls f with every length-delimited field of a message, in order.
func fields(text []byte, f func(protowire.Number, []byte) error) error {
	for len(text) > 0 {
		num, kind, n := protowire.ConsumeTag(text)
		if n < 0 {
			return protowire.ParseError(n)
		}
		text = text[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, kind, text); n < 0 {
				return protowire.ParseError(n)
			}
			text = text[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(text)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := f(num, value); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// encode writes the response: version_info = 1, resources = 2, type_url = 4, nonce = 5;
// each resource an Any of type_url = 1 and value = 2.
func (r *response) encode() []byte {
	b := field(nil, 1, []byte(r.version))
	for _, body := range r.resources {
		b = field(b, 2, field(field(nil, 1, []byte(TypeURL)), 2, body))
	}
	return field(field(b, 4, []byte(TypeURL)), 5, []byte(r.nonce))
}

// encodeSecret writes envoy.extensions.transport_sockets.tls.v3.Secret: name = 1 and
// either tls_certificate = 2 (certificate_chain = 1, private_key = 2) or
// validation_context = 4 (trusted_ca = 1). [agent D4, D5]
func encodeSecret(secret *pki.Secret, name string) []byte {
	b := field(nil, 1, []byte(name))
	if isPair(name) {
		return field(b, 2, field(field(nil, 1, inline(secret.Chain)), 2, inline(secret.Key)))
	}
	return field(b, 4, field(nil, 1, inline(secret.Roots)))
}

// inline is a DataSource with inline_bytes = 2.
func inline(text []byte) []byte { return field(nil, 2, text) }

func field(b []byte, n protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), value)
}

// codec encodes the two messages for gRPC. It has the name of protobuf's codec, because that is
// the encoding.
type codec struct{}

// Name is the codec's content subtype.
func (codec) Name() string { return "proto" }

// Marshal writes a *response.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*response)
	if !ok {
		return nil, fmt.Errorf("encode %T: want a *response", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(r.encode())}, nil
}

// Unmarshal reads into a *request.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	into, ok := v.(*request)
	if !ok {
		return fmt.Errorf("decode %T: want a *request", v)
	}
	r, err := decode(data.Materialize())
	if err != nil {
		return err
	}
	*into = *r
	return nil
}
