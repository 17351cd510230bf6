package lastgood

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of the messages of envoy.service.discovery.v3. A record of the file is encoded as a DeltaDiscoveryResponse.
const (
	responseVersion, responseResources, responseType, responseNonce, responseRemoved = 1, 2, 4, 5, 6

	resourceVersion, resourceBody, resourceName, resourceAliases = 1, 2, 3, 4

	anyType, anyValue = 1, 2
	valueName         = 1 // in clusters, listeners, routes, assignments and extensions

	sotwVersion, sotwNames, sotwType, sotwNonce, sotwError = 1, 3, 4, 5, 6

	deltaType, deltaSubscribe, deltaUnsubscribe, deltaInitial, deltaNonce, deltaError = 2, 3, 4, 5, 6, 7

	entryKey, entryValue = 1, 2
	statusMessage        = 2
)

// maxText bounds names, versions and type URLs, in bytes.
const maxText = 16 << 10

// seed makes the keys of names and the sums of bodies unpredictable. They do not leave the process.
var seed = maphash.MakeSeed()

// resource is one resource of a message: its place in it and what tells it from another one.
type resource struct {
	name, version string
	// off and size are those of the encoded Resource, or, in the state-of-the-world variant, of the Any.
	off, size int64
	// sum is that of the encoded Any. Without a body the message only says that the resource does not exist, or
	// that it lives on.
	sum  uint64
	body bool
}

// response is what a response, or a record, consists of.
type response struct {
	typ, nonce, version string
	resources           []resource
	removed             []string
}

// scanner reads encoded messages of any size from a reader, without keeping them.
type scanner struct {
	src *bufio.Reader
	pos int64
	// crc is that of everything that was read, sum that of the bodies.
	crc uint32
	sum *maphash.Hash
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newScanner(r io.Reader, size int64) *scanner {
	return &scanner{src: bufio.NewReaderSize(r, int(min(max(size, 16), 32<<10)))}
}

// errCut says that a message ends too early.
var errCut = errors.New("the message ends in the middle of a field")

// take passes the next n bytes to f in pieces, unless it is nil.
func (s *scanner) take(n int64, f func([]byte)) error {
	for n > 0 {
		if s.src.Buffered() == 0 {
			if _, err := s.src.Peek(1); err != nil {
				return errCut
			}
		}
		piece, _ := s.src.Peek(int(min(n, int64(s.src.Buffered()))))
		s.crc = crc32.Update(s.crc, castagnoli, piece)
		if s.sum != nil {
			_, _ = s.sum.Write(piece)
		}
		if f != nil {
			f(piece)
		}
		size, _ := s.src.Discard(len(piece))
		s.pos += int64(size)
		n -= int64(size)
	}
	return nil
}

// uvarint reads a varint that ends before end.
func (s *scanner) uvarint(end int64) (uint64, error) {
	var value uint64
	for shift := 0; shift < 64; shift += 7 {
		var b byte
		if s.pos >= end {
			return 0, errCut
		}
		if err := s.take(1, func(p []byte) { b = p[0] }); err != nil {
			return 0, err
		}
		value |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return value, nil
		}
	}
	return 0, errors.New("a number has more than 64 bits")
}

// fields calls f with each length-delimited field of the message that ends at end. f reads all of the field.
func (s *scanner) fields(end int64, f func(n protowire.Number, size int64) error) error {
	for s.pos < end {
		tag, err := s.uvarint(end)
		if err != nil {
			return err
		}
		number, typ := protowire.DecodeTag(tag)
		var size uint64
		switch typ {
		case protowire.VarintType:
			_, err = s.uvarint(end)
		case protowire.Fixed32Type:
			size = 4
		case protowire.Fixed64Type:
			size = 8
		case protowire.BytesType:
			size, err = s.uvarint(end)
		default:
			err = fmt.Errorf("field %d has the unknown type %d", number, typ)
		}
		switch {
		case err != nil:
			return err
		case size > uint64(end-s.pos):
			return errCut
		case typ != protowire.BytesType:
			err = s.take(int64(size), nil)
		default:
			err = f(number, int64(size))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// text reads a string.
func (s *scanner) text(size int64) (string, error) {
	if size > maxText {
		return "", fmt.Errorf("a name or version of %d bytes: want at most %d", size, maxText)
	}
	var b strings.Builder
	b.Grow(int(size))
	err := s.take(size, func(p []byte) { _, _ = b.Write(p) })
	return b.String(), err
}

// response reads a response of size bytes in one of the variants.
func (s *scanner) response(size int64, delta bool) (r response, err error) {
	err = s.fields(s.pos+size, func(n protowire.Number, size int64) (err error) {
		switch {
		case n == responseVersion:
			r.version, err = s.text(size)
		case n == responseType:
			r.typ, err = s.text(size)
		case n == responseNonce:
			r.nonce, err = s.text(size)
		case n == responseRemoved && delta:
			var name string
			name, err = s.text(size)
			r.removed = append(r.removed, name)
		case n == responseResources:
			var one resource
			if delta {
				one, err = s.resource(size)
			} else {
				one, err = s.bare(size)
			}
			r.resources = append(r.resources, one)
		default:
			err = s.take(size, nil)
		}
		return err
	})
	return r, err
}

// resource reads a Resource.
func (s *scanner) resource(size int64) (r resource, err error) {
	r.off, r.size = s.pos, size
	err = s.fields(s.pos+size, func(n protowire.Number, size int64) (err error) {
		switch n {
		case resourceName:
			r.name, err = s.text(size)
		case resourceVersion:
			r.version, err = s.text(size)
		case resourceBody:
			r.body = true
			s.hash(&r.sum, func() { err = s.take(size, nil) })
		default:
			err = s.take(size, nil)
		}
		return err
	})
	return r, err
}

// errWrapped says that a resource of the state-of-the-world variant is of a form that is not kept.
var errWrapped = errors.New("a resource is wrapped in a Resource")

// bare reads an Any of the state-of-the-world variant. Its name is in the message within.
func (s *scanner) bare(size int64) (r resource, err error) {
	r.off, r.size, r.body = s.pos, size, true
	wrapped := false
	s.hash(&r.sum, func() {
		err = s.fields(s.pos+size, func(n protowire.Number, size int64) (err error) {
			switch n {
			case anyType:
				var url string
				url, err = s.text(size)
				wrapped = strings.HasSuffix(url, "/envoy.service.discovery.v3.Resource")
				return err
			case anyValue:
				return s.fields(s.pos+size, func(n protowire.Number, size int64) (err error) {
					if n == valueName && size <= maxText {
						r.name, err = s.text(size)
						return err
					}
					return s.take(size, nil)
				})
			}
			return s.take(size, nil)
		})
	})
	if err == nil && wrapped {
		err = errWrapped
	}
	return r, err
}

// hash sets sum to that of what f reads.
func (s *scanner) hash(sum *uint64, f func()) {
	h := maphash.Hash{}
	h.SetSeed(seed)
	s.sum = &h
	f()
	s.sum = nil
	*sum = h.Sum64()
}

// request is what is read of a request of Envoy.
type request struct {
	typ, nonce, version string
	// refused says that it rejects a response, for the reason message.
	refused bool
	message string
	// subscribe are all names in the state-of-the-world variant.
	subscribe, unsubscribe []string
	// initial are names and versions of resources that Envoy has.
	initial []held
}

type held struct{ name, version string }

// readRequest reads a request in one of the variants.
func readRequest(text []byte, delta bool) (r request, err error) {
	err = eachField(text, func(n protowire.Number, value []byte) {
		if !delta {
			switch n {
			case sotwVersion:
				r.version = string(value)
			case sotwNames:
				r.subscribe = append(r.subscribe, string(value))
			case sotwType:
				r.typ = string(value)
			case sotwNonce:
				r.nonce = string(value)
			case sotwError:
				r.refuse(value)
			}
			return
		}
		switch n {
		case deltaType:
			r.typ = string(value)
		case deltaSubscribe:
			r.subscribe = append(r.subscribe, string(value))
		case deltaUnsubscribe:
			r.unsubscribe = append(r.unsubscribe, string(value))
		case deltaInitial:
			r.initial = append(r.initial, readHeld(value))
		case deltaNonce:
			r.nonce = string(value)
		case deltaError:
			r.refuse(value)
		}
	})
	return r, err
}

func readHeld(entry []byte) (h held) {
	_ = eachField(entry, func(n protowire.Number, value []byte) { // what is not valid gives an empty name
		switch n {
		case entryKey:
			h.name = string(value)
		case entryValue:
			h.version = string(value)
		}
	})
	return h
}

func (r *request) refuse(status []byte) {
	r.refused = true
	_ = eachField(status, func(n protowire.Number, value []byte) { // without a message, it is refused too
		if n == statusMessage {
			r.message = string(value)
		}
	})
}

// eachField calls f with each length-delimited field of a message.
func eachField(b []byte, f func(protowire.Number, []byte)) error {
	for len(b) > 0 {
		n, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if typ == protowire.BytesType {
			value, size := protowire.ConsumeBytes(b)
			if size < 0 {
				return protowire.ParseError(size)
			}
			f(n, value)
			b = b[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(n, typ, b); size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
	}
	return nil
}

// withoutHeld returns a delta request without the initial versions that keep rejects.
func withoutHeld(text []byte, keep func(held) bool) ([]byte, error) {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		n, typ, size := protowire.ConsumeField(text)
		if size < 0 {
			return nil, protowire.ParseError(size)
		}
		part := text[:size]
		text = text[size:]
		if n == deltaInitial && typ == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(part)
			if value, size := protowire.ConsumeBytes(part[tag:]); size >= 0 && !keep(readHeld(value)) {
				continue
			}
		}
		out = append(out, part...)
	}
	return out, nil
}

func appendField[T string | []byte](b []byte, n protowire.Number, value T) []byte {
	return append(protowire.AppendVarint(protowire.AppendTag(b, n, protowire.BytesType), uint64(len(value))), value...)
}

// appendPrefix appends tag and size of a field whose value follows.
func appendPrefix(b []byte, n protowire.Number, size int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.BytesType), uint64(size))
}
