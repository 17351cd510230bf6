package xdsproxy

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// frame is one encoded message. It can be sent once.
type frame struct{ data mem.BufferSlice }

// rawCodec passes frames through unchanged.
type rawCodec struct{}

// Name is the name of protobuf's codec, whose messages the frames are.
func (rawCodec) Name() string { return "proto" }

// Marshal returns a frame's bytes.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("send %T: want a *frame", v)
	}
	return f.data, nil
}

// Unmarshal keeps the bytes.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("receive %T: want a *frame", v)
	}
	data.Ref()
	f.data = data
	return nil
}

// Field numbers of the requests of envoy.service.discovery.v3, state-of-the-world and
// delta, and of google.rpc.Status.
const (
	sotwType, sotwError   = 4, 6
	deltaType, deltaError = 2, 7
	statusMessage         = 2
)

// maxMessage is the maximum length of an error message that is kept, in bytes.
const maxMessage = 4096

// refusal reads a NACK from a request; false if the request is not a NACK or cannot be parsed.
func refusal(data mem.BufferSlice, delta bool) (Nack, bool) {
	var b []byte
	if len(data) == 1 {
		b = data[0].ReadOnlyData()
	} else {
		b = data.Materialize()
	}
	typ, detail := protowire.Number(sotwType), protowire.Number(sotwError)
	if delta {
		typ, detail = deltaType, deltaError
	}
	url, _ := field(b, typ)
	st, ok := field(b, detail)
	if !ok {
		return Nack{}, false
	}
	msg, _ := field(st, statusMessage)
	return Nack{Type: string(url), Message: string(msg[:min(len(msg), maxMessage)])}, true
}

// field returns the last length-delimited field with a number.
func field(b []byte, number protowire.Number) (value []byte, found bool) {
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return nil, false
		}
		b = b[size:]
		if n == number && typ == protowire.BytesType {
			v, size := protowire.ConsumeBytes(b)
			if size < 0 {
				return nil, false
			}
			value, found = v, true
			b = b[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(n, typ, b); size < 0 {
			return nil, false
		}
		b = b[size:]
	}
	return value, found
}
