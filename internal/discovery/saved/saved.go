// Package saved turns a set of objects into the text of a file that a state folder keeps, and back.
//
// The text begins with a line that holds the format's version and a checksum of all that
// follows: a text of another version, a cut one and one with a changed byte are told as
// such and nothing of them is used. Objects come back as they were, with their keys,
// metadata and origins; Secrets are never written and never read. Where the objects came
// from is of no account here. Any text is safe to decode: it is bounded in bytes, and so
// is each object of it. An Encoder keeps what it encoded, so that a change of one object
// among thousands costs the encoding of one.
package saved

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Version is that of the format. A text of another one is not read.
const Version = 1

// Bounds in bytes, on a whole text and on one object of it.
const (
	MaxBytes  = 32 << 20
	maxObject = 4 << 20
)

// magic begins every text, whatever its version.
const magic = "pilothouse-saved-configuration"

// Set is what is saved.
type Set struct {
	// Written is when the set was written.
	Written time.Time
	// Place is what the files of the origins lie below, as the source named it then.
	Place   string
	Objects []object.Object
}

// head is the second line of a text.
type head struct {
	Written time.Time `json:"written"`
	Place   string    `json:"place"`
	Objects int       `json:"objects"`
}

// record is one object. Its fields and those of the specs in package object are the
// format: one that is renamed, or that means something else, makes another version.
type record struct {
	Kind            object.Kind       `json:"kind"`
	Namespace       string            `json:"namespace,omitempty"`
	Name            string            `json:"name"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Created         time.Time         `json:"created,omitzero"`
	Generation      int64             `json:"generation,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Origin          object.Origin     `json:"origin,omitzero"`
	Saved           time.Time         `json:"saved,omitzero"`
	// Spec holds the spec of one of Kubernetes' own kinds, Message that of an Istio kind
	// in protobuf's binary form, which keeps fields that this program does not know.
	Spec    json.RawMessage `json:"spec,omitempty"`
	Message []byte          `json:"message,omitempty"`
}

// Encoder encodes one set after the other. Not for concurrent use.
type Encoder struct{ lines map[object.Key]line }

// line is an encoded object.
type line struct {
	of   *object.Object
	text []byte
}

// Encode makes the text of a set. Objects are told apart by their addresses: one that is
// the same as in the set before is not encoded again. Secrets are left out. An object of
// more than 4 MiB, or a set of more than MaxBytes, is an error: nothing is left out
// without a word.
func (e *Encoder) Encode(written time.Time, place string, objects []*object.Object) ([]byte, error) {
	lines := make(map[object.Key]line, len(objects))
	size := 0
	for _, o := range objects {
		if o.Kind == object.Secret {
			continue
		}
		l := e.lines[o.Key]
		if l.of != o {
			text, err := encode(o)
			if err != nil {
				return nil, fmt.Errorf("encode %s: %w", o.Key, err)
			}
			l = line{of: o, text: text}
		}
		lines[o.Key] = l
		size += len(l.text)
	}
	e.lines = lines
	if size > MaxBytes-4096 {
		return nil, fmt.Errorf("encode %d objects: %d bytes, at most %d are kept", len(lines), size, MaxBytes-4096)
	}
	first, err := json.Marshal(head{Written: written.UTC(), Place: place, Objects: len(lines)})
	if err != nil {
		return nil, fmt.Errorf("encode configuration: %w", err)
	}
	body := bytes.NewBuffer(make([]byte, 0, size+len(first)+1))
	body.Write(append(first, '\n'))
	for _, k := range sorted(lines) {
		body.Write(lines[k].text)
	}
	return append([]byte(seal(body.Bytes())), body.Bytes()...), nil
}

// seal is the first line of a text with this body.
func seal(body []byte) string {
	sum := sha256.Sum256(body)
	return fmt.Sprintf("%s %d sha256:%s\n", magic, Version, hex.EncodeToString(sum[:]))
}

func sorted(lines map[object.Key]line) []object.Key {
	keys := make([]object.Key, 0, len(lines))
	for k := range lines {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b object.Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return keys
}

func encode(o *object.Object) ([]byte, error) {
	r := record{
		Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Labels: o.Meta.Labels, Annotations: o.Meta.Annotations,
		Created: o.Meta.Created, Generation: o.Meta.Generation, ResourceVersion: o.Meta.ResourceVersion,
		Origin: o.Origin, Saved: o.Saved,
	}
	var err error
	if m, ok := o.Spec.(proto.Message); ok {
		r.Message, err = proto.MarshalOptions{Deterministic: true}.Marshal(m)
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
		return nil, fmt.Errorf("%d bytes, at most %d are kept", len(text), maxObject)
	}
	return append(text, '\n'), nil
}

// Decode reads a text. An error says why nothing of it can be used.
func Decode(text []byte) (Set, error) {
	if len(text) > MaxBytes {
		return Set{}, fmt.Errorf("%d bytes, at most %d are read", len(text), MaxBytes)
	}
	first, body, ended := bytes.Cut(text, []byte("\n"))
	words := strings.Fields(string(first[:min(len(first), 200)]))
	switch {
	case !ended || len(words) < 2 || words[0] != magic:
		return Set{}, errors.New("no saved configuration: its first line is another's")
	case words[1] != fmt.Sprint(Version):
		return Set{}, fmt.Errorf("written in version %.20q of its format; this program reads version %d", words[1], Version)
	case string(first)+"\n" != seal(body):
		return Set{}, errors.New("the checksum is wrong: the file was cut or changed")
	}
	first, body, _ = bytes.Cut(body, []byte("\n"))
	var h head
	if err := strict(first, &h); err != nil {
		return Set{}, fmt.Errorf("line 2: %w", err)
	}
	set := Set{Written: h.Written, Place: h.Place}
	seen := map[object.Key]bool{}
	for n := 3; len(body) > 0; n++ {
		first, body, _ = bytes.Cut(body, []byte("\n"))
		o, err := decodeObject(first)
		if err != nil {
			return Set{}, fmt.Errorf("line %d: %w", n, err)
		}
		if seen[o.Key] {
			return Set{}, fmt.Errorf("line %d: %s is given twice", n, o.Key)
		}
		seen[o.Key] = true
		set.Objects = append(set.Objects, o)
	}
	if len(set.Objects) != h.Objects {
		return Set{}, fmt.Errorf("%d objects, want %d", len(set.Objects), h.Objects)
	}
	return set, nil
}

func decodeObject(text []byte) (object.Object, error) {
	if len(text) > maxObject {
		return object.Object{}, fmt.Errorf("%d bytes, at most %d are read", len(text), maxObject)
	}
	var r record
	if err := strict(text, &r); err != nil {
		return object.Object{}, err
	}
	o := object.Object{
		Key: object.Key{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name},
		Meta: object.Meta{
			Labels: r.Labels, Annotations: r.Annotations, Created: r.Created,
			Generation: r.Generation, ResourceVersion: r.ResourceVersion,
		},
		Origin: r.Origin, Saved: r.Saved,
	}
	if r.Name == "" || !slices.Contains(object.Kinds(), r.Kind) || r.Kind == object.Secret {
		return o, fmt.Errorf("%.300q is no object that is saved", o.Key.String())
	}
	var err error
	if m := decode.NewSpec(r.Kind); m != nil {
		o.Spec, err = m, proto.Unmarshal(r.Message, m)
	} else if spec := newSpec(r.Kind); spec != nil {
		o.Spec, err = spec, strict(r.Spec, spec)
	}
	if err != nil {
		return o, fmt.Errorf("%.300q: %w", o.Key.String(), err)
	}
	return o, nil
}

// newSpec is a fresh spec of one of Kubernetes' own kinds; nil where it has none.
func newSpec(k object.Kind) any {
	switch k {
	case object.Service:
		return &object.ServiceSpec{}
	case object.EndpointSlice:
		return &object.EndpointSliceSpec{}
	case object.Pod:
		return &object.PodSpec{}
	case object.ConfigMap:
		return &object.ConfigMapSpec{}
	}
	return nil
}

// strict decodes one JSON value whose every field is known: one that is not was written
// by a program that gave it a meaning.
func strict(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if rest := bytes.TrimSpace(text[d.InputOffset():]); len(rest) > 0 {
		return errors.New("more than one value")
	}
	return nil
}
