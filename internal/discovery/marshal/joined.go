package marshal

import (
	"slices"

	"google.golang.org/protobuf/proto"
)

// Joined is the encoding of an Any in parts, most of which it has in common with others. It is immutable.
type Joined struct {
	// Sum identifies the content: equal sums are equal messages of one type.
	Sum [16]byte
	// Head is the beginning of the encoding, and Rest what comes after it. Each element of Rest has whole fields of the message.
	Head []byte
	Rest [][]byte
	// Common has the fields that it is made of, Replaced those of them that it lacks, and Own those that it has in place of them.
	Common, Replaced, Own [][]byte
}

// NewJoined is the encoding of an Any with the message of which frame is the beginning, and j.Rest the rest, as in [MustContinuedAny].
// It fills in j.Head, and keeps j.
func NewJoined(frame proto.Message, j Joined) *Joined {
	size := proto.Size(frame)
	for _, part := range j.Rest {
		size += len(part)
	}
	j.Head = MustAppend(anyHeader(string(frame.ProtoReflect().Descriptor().FullName()), size, proto.Size(frame)), frame)
	return &j
}

// Size is that of the encoding, in bytes.
func (j *Joined) Size() int {
	size := len(j.Head)
	for _, part := range j.Rest {
		size += len(part)
	}
	return size
}

// OwnSize is the size of what it does not have in common with others, in bytes: all of it if it is what others are made of.
func (j *Joined) OwnSize() int {
	if len(j.Replaced)+len(j.Own) == 0 {
		return j.Size()
	}
	size := len(j.Head)
	for _, part := range j.Own {
		size += len(part)
	}
	return size
}

// Bytes is the encoding in one piece, which is made each time.
func (j *Joined) Bytes() []byte { return slices.Concat(j.Head, slices.Concat(j.Rest...)) }
