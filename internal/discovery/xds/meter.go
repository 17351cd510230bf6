package xds

import "encoding/binary"

// meter follows one direction's frames of an HTTP/2 connection. gRPC delivers a request
// only when all of it has come, and buffers what has come until then: a client with many
// streams could leave a large request on each without its last byte.
type meter struct {
	skip int // of the client's preface
	head [frameHead]byte
	have int // bytes of head
	left int // bytes of the payload that are still to come
	pad  int // bytes at its end that are padding; -1 where the payload's first byte says
}

const (
	frameHead     = 9
	clientPreface = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

	frameData, frameHeaders, frameReset = 0, 1, 3
	flagEndStream, flagPadded           = 1, 8
)

func (m *meter) kind() byte     { return m.head[3] }
func (m *meter) ends() bool     { return m.head[4]&flagEndStream != 0 }
func (m *meter) stream() uint32 { return binary.BigEndian.Uint32(m.head[5:]) & (1<<31 - 1) }

// read follows bytes of the connection. It calls frame at the beginning of each frame, and
// data with what belongs to messages, in any number of pieces.
func (m *meter) read(b []byte, frame func(), data func([]byte)) {
	if n := min(m.skip, len(b)); n > 0 {
		m.skip -= n
		b = b[n:]
	}
	for len(b) > 0 {
		if m.left == 0 {
			n := copy(m.head[m.have:], b)
			m.have += n
			b = b[n:]
			if m.have < frameHead {
				return
			}
			m.have = 0
			m.left = int(m.head[0])<<16 | int(m.head[1])<<8 | int(m.head[2])
			m.pad = 0
			if m.kind() == frameData && m.head[4]&flagPadded != 0 && m.left > 0 {
				m.pad = -1
			}
			frame()
			continue
		}
		if m.pad < 0 {
			m.left--
			m.pad = min(int(b[0]), m.left)
			b = b[1:]
			continue
		}
		n := min(m.left, len(b))
		if m.kind() == frameData {
			data(b[:max(0, min(n, m.left-m.pad))])
		}
		m.left -= n
		b = b[n:]
	}
}

// message is where a stream is in the message that it is receiving: five bytes say how
// long it is.
type message struct {
	head [5]byte
	n    int // bytes of head
	left int
}

// receive follows what a stream receives and returns by how much what is waiting for its end
// has grown; it shrinks when a message is whole.
func (m *message) receive(b []byte) (grown int) {
	for len(b) > 0 {
		if m.n < len(m.head) {
			n := copy(m.head[m.n:], b)
			m.n += n
			b = b[n:]
			if m.n < len(m.head) {
				return grown
			}
			m.left = int(binary.BigEndian.Uint32(m.head[1:]))
		}
		n := min(m.left, len(b))
		m.left -= n
		grown += n
		b = b[n:]
		if m.left == 0 {
			grown -= m.size()
			m.n = 0
		}
	}
	return grown
}

// size is how long the message is whose head has come.
func (m *message) size() int { return int(binary.BigEndian.Uint32(m.head[1:])) }

// waiting is how much of the message has come.
func (m *message) waiting() int {
	if m.n < len(m.head) {
		return 0
	}
	return m.size() - m.left
}

// large is the size of the message if it is a large one whose head has come, but not all of the rest; else 0.
func (m *message) large() int {
	if m.n < len(m.head) || m.size() <= large {
		return 0
	}
	return m.size()
}
