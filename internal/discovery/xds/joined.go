package xds

import (
	"encoding/hex"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
)

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
