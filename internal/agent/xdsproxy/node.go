package xdsproxy

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Of the requests of envoy.service.discovery.v3, of a Node, of its locality, and of a google.protobuf.Value.
const (
	deltaNode                             = 1
	nodeLocality                          = 4
	localityRegion, localityZone, subZone = 1, 2, 3
	structValue                           = 5
)

// Addition is what was found out about the node after Envoy's start. [agent B6, B8]
type Addition struct {
	// Region, Zone and SubZone replace those of the node unless all are empty.
	Region, Zone, SubZone string
	// Key is the key of the node's metadata that gets Values.
	Key    string
	Values map[string]string
}

// SetNode adds to the node that the control plane is told. Streams on which it was told without are ended: Envoy opens others, on
// which it says what it has. Any goroutine may call it.
func (p *Proxy) SetNode(a Addition) {
	p.addition.Store(&a)
	for _, up := range p.streams.upstreams() {
		up.mu.Lock()
		outdated := up.begun && up.addition != &a
		up.mu.Unlock()
		if outdated {
			up.end()
		}
	}
}

// SetEpochs says how to find the epoch of the Envoy with a process id. Streams that are opened later say it in their node.
// Any goroutine may call it, and call epochs.
func (p *Proxy) SetEpochs(epochs func(pid int) (epoch int, ok bool)) { p.epochs.Store(&epochs) }

// epoch is the epoch of the Envoy that a stream is of; empty if it is not known.
func (p *Proxy) epoch(ctx context.Context) string {
	epochs := p.epochs.Load()
	if epochs == nil {
		return ""
	}
	out := ""
	amongParents(ctx, func(pid int) bool {
		n, ok := (*epochs)(pid)
		if ok {
			out = strconv.Itoa(n)
		}
		return ok
	})
	return out
}

// begin adds to the node of a stream's first request. The caller holds mu.
func (u *upstreamStream) begin(f *frame, a *Addition) {
	if u.begun {
		return
	}
	u.begun, u.addition = true, a
	var more []byte
	if a != nil {
		more = a.encode()
	}
	if u.epoch != "" {
		entry := appendEntry(nil, mesh.EpochKey, appendField(nil, stringValue, u.epoch))
		more = appendField(more, nodeMetadata, string(entry))
	}
	if more == nil {
		return
	}
	number := protowire.Number(sotwNode)
	if u.delta {
		number = deltaNode
	}
	if data, ok := addToNode(f.data.Materialize(), number, more); ok {
		f.data = mem.BufferSlice{mem.SliceBuffer(data)}
	}
}

// addToNode returns a request with more fields in its node, whose number is node. It says the node once, although
// protobuf merges what is there twice: control planes of before read the last one only. ok is false if the request cannot be read.
func addToNode(request []byte, node protowire.Number, more []byte) (out []byte, ok bool) {
	var all []byte
	for rest := request; len(rest) > 0; {
		n, typ, length := protowire.ConsumeField(rest)
		if length < 0 {
			return nil, false
		}
		field := rest[:length]
		if rest = rest[length:]; n != node || typ != protowire.BytesType {
			out = append(out, field...)
			continue
		}
		_, _, tag := protowire.ConsumeTag(field)
		value, _ := protowire.ConsumeBytes(field[tag:])
		all = append(all, value...)
	}
	return appendField(out, node, string(append(all, more...))), true
}

// encode encodes fields of a node.
func (a *Addition) encode() []byte {
	var node []byte
	if a.Region != "" || a.Zone != "" || a.SubZone != "" {
		place := appendField(appendField(appendField(nil, localityRegion, a.Region), localityZone, a.Zone), subZone, a.SubZone)
		node = appendField(node, nodeLocality, string(place))
	}
	if len(a.Values) > 0 {
		var inner []byte
		for _, k := range slices.Sorted(maps.Keys(a.Values)) {
			inner = appendEntry(inner, k, appendField(nil, stringValue, a.Values[k]))
		}
		node = appendField(node, nodeMetadata, string(appendEntry(nil, a.Key, appendField(nil, structValue, string(inner)))))
	}
	return node
}

// appendEntry appends a field of a google.protobuf.Struct.
func appendEntry(b []byte, key string, value []byte) []byte {
	return appendField(b, structFields, string(appendField(appendField(nil, entryKey, key), entryValue, string(value))))
}
