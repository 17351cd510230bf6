package xdsproxy

import (
	"maps"
	"slices"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
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

// begin adds to the node of a stream's first request. The caller holds mu.
func (u *upstreamStream) begin(f *frame, a *Addition) {
	if u.begun {
		return
	}
	u.begun, u.addition = true, a
	if a != nil {
		f.data = append(slices.Clip(f.data), mem.SliceBuffer(a.encode(u.delta)))
	}
}

// encode encodes a request with nothing but a node. Behind another request it adds to that one's node, since protobuf merges what
// is there twice.
func (a *Addition) encode(delta bool) []byte {
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
	number := protowire.Number(sotwNode)
	if delta {
		number = deltaNode
	}
	return appendField(nil, number, string(node))
}

// appendEntry appends a field of a google.protobuf.Struct.
func appendEntry(b []byte, key string, value []byte) []byte {
	return appendField(b, structFields, string(appendField(appendField(nil, entryKey, key), entryValue, string(value))))
}
