package main

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// The types of resources, in the order in which an Envoy first asks for them.
const (
	clusters = iota
	assignments
	listeners
	routes
	hosts // by wildcard, on delta streams of proxies that take virtual hosts by VHDS
	numTypes
)

var typeURLs = [numTypes]string{
	"type.googleapis.com/envoy.config.cluster.v3.Cluster",
	"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
	"type.googleapis.com/envoy.config.listener.v3.Listener",
	"type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
	"type.googleapis.com/envoy.config.route.v3.VirtualHost",
}

// referred is the type that resources of a type refer to by name, or -1.
var referred = [numTypes]int{assignments, -1, routes, -1, -1}

// resource is one version of a resource, kept once for all streams.
type resource struct {
	number  int // of its name
	version string
	// refs are the numbers of the names that it refers to: of an assignment, or of routes.
	refs []int
	// separate says that the virtual hosts of a route configuration come by VHDS.
	separate bool
	// epoch is that of the change whose marker is in it, or 0.
	epoch int
}

// absent stands for a resource of which the server says that there is none.
var absent = &resource{}

// table interns the names and versions of a type.
type table struct {
	names     []string
	numbers   map[string]int
	resources map[uint64]*resource // by a hash of all their bytes
}

// tables intern what all streams receive, so that a body is decoded once, and a stream keeps one pointer for a
// name. Safe for concurrent use.
type tables struct {
	seed  maphash.Seed
	delta bool

	mu     sync.RWMutex
	types  [numTypes]table
	marker []byte
	epoch  int
}

func newTables(delta bool) *tables {
	t := &tables{seed: maphash.MakeSeed(), delta: delta}
	for i := range t.types {
		t.types[i] = table{numbers: map[string]int{}, resources: map[uint64]*resource{}}
	}
	return t
}

// mark sets what the resources of the next change contain, and returns the number of the change, from 1.
func (t *tables) mark(marker []byte) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.marker = marker
	t.epoch++
	return t.epoch
}

// intern appends to out what the encoded resources are.
func (t *tables) intern(typ int, encoded [][]byte, out []*resource) ([]*resource, error) {
	missing := false
	t.mu.RLock()
	for _, b := range encoded {
		r := t.types[typ].resources[maphash.Bytes(t.seed, b)]
		missing = missing || r == nil
		out = append(out, r)
	}
	t.mu.RUnlock()
	if !missing {
		return out, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	first := len(out) - len(encoded)
	for i, b := range encoded {
		if out[first+i] != nil {
			continue
		}
		hash := maphash.Bytes(t.seed, b)
		r := t.types[typ].resources[hash]
		if r == nil {
			var err error
			if r, err = t.decode(typ, b); err != nil {
				return nil, fmt.Errorf("decode a resource of %s: %w", typeURLs[typ], err)
			}
			t.types[typ].resources[hash] = r
		}
		out[first+i] = r
	}
	return out, nil
}

// number returns the number of a name, from 0; unknown names get the next.
func (t *table) number(name []byte) int {
	n, ok := t.numbers[string(name)]
	if !ok {
		n = len(t.names)
		t.names = append(t.names, string(name))
		t.numbers[string(name)] = n
	}
	return n
}

// known returns the number of a name, or -1.
func (t *tables) known(typ int, name []byte) int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if n, ok := t.types[typ].numbers[string(name)]; ok {
		return n
	}
	return -1
}

// nameList is a list of all names of a type, by their numbers. It must not be changed.
func (t *tables) nameList(typ int) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.types[typ].names
}

// decode decodes a resource as it is in a response.
func (t *tables) decode(typ int, b []byte) (*resource, error) {
	var name, body []byte
	r := &resource{}
	anyOf := b
	if t.delta {
		err := fields(b, func(n protowire.Number, v []byte, _ uint64) error {
			switch n {
			case 1:
				r.version = string(v)
			case 2:
				anyOf = v
			case 3:
				name = v
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	body, err := field(anyOf, 2)
	if err != nil {
		return nil, err
	}
	if !t.delta {
		// The name is field 1 of all four types.
		if name, err = field(body, 1); err != nil {
			return nil, err
		}
	}
	if len(name) == 0 {
		return nil, fmt.Errorf("resource of %d bytes has no name", len(b))
	}
	r.number = t.types[typ].number(name)
	if t.epoch > 0 && bytes.Contains(body, t.marker) {
		r.epoch = t.epoch
	}
	var refs [][]byte
	switch typ {
	case clusters:
		refs, err = assignmentOf(name, body)
	case listeners:
		refs, err = routesOf(body)
	case routes:
		const vhds = 9
		var v []byte
		v, err = field(body, vhds)
		r.separate = v != nil
	}
	for _, ref := range refs {
		n := t.types[referred[typ]].number(ref)
		if !slices.Contains(r.refs, n) {
			r.refs = append(r.refs, n)
		}
	}
	return r, err
}

// assignmentOf returns the name of the assignment that a cluster's endpoints come from, if they come by EDS.
func assignmentOf(name, body []byte) ([][]byte, error) {
	const discoveryType, edsConfig, serviceName, eds = 2, 3, 2, 3
	byEDS, ref := false, name
	err := fields(body, func(n protowire.Number, v []byte, x uint64) error {
		switch n {
		case discoveryType:
			byEDS = x == eds
		case edsConfig:
			s, err := field(v, serviceName)
			if len(s) > 0 {
				ref = s
			}
			return err
		}
		return nil
	})
	if err != nil || !byEDS {
		return nil, err
	}
	return [][]byte{ref}, nil
}

// routesOf returns the names of the route configurations that a listener's filter chains ask for.
func routesOf(body []byte) (refs [][]byte, err error) {
	const filterChains, defaultChain, filters, config, value, rds, routeName = 3, 25, 3, 4, 2, 3, 2
	const manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	err = fields(body, func(n protowire.Number, chain []byte, _ uint64) error {
		if n != filterChains && n != defaultChain {
			return nil
		}
		return fields(chain, func(n protowire.Number, filter []byte, _ uint64) error {
			if n != filters {
				return nil
			}
			typed, err := field(filter, config)
			if err != nil {
				return err
			}
			if url, err := field(typed, 1); err != nil || string(url) != manager {
				return err
			}
			message, err := field(typed, value)
			if err != nil {
				return err
			}
			byName, err := field(message, rds)
			if err != nil || byName == nil {
				return err
			}
			ref, err := field(byName, routeName)
			refs = append(refs, ref)
			return err
		})
	})
	return refs, err
}

// field returns the last field of a number that is length-delimited, nil if there is none.
func field(b []byte, number protowire.Number) (out []byte, err error) {
	err = fields(b, func(n protowire.Number, v []byte, _ uint64) error {
		if n == number && v != nil {
			out = v
		}
		return nil
	})
	return out, err
}

// fields calls f for each field of a message that is length-delimited, with its bytes, or a varint.
func fields(b []byte, f func(n protowire.Number, v []byte, x uint64) error) error {
	for len(b) > 0 {
		n, t, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		var v []byte
		var x uint64
		switch t {
		case protowire.BytesType:
			v, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			x, size = protowire.ConsumeVarint(b)
		default:
			size = protowire.ConsumeFieldValue(n, t, b)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if t == protowire.BytesType || t == protowire.VarintType {
			if err := f(n, v, x); err != nil {
				return err
			}
		}
	}
	return nil
}

// response is what a client reads of a response of either protocol. Its slices are good until release.
type response struct {
	typ            int
	version, nonce string
	resources      [][]byte
	removed        [][]byte
	body           []byte

	buf mem.Buffer
}

func (r *response) release() {
	r.buf.Free()
	r.buf, r.body = nil, nil
	clear(r.resources)
	r.resources, r.removed = r.resources[:0], r.removed[:0]
}

// decode reads a response. The field numbers of both protocols agree but for removed names.
func (r *response) decode() error {
	const versionInfo, resourceList, typeURL, nonce, removed = 1, 2, 4, 5, 6
	r.typ = -1
	return fields(r.body, func(n protowire.Number, v []byte, _ uint64) error {
		switch n {
		case versionInfo:
			r.version = string(v)
		case resourceList:
			r.resources = append(r.resources, v)
		case typeURL:
			r.typ = slices.Index(typeURLs[:], string(v))
			if r.typ < 0 {
				return fmt.Errorf("response of the type %.200q, which was not asked for", v)
			}
		case nonce:
			r.nonce = string(v)
		case removed:
			r.removed = append(r.removed, v)
		}
		return nil
	})
}

// request is a request of either protocol.
type request struct {
	node        []byte // encoded, on a stream's first request
	typ         int
	version     string // state of the world only
	nonce       string
	names       []string
	unsubscribe []string           // delta only
	have        []*resource        // delta only: initial_resource_versions, by numbers of names
	nameOf      func(n int) string // for have
}

// encode writes a request in the wire's form.
func (q *request) encode(delta bool) []byte {
	size := 128 + len(q.node)
	for _, n := range q.names {
		size += len(n) + 4
	}
	for i, r := range q.have {
		if r != nil && r != absent {
			size += len(q.nameOf(i)) + len(r.version) + 12
		}
	}
	b := make([]byte, 0, size)
	node, url, nonce := protowire.Number(2), protowire.Number(4), protowire.Number(5)
	if delta {
		node, url, nonce = 1, 2, 6
	}
	if q.node != nil {
		b = appendField(b, node, q.node)
	}
	b = appendField(b, url, typeURLs[q.typ])
	if q.nonce != "" {
		b = appendField(b, nonce, q.nonce)
	}
	for _, n := range q.names {
		b = appendField(b, 3, n)
	}
	if !delta {
		if q.version != "" {
			b = appendField(b, 1, q.version)
		}
		return b
	}
	for _, n := range q.unsubscribe {
		b = appendField(b, 4, n)
	}
	for i, r := range q.have {
		if r == nil || r == absent {
			continue
		}
		name := q.nameOf(i)
		b = protowire.AppendTag(b, 5, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(2+protowire.SizeBytes(len(name))+protowire.SizeBytes(len(r.version))))
		b = appendField(b, 1, name)
		b = appendField(b, 2, r.version)
	}
	return b
}

func appendField[T string | []byte](b []byte, n protowire.Number, v T) []byte {
	b = protowire.AppendTag(b, n, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(v)))
	return append(b, v...)
}

// clientCodec passes encoded requests on, and responses without decoding what is in them.
type clientCodec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c clientCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c clientCodec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*response)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	r.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
	r.body = r.buf.ReadOnlyData()
	return r.decode()
}
