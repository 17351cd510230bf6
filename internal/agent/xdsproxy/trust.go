package xdsproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Trust gets the trust bundles of the control plane; trust.Store does. An error rejects the bundle.
type Trust interface {
	// SetBundle replaces the bundle: certificates in PEM, and the SHA-256s of those that are of the mesh's CA.
	SetBundle(certificates, own []string) error
}

// listenerType is the type of the first request after which the trust bundle is requested. [agent X5]
const listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"

// maxBundle is the maximum size of a response with a trust bundle in bytes.
const maxBundle = 4 << 20

// upstreamStream is a stream to the control plane, on which Envoy's requests and those of the agent are sent.
type upstreamStream struct {
	grpc.ClientStream
	delta bool

	mu        sync.Mutex // guards SendMsg
	listening bool       // Envoy has asked for listeners
	begun     bool       // the first request was sent, with the addition to its node; nil for none
	addition  *Addition

	end   func() // ends the stream
	epoch string // of its Envoy; empty if it is not known
}

// own returns the types that the agent itself subscribes to.
func (p *Proxy) own() (types []string) {
	if p.config.Names != nil {
		types = append(types, mesh.NameTableType)
	}
	if p.config.Trust != nil {
		types = append(types, mesh.TrustBundleType)
	}
	if p.config.Bootstraps != nil {
		types = append(types, mesh.BootstrapType)
	}
	return types
}

// forward sends a request of Envoy, the first one with the addition to its node. After the first one for listeners it requests the agent's own types, and
// reports the health of the application, if it is known. [agent X5]
func (u *upstreamStream) forward(f *frame, url string, own []string, health func() *Health, capture func() *string, node func() *Addition) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.begin(f, node())
	err := u.SendMsg(f)
	if err != nil || u.listening || url != listenerType {
		return err
	}
	u.listening = true
	for _, typ := range own {
		if err := u.SendMsg(u.request(typ, bundle{}, nil)); err != nil {
			return err
		}
	}
	if h := health(); h != nil {
		if err := u.SendMsg(frameOf(healthReport(*h, u.delta))); err != nil {
			return err
		}
	}
	if text := capture(); text != nil {
		return u.SendMsg(frameOf(captureReport(*text, u.delta)))
	}
	return nil
}

// closeSend tells the control plane that no request follows.
func (u *upstreamStream) closeSend() {
	u.mu.Lock() // CloseSend must not be called together with SendMsg
	defer u.mu.Unlock()
	_ = u.CloseSend()
}

// answer acknowledges a response of one of the agent's own types, or rejects it if problem is not nil.
func (u *upstreamStream) answer(typ string, b bundle, problem error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.SendMsg(u.request(typ, b, problem))
}

// bundle is a response with a trust bundle.
type bundle struct {
	version, nonce    string
	certificates, own []string
}

// Field numbers of requests and responses, in addition to those of a NACK.
const (
	sotwVersion, sotwNonce = 1, 5
	deltaNonce             = 6
	responseVersion        = 1
	responseResources      = 2
	responseType           = 4
	responseNonce          = 5
	resourceBody           = 2 // of a delta Resource: the Any
	anyValue               = 2
	entryKey, entryValue   = 1, 2
	statusCode             = 1
	invalidArgument        = 3
	maxProblem             = 1000 // bytes
)

// request encodes a request for one of the agent's own types, which acknowledges or rejects the response b if that has a nonce.
func (u *upstreamStream) request(url string, b bundle, problem error) *frame {
	version, typ, nonce, detail := protowire.Number(sotwVersion), protowire.Number(sotwType), protowire.Number(sotwNonce), protowire.Number(sotwError)
	if u.delta {
		version, typ, nonce, detail = 0, deltaType, deltaNonce, deltaError
	}
	text := appendField(nil, typ, url)
	if b.nonce != "" {
		text = appendField(text, nonce, b.nonce)
	}
	if version != 0 && b.version != "" && problem == nil {
		text = appendField(text, version, b.version)
	}
	if problem != nil {
		text = appendField(text, detail, string(encodeStatus(invalidArgument, problem.Error())))
	}
	return frameOf(text)
}

func appendField(b []byte, n protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), value)
}

// takeTrust applies and answers a response with a trust bundle; false if it is another response.
func (p *Proxy) takeTrust(up *upstreamStream, data mem.BufferSlice) (bool, error) {
	if p.config.Trust == nil || topType(data, len(mesh.TrustBundleType)) != mesh.TrustBundleType {
		return false, nil
	}
	if size := data.Len(); size > maxBundle {
		return true, fmt.Errorf("trust bundle of %d bytes: want at most %d", size, maxBundle)
	}
	b, err := readBundle(data.Materialize(), up.delta)
	if err == nil {
		err = p.config.Trust.SetBundle(b.certificates, b.own)
	}
	if err != nil {
		p.config.Log.Warn("trust bundle rejected", "reason", err, "version", b.version)
	} else {
		p.config.Log.Info("trust bundle received", "certificates", len(b.certificates), "version", b.version)
	}
	return true, up.answer(mesh.TrustBundleType, b, err)
}

// readBundle reads a response with a trust bundle. Version and nonce are set even if there is an error. [agent X5]
func readBundle(text []byte, delta bool) (bundle, error) {
	b, config, ok := readOwn(text, delta)
	if !ok {
		return b, errors.New("trust bundle: the response has no resource")
	}
	err := eachField(config, func(n protowire.Number, value []byte) {
		switch n {
		case mesh.TrustBundleField:
			b.certificates = append(b.certificates, string(value))
		case mesh.ProxyMetadataField:
			key, _ := field(value, entryKey)
			if own, _ := field(value, entryValue); string(key) == mesh.CARootsKey && len(own) > 0 {
				b.own = strings.Split(string(own), ",")
			}
		}
	})
	return b, err
}

// readOwn reads a response of one of the agent's own types, which has one resource: version and nonce, and the message.
func readOwn(text []byte, delta bool) (b bundle, message []byte, ok bool) {
	version, _ := field(text, responseVersion)
	nonce, _ := field(text, responseNonce)
	b.version, b.nonce = string(version), string(nonce)
	resource, ok := field(text, responseResources)
	if ok && delta {
		resource, ok = field(resource, resourceBody)
	}
	if !ok {
		return b, nil, false
	}
	message, _ = field(resource, anyValue)
	return b, message, true
}

// eachField calls f with each length-delimited field.
func eachField(b []byte, f func(protowire.Number, []byte)) error {
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return fmt.Errorf("trust bundle: %w", protowire.ParseError(size))
		}
		b = b[size:]
		if typ == protowire.BytesType {
			value, size := protowire.ConsumeBytes(b)
			if size < 0 {
				return fmt.Errorf("trust bundle: %w", protowire.ParseError(size))
			}
			f(n, value)
			b = b[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(n, typ, b); size < 0 {
			return fmt.Errorf("trust bundle: %w", protowire.ParseError(size))
		}
		b = b[size:]
	}
	return nil
}

// topType returns the type of a response if it has the given length, without copying the message: responses may have
// many megabytes.
func topType(data mem.BufferSlice, length int) string {
	r := data.Reader()
	defer r.Close()
	for r.Remaining() > 0 {
		tag, err := binary.ReadUvarint(r)
		if err != nil {
			return ""
		}
		n, typ := protowire.DecodeTag(tag)
		skip := uint64(0)
		switch typ {
		case protowire.VarintType:
			if _, err := binary.ReadUvarint(r); err != nil {
				return ""
			}
		case protowire.Fixed32Type:
			skip = 4
		case protowire.Fixed64Type:
			skip = 8
		case protowire.BytesType:
			if skip, err = binary.ReadUvarint(r); err != nil || skip > uint64(r.Remaining()) {
				return ""
			}
		default:
			return ""
		}
		if n == responseType && typ == protowire.BytesType {
			if skip != uint64(length) {
				return ""
			}
			value := make([]byte, length)
			if _, err := io.ReadFull(r, value); err != nil {
				return ""
			}
			return string(value)
		}
		if _, err := r.Discard(int(skip)); err != nil {
			return ""
		}
	}
	return ""
}
