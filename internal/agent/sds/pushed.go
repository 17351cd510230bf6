package sds

import (
	"bytes"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Pushed has the names of files that the configuration of the local Envoys uses: what the control plane pushed, and the
// bootstrap. Without it, whoever reaches the socket could read every certificate and key that the agent can read. Any goroutine may
// call its methods.
type Pushed struct {
	mu      sync.Mutex
	fixed   []string
	types   map[string]map[string][]string // names of files by type and resource
	used    map[string]int                 // how many resources use a name
	changed chan struct{}
}

// NewPushed makes a Pushed for Envoys whose bootstrap has the given texts in YAML or JSON.
func NewPushed(bootstrap ...string) *Pushed {
	p := &Pushed{types: map[string]map[string][]string{}, used: map[string]int{}, changed: make(chan struct{})}
	for _, text := range bootstrap {
		p.fixed = append(p.fixed, namesInText(text)...)
	}
	return p
}

// Has implements Names.
func (p *Pushed) Has(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used[name] > 0 || slices.Contains(p.fixed, name)
}

// Changed implements Names.
func (p *Pushed) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// maxPushed is the maximum number of resources with names of files.
const maxPushed = 1 << 14

// wholeTypes are the types of which a response of the state-of-the-world variant lists all resources.
var wholeTypes = []string{"type.googleapis.com/envoy.config.cluster.v3.Cluster", "type.googleapis.com/envoy.config.listener.v3.Listener"}

// Observe reads a response of aggregated discovery, in the delta or the state-of-the-world variant, before Envoy gets it. What a stream
// pushed stays in use after its end, because Envoy keeps it too.
func (p *Pushed) Observe(response mem.BufferSlice, delta bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.types) == 0 && !mentionsFiles(response) {
		return
	}
	var text []byte
	if len(response) == 1 {
		text = response[0].ReadOnlyData()
	} else {
		text = response.Materialize()
	}
	typ, resources, removed := readResponse(text, delta)
	before := len(p.used)
	var fresh bool
	if !delta && slices.Contains(wholeTypes, typ) {
		for name := range p.types[typ] {
			if _, there := resources[name]; !there {
				removed = append(removed, name)
			}
		}
	}
	for _, name := range removed {
		p.set(typ, name, nil)
	}
	for name, files := range resources {
		fresh = p.set(typ, name, files) || fresh
	}
	if fresh || len(p.used) != before {
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// set makes files the names that a resource uses, and reports whether one of them is new.
func (p *Pushed) set(typ, resource string, files []string) (fresh bool) {
	old := p.types[typ][resource]
	if len(old) == 0 && len(files) == 0 || len(old) == 0 && len(p.types[typ]) >= maxPushed {
		return false
	}
	for _, n := range files {
		fresh = fresh || p.used[n] == 0
		p.used[n]++
	}
	for _, n := range old {
		if p.used[n]--; p.used[n] == 0 {
			delete(p.used, n)
		}
	}
	switch {
	case len(files) > 0:
		if p.types[typ] == nil {
			p.types[typ] = map[string][]string{}
		}
		p.types[typ][resource] = files
	default:
		if delete(p.types[typ], resource); len(p.types[typ]) == 0 {
			delete(p.types, typ)
		}
	}
	return fresh
}

// readResponse reads the type, the names of files of each resource, and which resources were removed. What cannot be
// read has no names: Envoy rejects it.
func readResponse(text []byte, delta bool) (typ string, resources map[string][]string, removed []string) {
	resources = map[string][]string{}
	_ = fields(text, func(n protowire.Number, value []byte) error {
		switch {
		case n == 4:
			typ = string(value)
		case n == 6 && delta: // removed_resources; control_plane in the other variant
			removed = append(removed, string(value))
		case n == 2 && delta: // a Resource with name = 3
			resources[lastField(value, 3)] = fileNames(value)
		case n == 2: // an Any whose value = 2 has name = 1
			resources[lastField([]byte(lastField(value, 2)), 1)] = fileNames(value)
		}
		return nil
	})
	return typ, resources, removed
}

func lastField(text []byte, number protowire.Number) (found string) {
	_ = fields(text, func(n protowire.Number, value []byte) error {
		if n == number {
			found = string(value)
		}
		return nil
	})
	return found
}

// common is how the names of secrets in files begin.
const common = "file-"

// mentionsFiles reports whether a message may have a name of files. It copies nothing, because almost no message has one.
func mentionsFiles(message mem.BufferSlice) bool {
	overlap := len(certPrefix) - 1
	var tail []byte
	for _, b := range message {
		data := b.ReadOnlyData()
		if isMentioned(data) || isMentioned(append(slices.Clone(tail), data[:min(len(data), overlap)]...)) {
			return true
		}
		if len(data) < overlap {
			tail = append(slices.Clone(tail), data...)
		} else {
			tail = data
		}
		tail = tail[max(len(tail)-overlap, 0):]
	}
	return false
}

func isMentioned(data []byte) bool {
	for {
		i := bytes.Index(data, []byte(common))
		if i < 0 {
			return false
		}
		if data = data[i:]; isFile(string(data[:min(len(data), len(certPrefix))])) {
			return true
		}
		data = data[len(common):]
	}
}

// fileNames returns the names of files in a message, sorted: strings that are a whole field.
func fileNames(message []byte) []string {
	var out []string
	for at := 0; ; at += len(common) {
		i := bytes.Index(message[at:], []byte(common))
		if i < 0 {
			slices.Sort(out)
			return slices.Compact(out)
		}
		at += i
		if n := lengthBefore(message[:at]); n <= min(len(message)-at, maxName) {
			if name := string(message[at : at+n]); isFile(name) {
				out = append(out, name)
			}
		}
	}
}

// lengthBefore returns the length that stands at the end of text as a varint after the tag of a length-delimited field, 0 if there is none.
func lengthBefore(text []byte) int {
	for size := 1; size <= 3 && size < len(text); size++ {
		n, read := protowire.ConsumeVarint(text[len(text)-size:])
		tag := text[len(text)-size-1]
		if read == size && tag < 0x80 && tag&7 == byte(protowire.BytesType) {
			return int(n)
		}
	}
	return 0
}

// namesInText returns the names of files in YAML or JSON.
func namesInText(text string) []string {
	var out []string
	for {
		i := strings.Index(text, common)
		if i < 0 {
			return out
		}
		text = text[i:]
		end := strings.IndexAny(text, "\"'\n\r\t,}] ")
		if end < 0 {
			end = len(text)
		}
		if name := text[:end]; isFile(name) {
			out = append(out, name)
		}
		text = text[len(common):]
	}
}
