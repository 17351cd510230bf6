package xds

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"slices"
	"time"

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

// Common is what resources of a type have in common, of which they are made.
type Common struct {
	typ    Type
	refers references
}

// NewCommon reads what fields of an encoded message name.
func NewCommon(typ Type, fields [][]byte) *Common {
	return &Common{typ, referencesOf(typ, fields)}
}

// NewJoined is [NewEncoded] for what is made of c. Its version is of j.Sum.
func (c *Common) NewJoined(name string, j *marshal.Joined) *Resource {
	r := &Resource{Type: c.typ, Name: name, Version: hex.EncodeToString(j.Sum[:]), Body: j.Head, joined: j, refers: c.refers}
	// Reading all of it takes long. Mostly it names in place of some fields what these name.
	if own := referencesOf(c.typ, j.Own); own.unknown || own.joined != referencesOf(c.typ, j.Replaced).joined {
		r.refers = referencesOf(c.typ, j.Rest)
	}
	r.frames = framesOf(r)
	return r
}

// referencesOf reads which clusters fields of an encoded message of a type name.
func referencesOf(typ Type, fields [][]byte) references {
	f := typ.info().references
	if f == nil {
		return references{}
	}
	return f.referencesIn(fields...)
}

// Size is the size of the encoding, in bytes.
func (r *Resource) Size() int {
	if r.joined != nil {
		return r.joined.Size()
	}
	return len(r.Body)
}

// OwnSize is Size without what other resources have, too.
func (r *Resource) OwnSize() int {
	if r.joined != nil {
		return r.joined.OwnSize()
	}
	return len(r.Body)
}

// Encoded is the encoding in one piece. It must not be changed.
func (r *Resource) Encoded() []byte {
	if r.joined != nil {
		return r.joined.Bytes()
	}
	return r.Body
}

// rest is what of the encoding comes after Body.
func (r *Resource) rest() [][]byte {
	if r.joined != nil {
		return r.joined.Rest
	}
	return nil
}

// appendTo appends the frame and the encoding to b.
func (r *Resource) appendTo(b []byte, delta bool) []byte {
	b = append(append(b, r.frames.of(delta)...), r.Body...)
	for _, part := range r.rest() {
		b = append(b, part...)
	}
	return b
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

// NumLayers is how many layers a View has.
const NumLayers = 3

// View is everything that proxies of one class shall have: the resources of all its layers, which
// it shares with the views of other classes. No two layers have a resource of one type and name.
// It is immutable.
type View struct {
	// Generation grows with every view of a class.
	Generation uint64
	// Layers have the same places in all views of a class, so that they can be compared; nil is an
	// empty one.
	Layers [NumLayers]*Layer
	// Quarantined are the resources that proxies of the class have refused: the view has their last
	// accepted versions, or nothing. A proxy that has a version of one of these goes on with it.
	Quarantined []Quarantined
	// Names are what agents resolve; nil for nothing.
	Names *NameTable
	// Barrier is what has to wait for policies; nil for nothing.
	Barrier *Barrier
}

// Quarantined names a resource that proxies of a class have refused. Gone says that none of them is
// known to have accepted any version of it.
type Quarantined struct {
	Type Type
	Name string
	Gone bool
	// After is the newest generation of which proxies of the class have accepted the type, so that what they
	// have in place of the resource has all changes up to it. Since is when it was quarantined, Message what a
	// proxy said of it.
	After   uint64
	Since   time.Time
	Message string
}

// keeps says whether clients go on with what they have of a resource that the view has not.
func (v *View) keeps(r *Resource, t Type) bool {
	return slices.ContainsFunc(v.Quarantined, func(q Quarantined) bool { return q.Gone && q.Type == t && q.Name == r.Name })
}

// Of is the view's resources of a type.
func (v *View) Of(t Type) TypeView {
	var out TypeView
	for i, l := range v.Layers {
		out.parts[i] = l.of(t)
	}
	return out
}

// TypeView is an immutable set of resources of one type. Equal values are equal sets. The zero
// TypeView is empty.
type TypeView struct {
	// parts are of a view's layers in their order, and last what is of no layer: what a client
	// has that its view has not. No two have the same name.
	parts [NumLayers + 1]*set
}

// unlayered is the index of the part that is of no layer.
const unlayered = NumLayers

// newTypeView is a set of resources that are of no layer.
func newTypeView(resources []*Resource) (v TypeView) {
	v.parts[unlayered] = (*set)(nil).with(resources, nil)
	return v
}

// and is the set with others, of whose names it has none; they are in order of their names.
func (v TypeView) and(others []*Resource) TypeView {
	if len(others) > 0 {
		v.parts[unlayered] = v.parts[unlayered].with(others, nil)
	}
	return v
}

// isLayered says whether the set has of each layer what another has.
func (v TypeView) isLayered(o TypeView) bool {
	v.parts[unlayered], o.parts[unlayered] = nil, nil
	return v == o
}

// Len is the number of resources.
func (v TypeView) Len() (n int) {
	for _, p := range v.parts {
		n += p.len()
	}
	return n
}

// Get is the resource of that name, or nil.
func (v TypeView) Get(name string) *Resource {
	for _, p := range v.parts {
		if r := p.get(name); r != nil {
			return r
		}
	}
	return nil
}

// All ranges over the resources in order of their names.
func (v TypeView) All() iter.Seq[*Resource] {
	return func(yield func(*Resource) bool) {
		rest := v.starts()
		for {
			first := -1
			for i := range rest {
				if r := rest[i].head(); r != nil && (first < 0 || r.Name < rest[first].head().Name) {
					first = i
				}
			}
			if first < 0 || !yield(rest[first].head()) {
				return
			}
			rest[first].next()
		}
	}
}

// starts are the places of the first resource of each part.
func (v TypeView) starts() (out [NumLayers + 1]cursor) {
	for i, p := range v.parts {
		out[i] = p.start()
	}
	return out
}

// framed are the places of the first resources of the sets whose chunks are sent.
func (v TypeView) framed() (out [NumLayers + 1]cursor) {
	for i, p := range v.parts {
		if p != nil && p.base != nil {
			p = p.base
		}
		out[i] = p.start()
	}
	return out
}

// list is the resources in order of their names; it must not be changed.
func (v TypeView) list() (out []*Resource) {
	for _, p := range v.parts {
		out = mergeLists(out, p.all())
	}
	return out
}

// lists are the resources of each part.
func (v TypeView) lists() (out resourceLists) {
	for i, p := range v.parts {
		out[i] = p.all()
	}
	return out
}

// resourceLists are resources in several lists, each in order of names; no two have the same name. The lists are shared,
// and must not be changed. A place of a resource counts through all lists, one after the other.
type resourceLists [NumLayers + 1][]*Resource

func (l *resourceLists) len() (n int) {
	for _, list := range l {
		n += len(list)
	}
	return n
}

// at is the resource at a place.
func (l *resourceLists) at(place int) *Resource {
	for _, list := range l {
		if place < len(list) {
			return list[place]
		}
		place -= len(list)
	}
	return nil
}

// find is the place of the resource of that name; false if there is none.
func (l *resourceLists) find(name string) (place int, ok bool) {
	before := 0
	for _, list := range l {
		if i, ok := slices.BinarySearchFunc(list, name, byName); ok {
			return before + i, true
		}
		before += len(list)
	}
	return 0, false
}

// all ranges over the resources with their places.
func (l *resourceLists) all() iter.Seq2[int, *Resource] {
	return func(yield func(int, *Resource) bool) {
		place := 0
		for _, list := range l {
			for _, r := range list {
				if !yield(place, r) {
					return
				}
				place++
			}
		}
	}
}

// only is the resources that a function keeps. It leaves the lists as they are.
func (l *resourceLists) only(keeps func(*Resource) bool) (out resourceLists) {
	for part, list := range l {
		if slices.ContainsFunc(list, func(r *Resource) bool { return !keeps(r) }) {
			list = slices.DeleteFunc(slices.Clone(list), func(r *Resource) bool { return !keeps(r) })
		}
		out[part] = list
	}
	return out
}

// Delta is the difference between two sets of resources. Its lists are in order of names, and may
// be shared.
type Delta struct {
	// Upserts are the resources that the old set lacks or has in another version.
	Upserts []*Resource
	// Removed are the old set's resources that the new one lacks.
	Removed []*Resource
}

// step is the difference between two sets of one layer.
type step struct{ upserts, removed []*Resource }

// diff compares two sets, layer by layer; between compares those of one layer.
func diff(old, cur TypeView, between func(old, cur *set) step) *Delta {
	d := &Delta{}
	for i, part := range cur.parts {
		if old.parts[i] == part {
			continue
		}
		s := between(old.parts[i], part)
		d.Upserts, d.Removed = mergeLists(d.Upserts, s.upserts), mergeLists(d.Removed, s.removed)
	}
	d.Upserts, d.Removed = withoutMoves(d.Upserts, d.Removed)
	return d
}

// mergeLists is two lists without common names as one, in order of names. It leaves both as they are.
func mergeLists(a, b []*Resource) []*Resource {
	if len(a) < len(b) {
		a, b = b, a
	}
	if len(b) == 0 {
		return a
	}
	out := make([]*Resource, 0, len(a)+len(b))
	for _, r := range b {
		i, _ := slices.BinarySearchFunc(a, r.Name, byName)
		out = append(append(out, a[:i]...), r)
		a = a[i:]
	}
	return append(out, a...)
}

// withoutMoves leaves out of both lists what is in both in the same version, because it has only
// moved from one layer to another, and out of removed what is in both in different versions.
func withoutMoves(upserts, removed []*Resource) (up, gone []*Resource) {
	if len(upserts) == 0 || len(removed) == 0 {
		return upserts, removed
	}
	up = make([]*Resource, 0, len(upserts))
	for _, r := range removed {
		i, found := slices.BinarySearchFunc(upserts, r.Name, byName)
		up, upserts = append(up, upserts[:i]...), upserts[i:]
		switch {
		case !found:
			gone = append(gone, r)
		case same(r, upserts[0]):
			upserts = upserts[1:]
		}
	}
	return append(up, upserts...), gone
}
