package sds

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The few messages of this service are read and written by field number. Envoy's generated
// types would work too, but a request has the whole node with some hundreds of
// extensions: decoding those, and loading the descriptors, costs every Pod
// megabytes, and next to none of them is used.

// request has the used fields of envoy.service.discovery.v3.DiscoveryRequest.
type request struct {
	names   []string   // resource_names = 3
	typeURL string     // type_url = 4
	nonce   string     // response_nonce = 5
	refused bool       // error_detail = 6 is set
	reason  string     // its message = 2
	client  extensions // of node = 2
}

// deltaRequest has the used fields of envoy.service.discovery.v3.DeltaDiscoveryRequest.
type deltaRequest struct {
	typeURL                string            // type_url = 2
	subscribe, unsubscribe []string          // resource_names_subscribe = 3, resource_names_unsubscribe = 4
	versions               map[string]string // initial_resource_versions = 5
	nonce                  string            // response_nonce = 6
	refused                bool              // error_detail = 7 is set
	reason                 string            // its message = 2
	client                 extensions        // of node = 1
}

// extensions is what a client's node says of the extensions that are compiled into it. The zero value says nothing, as in all requests of a
// stream but the first, and those of clients other than Envoy.
type extensions struct {
	listed       bool
	keyProviders []string
}

// keyProviderCategory is the category of extensions that use private keys.
const keyProviderCategory = "envoy.tls.key_providers"

// lacks reports whether the client says that it cannot use p.
func (e extensions) lacks(p *KeyProvider) bool {
	return e.listed && !slices.Contains(e.keyProviders, p.Name)
}

// read reads a Node, of which only extensions = 9 are used: name = 1 and category = 2 of each.
func (e *extensions) read(node []byte) error {
	return fields(node, func(n protowire.Number, value []byte) error {
		if n != 9 {
			return nil
		}
		var name, category []byte
		err := fields(value, func(n protowire.Number, text []byte) error {
			switch n {
			case 1:
				name = text
			case 2:
				category = text
			}
			return nil
		})
		e.listed = true
		if string(category) == keyProviderCategory && len(name) <= maxName && len(e.keyProviders) < maxNames {
			e.keyProviders = append(e.keyProviders, string(name))
		}
		return err
	})
}

// response is encoded as a DiscoveryResponse or, if delta, as a DeltaDiscoveryResponse.
type response struct {
	delta          bool
	version, nonce string
	resources      []named
	problems       []problem
}

// named is an encoded Secret.
type named struct {
	name, version string
	body          []byte
}

// problem says why a name is not served.
type problem struct{ name, text string }

// decode reads a request and skips unused fields.
func decode(text []byte) (*request, error) {
	r := &request{}
	err := fields(text, func(n protowire.Number, value []byte) error {
		switch n {
		case 2:
			return r.client.read(value)
		case 3:
			return appendName(&r.names, value)
		case 4:
			r.typeURL = string(value)
		case 5:
			r.nonce = string(value)
		case 6:
			r.refused = true
			return readReason(value, &r.reason)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read discovery request: %w", err)
	}
	return r, nil
}

// decodeDelta reads a request of the delta variant and skips unused fields.
func decodeDelta(text []byte) (*deltaRequest, error) {
	r := &deltaRequest{}
	err := fields(text, func(n protowire.Number, value []byte) error {
		switch n {
		case 1:
			return r.client.read(value)
		case 2:
			r.typeURL = string(value)
		case 3:
			return appendName(&r.subscribe, value)
		case 4:
			return appendName(&r.unsubscribe, value)
		case 5:
			return r.readVersion(value)
		case 6:
			r.nonce = string(value)
		case 7:
			r.refused = true
			return readReason(value, &r.reason)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read delta discovery request: %w", err)
	}
	return r, nil
}

// readVersion reads an entry of initial_resource_versions: key = 1, value = 2.
func (r *deltaRequest) readVersion(entry []byte) error {
	if len(r.versions) > maxNames {
		return nil
	}
	var key, value string
	err := fields(entry, func(n protowire.Number, text []byte) error {
		switch n {
		case 1:
			key = string(text)
		case 2:
			value = string(text)
		}
		return nil
	})
	if r.versions == nil {
		r.versions = map[string]string{}
	}
	r.versions[key] = value
	return err
}

// appendName keeps one name more than is allowed, for which the request is rejected.
func appendName(names *[]string, name []byte) error {
	if !utf8.Valid(name) {
		return fmt.Errorf("invalid name %.100q: want UTF-8", name)
	}
	if len(*names) <= maxNames {
		*names = append(*names, string(name))
	}
	return nil
}

// maxReason is the maximum length of a NACK's reason that is kept, in bytes.
const maxReason = 4096

// readReason reads the message of a google.rpc.Status.
func readReason(status []byte, to *string) error {
	return fields(status, func(n protowire.Number, value []byte) error {
		if n == 2 && utf8.Valid(value) {
			*to = string(value[:min(len(value), maxReason)])
		}
		return nil
	})
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

// encode writes the response: version_info = 1, resources = 2, type_url = 4, nonce = 5 and resource_errors = 7; each
// resource an Any of type_url = 1 and value = 2. The delta variant has its resources in a Resource (version = 1,
// resource = 2, name = 3), and removed_resources = 6 and resource_errors = 9.
func (r *response) encode() []byte {
	b := field(nil, 1, []byte(r.version))
	for _, n := range r.resources {
		body := field(field(nil, 1, []byte(TypeURL)), 2, n.body)
		if r.delta {
			body = field(field(field(nil, 1, []byte(n.version)), 2, body), 3, []byte(n.name))
		}
		b = field(b, 2, body)
	}
	b = field(field(b, 4, []byte(TypeURL)), 5, []byte(r.nonce))
	for _, p := range r.problems {
		errors := protowire.Number(7)
		if r.delta {
			b = field(b, 6, []byte(p.name))
			errors = 9
		}
		b = field(b, errors, p.encode())
	}
	return b
}

// encode writes a ResourceError: resource_name = 1 (a ResourceName with name = 1) and error_detail = 2 (a Status
// with code = 1 and message = 2).
func (p problem) encode() []byte {
	status := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(codes.NotFound))
	return field(field(nil, 1, field(nil, 1, []byte(p.name))), 2, field(status, 2, []byte(p.text)))
}

// KeyProvider is an extension of Envoy that uses the private key in its stead. [agent S23]
type KeyProvider struct {
	// Name is "cryptomb" or "qat".
	Name string
	// PollDelay is at least a millisecond.
	PollDelay time.Duration
	// Fallback has Envoy use the key itself if the extension's hardware is missing.
	Fallback bool
}

// keyProviderTypes are the types of the extensions' configurations.
var keyProviderTypes = map[string]string{
	"cryptomb": "type.googleapis.com/envoy.extensions.private_key_providers.cryptomb.v3alpha.CryptoMbPrivateKeyMethodConfig",
	"qat":      "type.googleapis.com/envoy.extensions.private_key_providers.qat.v3alpha.QatPrivateKeyMethodConfig",
}

// encodePair writes envoy.extensions.transport_sockets.tls.v3.Secret: name = 1 and tls_certificate = 2, which
// has certificate_chain = 1 and either private_key = 2 or private_key_provider = 6. [agent D4]
func encodePair(name string, chain, key []byte, provider *KeyProvider) []byte {
	pair := field(nil, 1, inline(chain))
	if provider == nil {
		pair = field(pair, 2, inline(key))
	} else {
		pair = field(pair, 6, provider.encode(key))
	}
	return field(field(nil, 1, []byte(name)), 2, pair)
}

// encode writes a PrivateKeyProvider: provider_name = 1, typed_config = 3 (an Any of private_key = 1 and poll_delay = 2) and
// fallback = 4.
func (p *KeyProvider) encode(key []byte) []byte {
	number := func(b []byte, n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
	}
	delay := number(number(nil, 1, uint64(p.PollDelay/time.Second)), 2, uint64(p.PollDelay%time.Second))
	config := field(field(nil, 1, inline(key)), 2, delay)
	b := field(nil, 1, []byte(p.Name))
	b = field(b, 3, field(field(nil, 1, []byte(keyProviderTypes[p.Name])), 2, config))
	return number(b, 4, protowire.EncodeBool(p.Fallback))
}

// encodeRoots writes a Secret with name = 1 and validation_context = 4, which has trusted_ca = 1 and, if
// there is a revocation list, crl = 7. [agent D5, S21]
func encodeRoots(name string, roots, crl []byte) []byte {
	context := field(nil, 1, inline(roots))
	if len(crl) > 0 {
		context = field(context, 7, inline(crl))
	}
	return field(field(nil, 1, []byte(name)), 4, context)
}

// inline is a DataSource with inline_bytes = 2.
func inline(text []byte) []byte { return field(nil, 2, text) }

func field(b []byte, n protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), value)
}

// codec encodes the messages for gRPC. It has the name of protobuf's codec, because that is
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

// Unmarshal reads into a *request or a *deltaRequest.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch into := v.(type) {
	case *request:
		r, err := decode(data.Materialize())
		if err != nil {
			return err
		}
		*into = *r
	case *deltaRequest:
		r, err := decodeDelta(data.Materialize())
		if err != nil {
			return err
		}
		*into = *r
	default:
		return fmt.Errorf("decode %T: want a *request or a *deltaRequest", v)
	}
	return nil
}
