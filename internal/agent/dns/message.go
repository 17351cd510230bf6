package dns

import (
	"bytes"
	"encoding/binary"
)

// Parts of a message's header. [RFC 1035, 4.1.1]
const (
	headerSize = 12

	flagResponse  = 0x80 // in the third byte
	flagTruncated = 0x02
	maskOpcode    = 0x78
	flagDesired   = 0x01 // recursion
	flagAvailable = 0x80 // recursion; in the fourth byte
	maskCode      = 0x0f
)

// The operations that are passed on.
const (
	opQuery  = 0 << 3
	opNotify = 4 << 3
	opUpdate = 5 << 3
)

// code is how an answer ends.
type code byte

const (
	good           code = 0
	formatError    code = 1
	serverFailure  code = 2
	notImplemented code = 4
	refused        code = 5
)

// Types of records that matter to who passes messages on.
const (
	typeOPT  = 41
	typeIXFR = 251
	typeAXFR = 252
)

const (
	// plainSize is what an asker takes in a datagram who says nothing of it.
	plainSize = 512
	// maxQuery bounds a question: beyond what one holds there is room for an update's records and
	// signatures.
	maxQuery = 16 << 10
	// maxMessage is what a message over TCP can hold.
	maxMessage = 1<<16 - 1
)

// query is a message that may be passed on. It keeps the message that it was made from.
type query struct {
	msg []byte
	// end is where the question ends in msg.
	end int
	// size is how long an answer in a datagram may be.
	size int
}

// readQuery checks a message of an asker. Where its code is not good, it is to be answered with
// that; where even this cannot be (it is none, or an answer), ok is false.
func readQuery(msg []byte) (q query, c code, ok bool) {
	if len(msg) < headerSize || msg[2]&flagResponse != 0 {
		return q, 0, false
	}
	q = query{msg: msg, end: headerSize, size: plainSize}
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
		// A zone comes as many messages; one is all that is passed back.
		return q, refused, true
	}
	if q.size, ok = datagram(msg, end); !ok {
		return q, formatError, true
	}
	return q, good, true
}

// count is the number of entries of a section, 0–3.
func count(msg []byte, section int) int {
	return int(binary.BigEndian.Uint16(msg[4+2*section:]))
}

// skipQuestion is where the first question ends. Its name comes first in a message, so there is
// nothing that a pointer in it could lead to.
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

// skipName is where a name ends that may end with a pointer.
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

// datagram is the size that the asker's OPT record offers. It is not ok where records are announced
// that are not there.
func datagram(msg []byte, at int) (int, bool) {
	size := plainSize
	for range count(msg, 1) + count(msg, 2) + count(msg, 3) {
		root := at < len(msg) && msg[at] == 0
		end, ok := skipName(msg, at)
		if !ok || end+10 > len(msg) {
			return 0, false
		}
		if root && binary.BigEndian.Uint16(msg[end:]) == typeOPT {
			size = max(size, int(binary.BigEndian.Uint16(msg[end+2:])))
		}
		at = end + 10 + int(binary.BigEndian.Uint16(msg[end+8:]))
		if at > len(msg) {
			return 0, false
		}
	}
	return size, true
}

// under is the message with another id.
func (q query) under(id uint16) []byte { return withID(q.msg, id) }

func (q query) id() uint16 { return binary.BigEndian.Uint16(q.msg) }

func withID(msg []byte, id uint16) []byte {
	out := bytes.Clone(msg)
	binary.BigEndian.PutUint16(out, id)
	return out
}

// answers says whether a message answers the question as it was asked under that id. Case does not
// count in names. Who did not understand a question may leave it out of the answer.
func (q query) answers(msg []byte, id uint16) bool {
	if len(msg) < headerSize || binary.BigEndian.Uint16(msg) != id || msg[2]&flagResponse == 0 ||
		msg[2]&maskOpcode != q.msg[2]&maskOpcode {
		return false
	}
	switch count(msg, 0) {
	case 0:
		return q.msg[2]&maskOpcode != opQuery || codeOf(msg) == formatError || elsewhere(msg)
	case 1:
		end, ok := skipQuestion(msg)
		return ok && end == q.end && equalFold(msg[headerSize:end-4], q.msg[headerSize:end-4]) && bytes.Equal(msg[end-4:end], q.msg[end-4:end])
	}
	return false
}

// equalFold compares names. The bytes that say how long labels are lie below the letters.
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

func codeOf(msg []byte) code { return code(msg[3] & maskCode) }

// elsewhere says whether another server may know better: the C library asks on then, too.
func elsewhere(msg []byte) bool {
	switch codeOf(msg) {
	case serverFailure, notImplemented, refused:
		return true
	}
	return false
}

// failure is the answer that there is none, and why.
func (q query) failure(c code) []byte {
	msg := bytes.Clone(q.msg[:q.end])
	msg[2] = msg[2]&(maskOpcode|flagDesired) | flagResponse
	msg[3] = flagAvailable | byte(c)
	clear(msg[4:headerSize])
	if q.end > headerSize {
		msg[5] = 1
	}
	return msg
}

// back is an answer under the asker's id. One that is too long for the asker's datagrams is cut down
// to the question, which has the asker come again by TCP.
func (q query) back(msg []byte, overTCP bool) []byte {
	out := withID(msg, q.id())
	if overTCP || len(msg) <= q.size {
		return out
	}
	cut := q.failure(codeOf(out))
	cut[2] |= flagTruncated
	return cut
}
