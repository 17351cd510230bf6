package xds

import (
	"encoding/binary"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/mem"
)

// wireFrames are what comes before a resource's body in responses, which all of them share.
type wireFrames struct {
	head []byte // in a delta response
	sotw int    // where in head that of a response of the state of the world begins
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
	head = binary.AppendUvarint(head, uint64(u.Size()))
	return wireFrames{head: slices.Clip(head), sotw: start}
}

// of is what comes before the body in a response of the protocol.
func (f *wireFrames) of(delta bool) []byte {
	if delta {
		return f.head
	}
	return f.head[f.sotw:]
}

// chunkFrames are the resources of a chunk as responses of one protocol have them, one after the other.
type chunkFrames struct {
	bytes []byte
	all   mem.Buffer
	ends  []int // of each resource in bytes
}

// sharedFrames has the frames of a chunk, by protocol. They are made when the chunk is sent for the second time:
// many are of one class of proxies alone, and sent once.
type sharedFrames struct {
	sent   atomic.Bool
	frames atomic.Pointer[chunkFrames]
}

// get is the chunk's frames, or nil.
func (s *sharedFrames) get(list []*Resource, delta bool) *chunkFrames {
	if f := s.frames.Load(); f != nil {
		return f
	}
	// What is joined is large, and mostly that of others: a copy would cost more than it saves.
	if !s.sent.Swap(true) || slices.ContainsFunc(list, func(r *Resource) bool { return r.joined != nil }) {
		return nil
	}
	size := 0
	for _, r := range list {
		size += len(r.frames.of(delta)) + len(r.Body)
	}
	f := &chunkFrames{bytes: make([]byte, 0, size), ends: make([]int, len(list))}
	for i, r := range list {
		f.bytes = append(append(f.bytes, r.frames.of(delta)...), r.Body...)
		f.ends[i] = len(f.bytes)
	}
	f.all = mem.SliceBuffer(f.bytes)
	s.frames.Store(f)
	return f
}

// run is the part of the frames that has the resources from one to another, the last not included.
func (f *chunkFrames) run(from, to int) mem.Buffer {
	start := 0
	if from > 0 {
		start = f.ends[from-1]
	} else if to == len(f.ends) {
		return f.all
	}
	return mem.SliceBuffer(f.bytes[start:f.ends[to-1]:f.ends[to-1]])
}

const (
	// minFramed is the least number of resources of a response whose chunks are looked for.
	minFramed = 2 * minChunk
	// minRun is the least number of resources that are sent as a part of a chunk.
	minRun = 4
)

// appendFrames adds the frames of resources in order of names to a response. from has most of them: what it shares
// with other streams in chunks is sent as such.
func appendFrames(out mem.BufferSlice, list []*Resource, from TypeView, delta bool) mem.BufferSlice {
	one := func(r *Resource) {
		out = append(out, mem.SliceBuffer(r.frames.of(delta)), mem.SliceBuffer(r.Body))
		for _, part := range r.rest() {
			out = append(out, mem.SliceBuffer(part))
		}
	}
	if len(list) < minFramed {
		out = slices.Grow(out, 2*len(list))
		for _, r := range list {
			one(r)
		}
		return out
	}
	places := from.framed()
	for len(list) > 0 {
		var at *cursor
		for i := range places {
			if places[i].head() == list[0] {
				at = &places[i]
				break
			}
		}
		if at == nil {
			for i := range places {
				if places[i].seek(list[0].Name); places[i].head() == list[0] {
					at = &places[i]
				}
			}
		}
		if at == nil {
			one(list[0])
			list = list[1:]
			continue
		}
		c, first, n := at.chunks[0], at.at, 1
		for n < len(list) && first+n < len(c.list) && list[n] == c.list[first+n] {
			n++
		}
		var f *chunkFrames
		if n >= minRun {
			f = c.frames(delta).get(c.list, delta)
		}
		if f != nil {
			out = append(out, f.run(first, first+n))
		} else {
			for _, r := range list[:n] {
				one(r)
			}
		}
		list = list[n:]
		if at.at += n; at.at == len(c.list) {
			at.chunks, at.at = at.chunks[1:], 0
		}
	}
	return out
}
