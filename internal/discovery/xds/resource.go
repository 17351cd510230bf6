package xds

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
)

// Resource is one encoded resource. It is immutable and shared by every view and stream
// that has it; Body must not be changed.
type Resource struct {
	Type Type
	Name string
	// Version is the hex form of 128 bits of the content's SHA-256, the same in every
	// process, so that a proxy's initial versions mean something to a new server. If SeparateHosts
	// is set, it ends with separateHostsMark.
	Version string
	// Body is an encoded google.protobuf.Any, ready for the wire, or the beginning of one, of which joined has the rest.
	Body   []byte
	joined *marshal.Joined
	// Needs is, for a cluster that takes its endpoints from EDS, the name it asks for.
	Needs string
	// Policy is, for the listener of inbound connections, which of them it accepts, and Closed is the
	// same listener without a filter chain that accepts any; nil for other resources.
	Policy *Policy
	Closed *Resource
	// refers are the clusters that an extension configuration, a listener, a route configuration or a virtual host names.
	refers references
	// slow: a cluster that warms for reasons that a server cannot see.
	slow bool
	// frames are what is sent before Body.
	frames wireFrames
	// SeparateHosts is set for a route configuration that takes its virtual hosts from VHDS.
	SeparateHosts bool
}

// NewResource wraps a message, encoded deterministically by the caller, for the wire.
func NewResource(typ Type, name string, value []byte) *Resource {
	body := make([]byte, 0, len(typ.URL())+len(value)+2+2*binary.MaxVarintLen32)
	body = appendBytes(body, 1, typ.URL())
	body = appendBytes(body, 2, string(value))
	return newResource(typ, name, body, len(body)-len(value))
}

// NewEncoded is NewResource for the encoding of a google.protobuf.Any with the type's URL and the
// message, in the order of the fields. It keeps body.
func NewEncoded(typ Type, name string, body []byte) *Resource {
	url, n := binary.Uvarint(body[1:])
	value := 1 + n + int(url) + 1
	_, n = binary.Uvarint(body[value:])
	return newResource(typ, name, body, value+n)
}

// newResource is a resource whose message begins at an index of its body.
func newResource(typ Type, name string, body []byte, value int) *Resource {
	h := sha256.New()
	h.Write([]byte(typ.URL()))
	h.Write(body[value:])
	r := &Resource{Type: typ, Name: name, Version: hex.EncodeToString(h.Sum(nil)[:16]), Body: body}
	if f := typ.info().references; f != nil {
		r.refers = f.referencesIn(body[value:])
	}
	if typ == CDS {
		r.slow = warmsSlowly(body[value:])
	}
	r.frames = framesOf(r)
	return r
}

// refersTo says whether a resource of a type that has references names a cluster, or may. Of what a client only claims to have,
// the content is not known.
func (r *Resource) refersTo(cluster string) bool {
	return r.Body == nil || r.refers.has(cluster)
}

// Policy is which inbound connections a listener accepts. It is immutable.
type Policy struct {
	// Closed: none. Otherwise Ports are those with a mode of their own, and Strict is for all others;
	// a strict port accepts mutual TLS only.
	Closed, Strict bool
	Ports          map[uint32]bool
	// Authorization identifies the rules of who is let in; "" is that everybody is.
	Authorization string
}

// strict says whether a port accepts mutual TLS only.
func (p *Policy) strict(port uint32) bool {
	if strict, ok := p.Ports[port]; ok {
		return strict
	}
	return p.Strict
}

// StricterThan says whether there are connections that o accepts and p does not, or requests that o lets in and p may not:
// of two different sets of rules each may forbid what the other allows.
func (p *Policy) StricterThan(o *Policy) bool {
	if p.Closed || o.Closed {
		return p.Closed && !o.Closed
	}
	for _, ports := range []map[uint32]bool{p.Ports, o.Ports} {
		for port := range ports {
			if p.strict(port) && !o.strict(port) {
				return true
			}
		}
	}
	return p.Strict && !o.Strict || p.Authorization != "" && p.Authorization != o.Authorization
}

// InPlaceOf is what a client that has accepted old is to have in place of a newer version of it that it
// refuses: old, or, where less secure connections would go on being accepted by it, a listener that
// closes all. nil is nothing.
func InPlaceOf(refused, old *Resource) *Resource {
	if refused.Closed == nil || refused.Policy != nil && !refused.Policy.StricterThan(&Policy{}) {
		return old // the refused one lets in everybody
	}
	if old != nil && refused.Policy != nil && old.Policy != nil && !refused.Policy.StricterThan(old.Policy) {
		return old
	}
	if old == nil {
		return nil // it has no listener, which is the strictest
	}
	return refused.Closed
}

// NewCluster is NewResource for a CDS resource whose endpoints come under the EDS name
// needs; with an empty needs the cluster has no EDS.
func NewCluster(name string, value []byte, needs string) *Resource {
	r := NewResource(CDS, name, value)
	r.Needs = needs
	return r
}

// NewEncodedCluster is NewCluster as NewEncoded is NewResource.
func NewEncodedCluster(name string, body []byte, needs string) *Resource {
	r := NewEncoded(CDS, name, body)
	r.Needs = needs
	return r
}

// separateHostsMark is the end of the version of a route configuration that takes its virtual hosts from VHDS: the
// versions that a returning client claims tell whether it has whole ones.
const separateHostsMark = "-vhds"

// NewSeparateRoutes is NewEncoded for an RDS resource that takes its virtual hosts from VHDS.
func NewSeparateRoutes(name string, body []byte) *Resource {
	r := NewEncoded(RDS, name, body)
	r.SeparateHosts = true
	r.Version += separateHostsMark
	r.frames = framesOf(r) // with that version
	return r
}

// appendBytes appends a length-delimited protobuf field with a number below 16.
func appendBytes(b []byte, field byte, v string) []byte {
	b = append(b, field<<3|2)
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

// same says that a client that has a needs no b.
func same(a, b *Resource) bool { return a == b || a.Version == b.Version }

// equal says that a and b may be the same pointer.
func (r *Resource) equal(o *Resource) bool {
	return r.Type == o.Type && r.Name == o.Name && r.Needs == o.Needs && bytes.Equal(r.Body, o.Body) &&
		slices.EqualFunc(r.rest(), o.rest(), bytes.Equal)
}
