package xds

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec for everything else
	"google.golang.org/grpc/mem"
)

// response is a Send on its way to the wire.
type response struct {
	Send
	delta bool
	size  int // in bytes; known once it is encoded
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

// maxCopied is the size of the resources of a response, in bytes, up to which they are copied: that costs less than slices of
// what is shared.
const maxCopied = 2048

// maxPooled is the size of what is a stream's own of a response, in bytes, up to which its buffer is reused once it has been
// written. Of the many streams that a change is sent to nearly all have such a response.
const maxPooled = 4096

// own are the buffers of what are streams' own. gRPC does not reuse any that are smaller than a kilobyte.
var own = mem.NewTieredBufferPool(1<<10, 2<<10, maxPooled)

// encode lays the response out as slices, once: what is the stream's own in a buffer, and after it the
// resources' shared bytes, or the copies of few.
func (r *response) encode() mem.BufferSlice {
	copied := r.resourcesSize(maxCopied)
	size := r.headSize() + copied
	pool := own
	if size > maxPooled {
		pool = mem.NopBufferPool{}
	}
	buffer := pool.Get(size)
	head := (*buffer)[:0]
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
	if copied > 0 {
		for _, u := range r.Upserts {
			head = u.appendTo(head, r.delta)
		}
		r.Upserts = nil
	}
	*buffer = head
	out := appendFrames(mem.BufferSlice{mem.NewBuffer(buffer, pool)}, r.Upserts, r.from, r.delta)
	// The list may be of this stream alone, and gRPC keeps the response until there is room in the proxy's window.
	r.Upserts = nil
	r.size = out.Len()
	return out
}

// resourcesSize is how many bytes the resources take in the response, 0 if that is more than most.
func (r *response) resourcesSize(most int) (size int) {
	for _, u := range r.Upserts {
		if size += len(u.frames.of(r.delta)) + u.Size(); size > most {
			return 0
		}
	}
	return size
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

func resourceSize(u *Resource) int {
	return bytesSize(len(u.Name)) + bytesSize(len(u.Version)) + bytesSize(u.Size())
}

// bytesSize is the size of a length-delimited field with a number below 16.
func bytesSize(n int) int {
	size := 2 + n
	for v := n; v >= 0x80; v >>= 7 {
		size++
	}
	return size
}
