package xds

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec for everything else
	"google.golang.org/grpc/mem"
)

// response is a Send on its way to the wire.
type response struct {
	Send
	delta bool
}

// codec writes responses from the shared bytes of their resources, reads requests with an
// eye on what they would take, and leaves every other message to the ordinary protobuf codec.
type codec struct{ encoding.CodecV2 }

// Codec is what a gRPC server must be given (grpc.ForceServerCodecV2) to serve xDS. The
// server may serve other services too: only this package's messages are special.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*response)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	return r.encode(), nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *response:
		return fmt.Errorf("decode %T: responses are only sent", v)
	case *inbound:
		v.unmarshal(data)
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// Field numbers of envoy.service.discovery.v3.
const (
	fieldVersion   = 1 // version_info, system_version_info
	fieldResources = 2
	fieldTypeURL   = 4
	fieldNonce     = 5
	fieldRemoved   = 6 // delta only

	resourceName    = 3
	resourceAlias   = 4
	resourceVersion = 1
	resourceBody    = 2
)

// wireFrames are a resource as responses have it: shared by all of them, so that a response takes no more than
// pointers for each resource.
type wireFrames struct {
	// delta and sotw are what comes before the body in a response of the protocol.
	delta, sotw, body mem.Buffer
}

// framesOf makes the frames of a resource with a body.
func framesOf(u *Resource) wireFrames {
	const field = 1 + binary.MaxVarintLen32
	head := make([]byte, 0, 4*field+len(u.Name)+len(u.Version))
	head = append(head, fieldResources<<3|2)
	head = binary.AppendUvarint(head, uint64(resourceSize(u)))
	head = appendBytes(head, resourceName, u.Name)
	head = appendBytes(head, resourceVersion, u.Version)
	start := len(head)
	// The body's field has the same number in a response of the state of the world.
	head = append(head, resourceBody<<3|2)
	head = binary.AppendUvarint(head, uint64(len(u.Body)))
	return wireFrames{delta: mem.SliceBuffer(slices.Clip(head)), sotw: mem.SliceBuffer(slices.Clip(head[start:])), body: mem.SliceBuffer(u.Body)}
}

// encode lays the response out as slices: what is the stream's own in a new buffer, and after it the
// resources' shared bytes.
func (r *response) encode() mem.BufferSlice {
	out := make(mem.BufferSlice, 0, 1+2*len(r.Upserts))
	head := make([]byte, 0, r.headSize())
	head = appendBytes(head, fieldVersion, strconv.FormatUint(r.Generation, 10))
	head = appendBytes(head, fieldTypeURL, r.Type.URL())
	head = appendBytes(head, fieldNonce, r.Nonce)
	for _, n := range r.Removed {
		head = appendBytes(head, fieldRemoved, n)
	}
	for _, n := range r.Absent {
		head = append(head, fieldResources<<3|2)
		head = binary.AppendUvarint(head, uint64(2*bytesSize(len(n))))
		head = appendBytes(head, resourceName, n)
		head = appendBytes(head, resourceAlias, n)
	}
	out = append(out, mem.SliceBuffer(head))
	for _, u := range r.Upserts {
		if r.delta {
			out = append(out, u.frames.delta, u.frames.body)
		} else {
			out = append(out, u.frames.sotw, u.frames.body)
		}
	}
	return out
}

// headSize is an upper bound of the bytes that are not shared.
func (r *response) headSize() int {
	const field = 1 + binary.MaxVarintLen32
	n := 20 + len(r.Type.URL()) + len(r.Nonce) + 3*field
	for _, name := range r.Removed {
		n += field + len(name)
	}
	for _, name := range r.Absent {
		n += 3*field + 2*len(name)
	}
	return n
}

// size is the length of the encoded response in bytes.
func (r *response) size() int {
	n := 0
	for _, u := range r.Upserts {
		n += len(u.Body)
	}
	return n
}

func resourceSize(u *Resource) int {
	return bytesSize(len(u.Name)) + bytesSize(len(u.Version)) + bytesSize(len(u.Body))
}

// bytesSize is the size of a length-delimited field with a number below 16.
func bytesSize(n int) int {
	size := 2 + n
	for v := n; v >= 0x80; v >>= 7 {
		size++
	}
	return size
}
