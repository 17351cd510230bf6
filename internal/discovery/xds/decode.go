package xds

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// Bounds on what a client may send in one request, in bytes unless they say otherwise.
const (
	// maxRequest is the whole of it: 7,000 names with versions take one, a node another.
	maxRequest = 4 << 20
	// maxNode bounds a node as it is sent. Kubernetes allows 256 KiB of annotations alone.
	maxNode         = 1 << 20
	maxRequestNames = maxNames // names, of each list
	maxName         = 4096
	maxVersion      = 256
	maxTypeURL      = 256
	maxNonce        = 256
	// maxErrorText is how much of an error message is searched for names; what is kept and
	// logged of it is maxMessage.
	maxErrorText = 64 << 10
)

// inbound is a request of either flavour as it comes from the wire. Only fields that are used
// are decoded, and their size is counted before they are copied, so that a request never needs
// much more memory than its bytes on the wire.
type inbound struct {
	delta bool
	// wantNode says that the node is wanted: of a stream's first request.
	wantNode bool
	// charge is called with the size of the encoded request, and then with the difference to
	// its size when decoded; done is closed when the stream has ended.
	charge func(bytes int) error
	done   <-chan struct{}
	// decoded is called when a large request has been decoded, or refused; nil for nothing.
	decoded func()
	// size is that of the encoded request, in bytes.
	size int
	incoming
	// err is what is wrong with it, for the client; gRPC would hide it behind codes of
	// its own.
	err error
}

// turnOver says that a large request has been dealt with.
func (q *inbound) turnOver() {
	if q.decoded != nil {
		q.decoded()
	}
}

// reset makes it ready for the stream's next request.
func (q *inbound) reset() { q.wantNode, q.size, q.incoming, q.err = false, 0, incoming{}, nil }

// incoming is the part of a request that the stream uses.
type incoming struct {
	// node is the encoded node of a stream's first request, nil where there is none.
	node []byte
	url  string
	req  Request
	// cost is how many bytes req takes: the encoded request, if it has lists.
	cost int
	// buffer has the encoded request, nil once it is not wanted any more.
	buffer []byte
}

// decoding lets few large requests be decoded at a time: the copies that this takes would
// otherwise be as many as there are streams.
var decoding = make(chan struct{}, 2)

// large is the size from which a request waits for its turn.
const large = 64 << 10

// unmarshal decodes a request. An error of the request's is left in q.err.
func (q *inbound) unmarshal(data mem.BufferSlice) {
	size := data.Len()
	q.size = size
	if size > large {
		defer q.turnOver()
		// It is charged for while it waits: there may be one for each stream.
		if q.err = q.charge(size); q.err != nil {
			return
		}
		select {
		case decoding <- struct{}{}:
			defer func() { <-decoding }()
		case <-q.done:
			q.err = errGone
			return
		}
	} else {
		size = 0
	}
	if len(data) == 1 && data.Len() < minReused {
		// An acknowledgement has no lists, so that nothing of it is kept.
		q.err = q.decode(data[0].ReadOnlyData())
		if q.err == nil && q.cost > 0 {
			q.buffer = append([]byte(nil), q.req.Names.wire...)
			q.setLists(q.buffer)
		}
	} else {
		q.buffer = buffers.get(data.Len())
		data.CopyTo(q.buffer)
		q.err = q.decode(q.buffer)
	}
	if q.err == nil {
		q.err = q.charge(q.cost - size)
	}
	if q.cost == 0 || q.err != nil {
		q.release()
	}
}

// release gives back the encoded request once the lists in it are not wanted any more.
func (m *incoming) release() {
	buffers.put(m.buffer)
	m.buffer = nil
}

// buffers are for requests. Those of gRPC's own pool may be much larger than what is charged for them.
var buffers bufferPool

// bufferPool reuses buffers. Any goroutine may use it; the zero bufferPool is ready.
type bufferPool struct {
	// pools are by the binary logarithm of the buffers' sizes.
	pools [bits.UintSize]sync.Pool
}

// minReused is the size from which a buffer is reused.
const minReused = 4096

// get is a buffer of a size, with room for less than twice as much.
func (p *bufferPool) get(size int) []byte {
	if size < minReused {
		return make([]byte, size)
	}
	class := bits.Len(uint(size - 1))
	if b, ok := p.pools[class].Get().(*[]byte); ok {
		return (*b)[:size]
	}
	return make([]byte, size, 1<<class)
}

func (p *bufferPool) put(b []byte) {
	if cap(b) >= minReused {
		p.pools[bits.Len(uint(cap(b)-1))].Put(&b)
	}
}

// errGone is a request of a stream that has ended meanwhile.
var errGone = status.Error(codes.Canceled, "the stream has ended")

// fields are the numbers of the fields of a request, by what they say; 0 where the flavour has none.
type fields struct {
	node, url, names, unsubscribe, initial, nonce, detail protowire.Number
}

var (
	sotwFields  = fields{node: 2, url: 4, names: 3, nonce: 5, detail: 6}
	deltaFields = fields{node: 1, url: 2, names: 3, unsubscribe: 4, initial: 5, nonce: 6, detail: 7}
)

func (q *inbound) decode(b []byte) error {
	f := sotwFields
	if q.delta {
		f = deltaFields
	}
	q.req.Names.field, q.req.Unsubscribe.field, q.req.Initial.field = f.names, f.unsubscribe, f.initial
	begin, end := len(b), 0 // of what has the lists
	err := eachFieldAt(b, func(n protowire.Number, v []byte, from, to int) error {
		var err error
		switch n {
		case f.node:
			err = q.readNode(v)
		case f.url:
			q.url, err = typeURL(v)
		case f.names, f.unsubscribe, f.initial:
			begin, end = min(begin, from), to
			err = q.readListed(n, f, v)
		case f.nonce:
			q.req.Nonce, err = text("response nonce", v, maxNonce)
		case f.detail:
			err = q.readDetail(v)
		}
		return err
	})
	if err != nil || end == 0 {
		return err
	}
	q.setLists(b[begin:end])
	q.cost = len(b)
	return nil
}

// setLists sets the part of the encoded request that has the lists.
func (q *inbound) setLists(b []byte) {
	q.req.Names.wire, q.req.Unsubscribe.wire, q.req.Initial.wire = b, b, b
}

// readNode reads a node, or more of it: protobuf merges what is there twice, as if it were one after the other.
func (q *inbound) readNode(v []byte) error {
	if n := len(q.node) + len(v); n > maxNode {
		return &refusal{codes.InvalidArgument, reasonNode, fmt.Sprintf("node of %d bytes: want at most %d", n, maxNode)}
	}
	if q.wantNode {
		q.node = append(slices.Grow(q.node, len(v)), v...)
	}
	return nil
}

// readListed checks and counts an element of one of the lists.
func (q *inbound) readListed(n protowire.Number, f fields, v []byte) error {
	switch n {
	case f.initial:
		return q.readInitial(v)
	case f.names:
		return readName(&q.req.Names, v)
	default:
		return readName(&q.req.Unsubscribe, v)
	}
}

func readName(to *nameList, v []byte) error {
	if to.n == maxRequestNames {
		return malformed("more than %d resource names in one request: want at most that many", maxRequestNames)
	}
	to.count(v)
	return checkText("resource name", v, maxName)
}

func (q *inbound) readInitial(v []byte) error {
	if q.req.Initial.n == maxRequestNames {
		return malformed("more than %d initial resource versions in one request: want at most that many", maxRequestNames)
	}
	name, version, n := consumeEntry(v)
	if n < 0 {
		return malformed("decode initial resource version: %v", protowire.ParseError(n))
	}
	q.req.Initial.count(v, name, version)
	if isShort(v, name, version) && len(version) <= maxVersion && utf8.Valid(v) {
		return nil // what is between the two is ASCII, so that each is valid, too
	}
	if err := checkText("resource name", name, maxName); err != nil {
		return err
	}
	return checkText("resource version", version, maxVersion)
}

// readDetail reads a google.rpc.Status.
func (q *inbound) readDetail(v []byte) error {
	q.req.Refused = true
	return eachField(v, func(n protowire.Number, v []byte) error {
		if n == 2 {
			q.req.Message = truncate(v, maxErrorText)
		}
		return nil
	})
}

// costOf is the approximate size of a string in a list or a map, in bytes.
func costOf(s string) int { return len(s) + 16 }

// truncate returns the beginning of a text, whole characters only.
func truncate(v []byte, most int) string {
	if len(v) <= most {
		return string(v)
	}
	for most > 0 && !utf8.RuneStart(v[most]) {
		most--
	}
	return string(v[:most])
}

// text is a string field that must not be longer than most bytes.
func text(what string, v []byte, most int) (string, error) {
	if err := checkText(what, v, most); err != nil {
		return "", err
	}
	return string(v), nil
}

// typeURL is the type URL of a request; that of a type that is served is not allocated for each.
func typeURL(v []byte) (string, error) {
	for t := range types {
		if url := types[t].url; string(v) == url {
			return url, nil
		}
	}
	return text("type URL", v, maxTypeURL)
}

// checkText says what is wrong with a string field.
func checkText(what string, v []byte, most int) error {
	if len(v) > most {
		return malformed("%s of %d bytes: want at most %d", what, len(v), most)
	}
	if !utf8.Valid(v) {
		return malformed("%s %.100q: not UTF-8", what, v)
	}
	return nil
}

// eachField calls f with every length-delimited field of an encoded message; v is only
// good during the call.
func eachField(b []byte, f func(n protowire.Number, v []byte) error) error {
	return eachFieldAt(b, func(n protowire.Number, v []byte, _, _ int) error { return f(n, v) })
}

// eachFieldAt is eachField that says where the field begins and ends, too.
func eachFieldAt(b []byte, f func(n protowire.Number, v []byte, from, to int) error) error {
	for at := 0; at < len(b); {
		num, v, delimited, n := consumeField(b[at:])
		if n < 0 {
			return malformed("decode request: field %d: %v", num, protowire.ParseError(n))
		}
		if delimited {
			if err := f(num, v, at, at+n); err != nil {
				return err
			}
		}
		at += n
	}
	return nil
}

func malformed(format string, args ...any) *refusal {
	return &refusal{codes.InvalidArgument, reasonRequest, fmt.Sprintf(format, args...)}
}
