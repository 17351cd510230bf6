// Package marshal encodes protobuf messages: one way for all of the control plane, so that equal messages have equal bytes.
//
// A message fails to encode where a string in it is not UTF-8. Sources and node metadata refuse
// such strings, so a message that the control plane has built itself encodes; the functions
// whose names begin with Must panic if one does not, with the message's name.
package marshal

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// TypeURLPrefix is what type URLs consist of before the message's full name.
const TypeURLPrefix = "type.googleapis.com/"

// Append appends the deterministic encoding of m to b.
func Append(b []byte, m proto.Message) ([]byte, error) {
	out, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, m)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	return out, nil
}

// MustAppend is Append for messages that encode.
func MustAppend(b []byte, m proto.Message) []byte {
	out, err := Append(b, m)
	if err != nil {
		panic(err.Error())
	}
	return out
}

// Must is the deterministic encoding of a message that encodes.
func Must(m proto.Message) []byte { return MustAppend(nil, m) }

// MustAny is an Any with the deterministic encoding of a message that encodes.
func MustAny(m proto.Message) *anypb.Any { return &anypb.Any{TypeUrl: TypeURL(m), Value: Must(m)} }

// MustEncodedAny is the encoding of MustAny, made at once; it has a value field even if m is empty.
func MustEncodedAny(m proto.Message) []byte { return MustContinuedAny(nil, m) }

// MustContinuedAny is MustEncodedAny of the message of which head is the beginning, encoded, and m the rest: fields with
// higher numbers than those in head, or further elements of the last, repeated one. What is one of several fields is encoded last,
// whatever its number.
func MustContinuedAny(head []byte, m proto.Message) []byte {
	options := proto.MarshalOptions{Deterministic: true}
	size := options.Size(m)
	out := append(anyHeader(string(m.ProtoReflect().Descriptor().FullName()), len(head)+size, len(head)+size), head...)
	options.UseCachedSize = true
	out, err := options.MarshalAppend(out, m)
	if err != nil {
		panic(fmt.Sprintf("encode %s: %s", m.ProtoReflect().Descriptor().FullName(), err))
	}
	return out
}

// EncodedAny is the encoding of an Any with an encoded message of the same type as m, which may be a nil
// pointer.
func EncodedAny(m proto.Message, value []byte) []byte {
	return append(anyHeader(string(m.ProtoReflect().Descriptor().FullName()), len(value), len(value)), value...)
}

// The fields of google.protobuf.Any.
const (
	typeURLField = 1
	valueField   = 2
)

// anyHeader is the encoding of an Any up to its value, of a size, with room for as much of that as is said.
func anyHeader(name string, size, room int) []byte {
	url := len(TypeURLPrefix) + len(name)
	out := make([]byte, 0, 2+protowire.SizeBytes(url)+protowire.SizeVarint(uint64(size))+room)
	out = protowire.AppendTag(out, typeURLField, protowire.BytesType)
	out = protowire.AppendVarint(out, uint64(url))
	out = append(append(out, TypeURLPrefix...), name...)
	out = protowire.AppendTag(out, valueField, protowire.BytesType)
	return protowire.AppendVarint(out, uint64(size))
}

// TypeURL is the type URL of a message's type; m may be a nil pointer of it.
func TypeURL(m proto.Message) string {
	return TypeURLPrefix + string(m.ProtoReflect().Descriptor().FullName())
}
