package compile

import (
	"bytes"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/incr"
)

// Body is a resource, an encoded google.protobuf.Any. The zero value is none. It is immutable.
type Body struct {
	// Bytes is the encoding; nil if Joined is set.
	Bytes  []byte
	Joined *marshal.Joined
}

// Equal reports whether two bodies have the same encoding, whatever the parts are.
func (b Body) Equal(o Body) bool {
	if b.Joined == nil || o.Joined == nil {
		return b.Joined == o.Joined && bytes.Equal(b.Bytes, o.Bytes)
	}
	return b.Joined.Sum == o.Joined.Sum
}

// None reports whether there is no resource.
func (b Body) None() bool { return b.Bytes == nil && b.Joined == nil }

// Encoded returns the encoding in one piece, nil if there is no resource.
func (b Body) Encoded() []byte {
	if b.Joined != nil {
		return b.Joined.Bytes()
	}
	return b.Bytes
}

// whole returns a resource that was encoded in one piece, nil for none.
func whole(b []byte) Body { return Body{Bytes: b} }

// inOnePiece returns the rule of a kind whose resources are encoded in one piece.
func inOnePiece(rule func(*Compiler, *incr.Reader, Key) []byte) func(*Compiler, *incr.Reader, Key) Body {
	return func(c *Compiler, r *incr.Reader, k Key) Body { return whole(rule(c, r, k)) }
}
