// Package saved encodes and decodes the file in which the state folder keeps the last good configuration.
//
// The first line has the format's version and a checksum of the rest: a file of another
// version, a truncated one and a modified one are errors, and nothing of them is used.
// Decoding returns the objects with their keys, metadata and origins. Kinds, fields and other
// records that a later release has added to the format are left out and named, as this release
// would leave them out of its source. Secrets are neither encoded nor decoded. Limits on the file and on each object make it safe to decode any
// input. An Encoder caches encoded objects, so that a change of one object costs the
// encoding of that object.
package saved

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pilothouse/pilothouse/internal/discovery/allocate"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Version is the version of the format. Decode rejects others. A field, kind or record may be added
// without another version if a file without it means what it meant before.
const Version = 1

// Limits on a file and on one of its objects, in bytes.
const (
	MaxBytes  = 32 << 20
	maxObject = 4 << 20
	// MaxKeys bounds all key sets together: those that do not fit are fetched again after a restart.
	MaxKeys = 4 << 20
)

// magic is the start of the first line in all versions.
const magic = "pilothouse-saved-configuration"

// Set is the contents of a file.
type Set struct {
	// Written is when the set was encoded.
	Written time.Time
	// Place is the directory or other place that the source read, as it was configured. The files
	// of the origins are below it.
	Place   string
	Objects []object.Object
	// Allocated are the virtual addresses that were allocated, by key.
	Allocated map[string]allocate.Pair
	// Keys are the key sets that were fetched for RequestAuthentications.
	Keys []KeySet
	// Unknown describes what Decode has left out, because a later release wrote it: each kind and field
	// once, at most maxUnknown.
	Unknown []string
}

// KeySet is a set of public keys that was fetched from a source; Fetched is when.
type KeySet struct {
	jwks.Source
	Keys    string    `json:"keys"`
	Fetched time.Time `json:"fetched"`
}

// maxUnknown limits Set.Unknown.
const maxUnknown = 10

func (s *Set) unknown(what string) {
	if what != "" && len(s.Unknown) < maxUnknown && !slices.Contains(s.Unknown, what) {
		s.Unknown = append(s.Unknown, what)
	}
}

// head is the second line of a file.
type head struct {
	Written time.Time `json:"written"`
	Place   string    `json:"place"`
	Objects int       `json:"objects"`
}

// record is an object, one line of the file. Its fields, and those of the specs in package object,
// are the format: renaming one or changing its meaning requires a new Version. A record without a kind is
// of another type, which this release does not know.
type record struct {
	Kind            object.Kind       `json:"kind,omitempty"`
	Namespace       string            `json:"namespace,omitempty"`
	Name            string            `json:"name,omitempty"`
	Cluster         string            `json:"cluster,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Created         time.Time         `json:"created,omitzero"`
	Generation      int64             `json:"generation,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Origin          object.Origin     `json:"origin,omitzero"`
	Saved           time.Time         `json:"saved,omitzero"`
	// Spec is the spec of a Kubernetes kind, Message that of an Istio kind in protobuf's binary
	// format, which preserves unknown fields.
	Spec    json.RawMessage `json:"spec,omitempty"`
	Message []byte          `json:"message,omitempty"`
	// Addresses are those of the object's status.
	Addresses []object.HostAddress `json:"addresses,omitempty"`
	Healthy   *object.Health       `json:"healthy,omitempty"`
	// Allocated is set in a record that is no object: virtual addresses by the key of their host.
	Allocated map[string][]netip.Addr `json:"allocated,omitempty"`
	// KeySet is set in a record that is no object: keys that were fetched.
	KeySet *KeySet `json:"keySet,omitempty"`
}

// Encoder encodes successive sets. It is not safe for concurrent use.
type Encoder struct {
	// Allocated are the virtual addresses that Encode encodes, too, and Keys the key sets; of these, those that make more than
	// MaxKeys bytes are left out.
	Allocated map[string]allocate.Pair
	Keys      []KeySet

	lines []line // in order of keys
	at    map[object.Key]int
	text  []byte // what was returned last
}

// line is a cached object. There is one copy of its text.
type line struct {
	object *object.Object
	// text is what has been encoded since the last set; nil where the Encoder's text has it.
	text []byte
	// from and size are the place in the Encoder's text, in bytes.
	from, size int
}

// Encode encodes a set. An object with the same address as in the previous call is not encoded
// again. Secrets are omitted. The text must not be changed, and the next call overwrites it. It returns an error if an object
// exceeds 4 MiB or the set MaxBytes.
func (e *Encoder) Encode(written time.Time, place string, objects []*object.Object) ([]byte, error) {
	if err := e.update(objects); err != nil {
		return nil, err
	}
	last, records, err := encodeAllocated(e.Allocated)
	if err != nil {
		return nil, err
	}
	keys, sets, err := encodeKeys(e.Keys)
	if err != nil {
		return nil, err
	}
	last, records = append(last, keys...), records+sets
	size := len(last)
	for i := range e.lines {
		size += e.lines[i].size
	}
	if size > MaxBytes-4096 {
		return nil, fmt.Errorf("encode %d objects: %d bytes, want at most %d", len(e.lines), size, MaxBytes-4096)
	}
	first, err := json.Marshal(head{Written: written.UTC(), Place: place, Objects: len(e.lines) + records})
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	first = append(first, '\n')
	begin := len(header(nil))
	from := begin + len(first)
	e.layOut(from, from+size)
	copy(e.text[begin:], first)
	copy(e.text[from+size-len(last):], last)
	copy(e.text, header(e.text[begin:]))
	return e.text, nil
}

// layOut makes the text size bytes long, with the lines beginning at from. It moves them within the text where that has
// room, since a set of which little changes is encoded again and again.
func (e *Encoder) layOut(from, size int) {
	old := e.text
	if cap(old) < size || cap(old)/2 > size {
		e.text = make([]byte, size, size+size/16)
	}
	e.text = e.text[:size]
	// The lines keep their order. Those that move to the front go first, the frontmost before all others, and then the
	// rest, from the back: so none is overwritten before it has moved.
	at := from
	for i := range e.lines {
		l := &e.lines[i]
		if l.text == nil && at <= l.from {
			copy(e.text[at:], old[l.from:l.from+l.size])
			l.from = at
		}
		at += l.size
	}
	for i := range slices.Backward(e.lines) {
		l := &e.lines[i]
		at -= l.size
		if l.text != nil {
			copy(e.text[at:], l.text)
			l.text = nil
		} else if at > l.from {
			copy(e.text[at:], old[l.from:l.from+l.size])
		}
		l.from = at
	}
}

// allocatedAtOnce is how many addresses one record has, so that no line is too long.
const allocatedAtOnce = 1000

// encodeAllocated returns the records of allocated addresses, and how many there are.
func encodeAllocated(all map[string]allocate.Pair) (text []byte, records int, err error) {
	for keys := range slices.Chunk(slices.Sorted(maps.Keys(all)), allocatedAtOnce) {
		r := record{Allocated: map[string][]netip.Addr{}}
		for _, k := range keys {
			for _, a := range []netip.Addr{all[k].V4, all[k].V6} {
				if a.IsValid() {
					r.Allocated[k] = append(r.Allocated[k], a)
				}
			}
		}
		line, err := json.Marshal(r)
		if err != nil {
			return nil, 0, fmt.Errorf("encode allocated addresses: %w", err)
		}
		text = append(append(text, line...), '\n')
		records++
	}
	return text, records, nil
}

// encodeKeys returns the records of key sets, and how many there are.
func encodeKeys(all []KeySet) (text []byte, records int, err error) {
	for i := range all {
		line, err := json.Marshal(record{KeySet: &all[i]})
		if err != nil {
			return nil, 0, fmt.Errorf("encode keys: %w", err)
		}
		if len(line) < maxObject && len(text)+len(line) < MaxKeys {
			text = append(append(text, line...), '\n')
			records++
		}
	}
	return text, records, nil
}

// addAllocated adds the addresses of a record.
func (s *Set) addAllocated(list map[string][]netip.Addr) {
	if s.Allocated == nil {
		s.Allocated = map[string]allocate.Pair{}
	}
	for k, addresses := range list {
		p := s.Allocated[k]
		for _, a := range addresses {
			switch {
			case allocate.IPv4.Contains(a):
				p.V4 = a
			case allocate.IPv6.Contains(a):
				p.V6 = a
			}
		}
		s.Allocated[k] = p
	}
}

// update makes the lines those of the objects. Where there are other objects than before they are sorted again.
func (e *Encoder) update(objects []*object.Object) error {
	n, known := 0, true
	for _, o := range objects {
		if o.Kind == object.Secret {
			continue
		}
		n++
		i, ok := e.at[o.Key]
		if !ok {
			known = false
			break
		}
		if err := e.lines[i].set(o); err != nil {
			return err
		}
	}
	if known && n == len(e.lines) {
		return nil
	}
	lines := make([]line, 0, len(objects))
	for _, o := range objects {
		if o.Kind == object.Secret {
			continue
		}
		var l line
		if i, ok := e.at[o.Key]; ok {
			l = e.lines[i]
		}
		if err := l.set(o); err != nil {
			return err
		}
		lines = append(lines, l)
	}
	slices.SortFunc(lines, func(a, b line) int {
		x, y := a.object.Key, b.object.Key
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Cluster, y.Cluster))
	})
	e.lines, e.at = lines, make(map[object.Key]int, len(lines))
	for i, l := range lines {
		e.at[l.object.Key] = i
	}
	return nil
}

// set encodes an object unless it is the one that the line has.
func (l *line) set(o *object.Object) error {
	if l.object == o {
		return nil
	}
	text, err := encode(o)
	if err != nil {
		return fmt.Errorf("encode %s: %w", o.Key, err)
	}
	*l = line{object: o, text: text, size: len(text)}
	return nil
}

// header returns the first line of a file with this body.
func header(body []byte) string {
	sum := sha256.Sum256(body)
	return fmt.Sprintf("%s %d sha256:%s\n", magic, Version, hex.EncodeToString(sum[:]))
}

func encode(o *object.Object) ([]byte, error) {
	r := record{
		Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Cluster: o.Cluster, Labels: o.Meta.Labels, Annotations: o.Meta.Annotations,
		Created: o.Meta.Created, Generation: o.Meta.Generation, ResourceVersion: o.Meta.ResourceVersion,
		Origin: o.Origin, Saved: o.Saved, Addresses: o.Addresses, Healthy: o.Healthy,
	}
	var err error
	if m, ok := o.Spec.(proto.Message); ok {
		r.Message, err = marshal.Append(nil, m)
	} else if o.Spec != nil {
		r.Spec, err = json.Marshal(o.Spec)
	}
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if len(text) >= maxObject {
		return nil, fmt.Errorf("%d bytes, want at most %d", len(text), maxObject)
	}
	return append(text, '\n'), nil
}

// Decode decodes a file. On error the Set is empty.
func Decode(text []byte) (Set, error) {
	if len(text) > MaxBytes {
		return Set{}, fmt.Errorf("%d bytes, want at most %d", len(text), MaxBytes)
	}
	first, body, ended := bytes.Cut(text, []byte("\n"))
	words := strings.Fields(string(first[:min(len(first), 200)]))
	switch {
	case !ended || len(words) < 2 || words[0] != magic:
		return Set{}, errors.New("invalid first line: want " + magic)
	case words[1] != fmt.Sprint(Version):
		return Set{}, fmt.Errorf("unsupported version %.20q: want %d", words[1], Version)
	case string(first)+"\n" != header(body):
		return Set{}, errors.New("invalid checksum: the file was truncated or modified")
	}
	first, body, _ = bytes.Cut(body, []byte("\n"))
	var h head
	field, err := decodeJSON(first, &h)
	if err != nil {
		return Set{}, fmt.Errorf("line 2: %w", err)
	}
	set := Set{Written: h.Written, Place: h.Place}
	set.unknown(field)
	seen, lines := map[object.Key]bool{}, 0
	for ; len(body) > 0; lines++ {
		first, body, _ = bytes.Cut(body, []byte("\n"))
		o, known, err := set.object(first)
		if err != nil {
			return Set{}, fmt.Errorf("line %d: %w", lines+3, err)
		}
		if !known {
			continue
		}
		if seen[o.Key] {
			return Set{}, fmt.Errorf("line %d: duplicate %s", lines+3, o.Key)
		}
		seen[o.Key] = true
		set.Objects = append(set.Objects, o)
	}
	if lines != h.Objects {
		return Set{}, fmt.Errorf("%d objects, want %d", lines, h.Objects)
	}
	return set, nil
}

// object decodes an object. known is false for a record that a later release wrote.
func (s *Set) object(text []byte) (o object.Object, known bool, err error) {
	if len(text) > maxObject {
		return o, false, fmt.Errorf("%d bytes, want at most %d", len(text), maxObject)
	}
	var r record
	field, err := decodeJSON(text, &r)
	if err != nil {
		return o, false, err
	}
	if r.Kind == "" && r.Allocated != nil {
		s.unknown(field)
		s.addAllocated(r.Allocated)
		return o, false, nil
	}
	if r.Kind == "" && r.KeySet != nil {
		s.unknown(field)
		s.Keys = append(s.Keys, *r.KeySet)
		return o, false, nil
	}
	if r.Kind == "" {
		s.unknown("a record without a kind")
		return o, false, nil
	}
	o = object.Object{
		Key: object.Key{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name, Cluster: r.Cluster},
		Meta: object.Meta{
			Labels: r.Labels, Annotations: r.Annotations, Created: r.Created,
			Generation: r.Generation, ResourceVersion: r.ResourceVersion,
		},
		Origin: r.Origin, Saved: r.Saved, Addresses: r.Addresses, Healthy: r.Healthy,
	}
	if r.Name == "" || r.Kind == object.Secret {
		return o, false, fmt.Errorf("invalid object %.300q: want a name and a kind that is saved", o.Key.String())
	}
	if !slices.Contains(object.Kinds(), r.Kind) {
		s.unknown(fmt.Sprintf("kind %.100q", r.Kind))
		return o, false, nil
	}
	s.unknown(field)
	if m := decode.NewSpec(r.Kind); m != nil {
		o.Spec, err = m, proto.Unmarshal(r.Message, m)
		if err == nil && hasUnknown(m.ProtoReflect()) {
			s.unknown(fmt.Sprintf("a field of %s", r.Kind))
		}
	} else if spec := newSpec(r.Kind); spec != nil {
		o.Spec = spec
		field, err = decodeJSON(r.Spec, spec)
		s.unknown(field)
	}
	if err != nil {
		return o, false, fmt.Errorf("%.300q: %w", o.Key.String(), err)
	}
	return o, true, nil
}

// hasUnknown reports whether a message, or one in it, has fields that this release does not know.
func hasUnknown(m protoreflect.Message) (found bool) {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				found = hasUnknown(v.Message())
				return !found
			})
		case f.IsMap() || f.Message() == nil:
		case f.IsList():
			for i := 0; i < v.List().Len() && !found; i++ {
				found = hasUnknown(v.List().Get(i).Message())
			}
		default:
			found = hasUnknown(v.Message())
		}
		return !found
	})
	return found
}

// newSpec returns an empty spec of a Kubernetes kind, or nil if the kind has no spec. Decode has
// checked that the kind is known.
func newSpec(k object.Kind) any {
	switch k {
	case object.Node:
		return &object.NodeSpec{}
	case object.Service:
		return &object.ServiceSpec{}
	case object.EndpointSlice:
		return &object.EndpointSliceSpec{}
	case object.Pod:
		return &object.PodSpec{}
	case object.ConfigMap:
		return &object.ConfigMapSpec{}
	case object.IngressClass:
		return &object.IngressClassSpec{}
	case object.Ingress:
		return &object.IngressSpec{}
	case object.Namespace, object.ServiceAccount:
		return nil
	case object.GatewayClass, object.KubernetesGateway, object.ListenerSet, object.HTTPRoute, object.GRPCRoute, object.TLSRoute, object.TCPRoute, object.UDPRoute, object.ReferenceGrant, object.BackendTLSPolicy:
		return decode.GatewaySpec(k)
	}
	panic("saved: unknown kind " + string(k))
}

// decodeJSON decodes one JSON value. It returns the first field that v does not have, "" if there is none.
func decodeJSON(text []byte, v any) (unknown string, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		field, found := strings.CutPrefix(err.Error(), "json: unknown field ")
		if !found {
			return "", err
		}
		return fmt.Sprintf("field %.100s", field), json.Unmarshal(text, v)
	}
	if rest := bytes.TrimSpace(text[d.InputOffset():]); len(rest) > 0 {
		return "", errors.New("unexpected data after the value")
	}
	return "", nil
}
