package dns

import (
	"bytes"
	"encoding/binary"
)

// Parts of a message's header. [RFC 1035, 4.1.1]
const (
	headerSize = 12

	flagResponse           = 0x80 // in the third byte
	flagTruncated          = 0x02
	maskOpcode             = 0x78
	flagRecursionDesired   = 0x01
	flagRecursionAvailable = 0x80 // in the fourth byte
	maskRcode              = 0x0f
)

// The operations that are forwarded.
const (
	opQuery  = 0 << 3
	opNotify = 4 << 3
	opUpdate = 5 << 3
)

// rcode is a response code.
type rcode byte

const (
	noError        rcode = 0
	formatError    rcode = 1
	serverFailure  rcode = 2
	notImplemented rcode = 4
	refused        rcode = 5
)

// The record types that matter to a forwarder.
const (
	typeOPT  = 41
	typeIXFR = 251
	typeAXFR = 252
)

const (
	// defaultUDPSize is the largest response over UDP without an OPT record. [RFC 1035, 4.2.1]
	defaultUDPSize = 512
	// maxQuery bounds a query. It has room for the records and signatures of an update.
	maxQuery = 16 << 10
	// maxUDPAnswer is the size of datagrams that is offered to clients.
	maxUDPAnswer = 1232
	// maxMessage is the largest message over TCP.
	maxMessage = 1<<16 - 1
)

// query is a message that may be forwarded. It shares the bytes of the client's message.
type query struct {
	msg []byte
	// end is the offset after the question.
	end int
	// size is the largest response over UDP.
	size int
	// edns is set if the message has an OPT record.
	edns bool
}

// parseQuery checks a client's message. If the code is not noError, the query is to be answered with
// it; if ok is false, the message is not a query and gets no response.
func parseQuery(msg []byte) (q query, code rcode, ok bool) {
	if len(msg) < headerSize || msg[2]&flagResponse != 0 {
		return q, 0, false
	}
	q = query{msg: msg, end: headerSize, size: defaultUDPSize}
	switch msg[2] & maskOpcode {
	case opQuery, opNotify, opUpdate:
	default:
		return q, notImplemented, true
	}
	if len(msg) > maxQuery || count(msg, 0) != 1 {
		return q, formatError, true
	}
	end, ok := skipQuestion(msg)
	if !ok {
		return q, formatError, true
	}
	q.end = end
	if t := binary.BigEndian.Uint16(msg[end-4:]); msg[2]&maskOpcode == opQuery && (t == typeAXFR || t == typeIXFR) {
		// A zone transfer has many responses, and only one is forwarded.
		return q, refused, true
	}
	if q.size, q.edns, ok = udpSize(msg, end); !ok {
		return q, formatError, true
	}
	return q, noError, true
}

// count returns the number of entries of a section, 0–3.
func count(msg []byte, section int) int {
	return int(binary.BigEndian.Uint16(msg[4+2*section:]))
}

// skipQuestion returns the offset after the first question. Its name cannot have a pointer, because
// no name precedes it.
func skipQuestion(msg []byte) (int, bool) {
	at := headerSize
	for at < len(msg) && at-headerSize < 255 {
		n := int(msg[at])
		at++
		if n == 0 {
			return at + 4, at+4 <= len(msg)
		}
		if n > 63 {
			return 0, false
		}
		at += n
	}
	return 0, false
}

// skipName returns the offset after a name, which may end with a pointer.
func skipName(msg []byte, at int) (int, bool) {
	for at < len(msg) {
		n := int(msg[at])
		switch {
		case n == 0:
			return at + 1, true
		case n >= 0xc0:
			return at + 2, true
		case n > 63:
			return 0, false
		}
		at += 1 + n
	}
	return 0, false
}

// udpSize returns the size of the client's OPT record, and whether there is one. ok is false if the message is shorter than its
// records.
func udpSize(msg []byte, at int) (size int, edns, ok bool) {
	size = defaultUDPSize
	for range count(msg, 1) + count(msg, 2) + count(msg, 3) {
		root := at < len(msg) && msg[at] == 0
		end, ok := skipName(msg, at)
		if !ok || end+10 > len(msg) {
			return 0, false, false
		}
		if root && binary.BigEndian.Uint16(msg[end:]) == typeOPT {
			size, edns = max(size, int(binary.BigEndian.Uint16(msg[end+2:]))), true
		}
		at = end + 10 + int(binary.BigEndian.Uint16(msg[end+8:]))
		if at > len(msg) {
			return 0, false, false
		}
	}
	return size, edns, true
}

func (q query) id() uint16 { return binary.BigEndian.Uint16(q.msg) }

// withID returns a copy of a message with another ID.
func withID(msg []byte, id uint16) []byte {
	out := bytes.Clone(msg)
	binary.BigEndian.PutUint16(out, id)
	return out
}

// answeredBy reports whether a message is the response to the query with that ID. Names are compared
// without case. A response with an error may have no question.
func (q query) answeredBy(msg []byte, id uint16) bool {
	if len(msg) < headerSize || binary.BigEndian.Uint16(msg) != id || msg[2]&flagResponse == 0 ||
		msg[2]&maskOpcode != q.msg[2]&maskOpcode {
		return false
	}
	switch count(msg, 0) {
	case 0:
		return q.msg[2]&maskOpcode != opQuery || rcodeOf(msg) == formatError || isServerError(msg)
	case 1:
		end, ok := skipQuestion(msg)
		return ok && end == q.end && equalFold(msg[headerSize:end-4], q.msg[headerSize:end-4]) && bytes.Equal(msg[end-4:end], q.msg[end-4:end])
	}
	return false
}

// equalFold compares names of equal length. The length bytes of labels are below the letters.
func equalFold(a, b []byte) bool {
	lower := func(c byte) byte {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		return c
	}
	for i := range a {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

func rcodeOf(msg []byte) rcode { return rcode(msg[3] & maskRcode) }

// isServerError reports whether another server may give a better response, as in the C library.
func isServerError(msg []byte) bool {
	switch rcodeOf(msg) {
	case serverFailure, notImplemented, refused:
		return true
	}
	return false
}

// failure returns a response with the code and without records.
func (q query) failure(code rcode) []byte {
	msg := bytes.Clone(q.msg[:q.end])
	msg[2] = msg[2]&(maskOpcode|flagRecursionDesired) | flagResponse
	msg[3] = flagRecursionAvailable | byte(code)
	clear(msg[4:headerSize])
	if q.end > headerSize {
		msg[5] = 1
	}
	return msg
}

// response returns a server's response with the client's ID. One that is too long for the client's
// UDP size is truncated to the question, so that the client retries over TCP.
func (q query) response(msg []byte, overTCP bool) []byte {
	out := withID(msg, q.id())
	if overTCP || len(msg) <= q.size {
		return out
	}
	truncated := q.failure(rcodeOf(out))
	truncated[2] |= flagTruncated
	return truncated
}
