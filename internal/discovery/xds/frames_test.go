package xds

import (
	"bytes"
	"encoding/binary"
	"net"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/pilothouse/pilothouse/test/wait"
)

// frames is an HTTP/2 client that sends what gRPC's would not.
type frames struct {
	t      *testing.T
	framer *http2.Framer
	turn   sync.Mutex
	encode *hpack.Encoder
	block  bytes.Buffer
	// rest is what each stream has still to send, and room how much it may.
	mu       sync.Mutex
	rest     map[uint32]int
	room     map[uint32]int
	all      int // room of the connection
	moved    chan struct{}
	statuses chan string
}

func newFrames(t *testing.T, conn net.Conn) *frames {
	t.Helper()
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	f := &frames{t: t, framer: http2.NewFramer(conn, conn), rest: map[uint32]int{}, room: map[uint32]int{}, all: 65535,
		moved: make(chan struct{}, 1), statuses: make(chan string, 100)}
	f.encode = hpack.NewEncoder(&f.block)
	f.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := f.framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	go f.read()
	return f
}

// read follows flow control, and the statuses of streams that end.
func (f *frames) read() {
	defer close(f.moved)
	for {
		frame, err := f.framer.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				f.turn.Lock()
				_ = f.framer.WriteSettingsAck()
				f.turn.Unlock()
			}
		case *http2.WindowUpdateFrame:
			f.mu.Lock()
			if frame.StreamID == 0 {
				f.all += int(frame.Increment)
			} else {
				f.room[frame.StreamID] += int(frame.Increment)
			}
			f.mu.Unlock()
		case *http2.MetaHeadersFrame:
			for _, h := range frame.Fields {
				if h.Name == "grpc-status" {
					f.statuses <- h.Value
				}
			}
		case *http2.RSTStreamFrame:
			f.mu.Lock()
			delete(f.rest, frame.StreamID)
			f.mu.Unlock()
		}
		select {
		case f.moved <- struct{}{}:
		default:
		}
	}
}

// open begins a call.
func (f *frames) open(id uint32) {
	f.turn.Lock()
	defer f.turn.Unlock()
	f.block.Reset()
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":authority", "x"},
		{":path", "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		_ = f.encode.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	if err := f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.block.Bytes(), EndHeaders: true}); err != nil {
		f.t.Fatal(err)
	}
}

// begin announces a message, of which write sends all but the last byte.
func (f *frames) begin(id uint32, size int) {
	f.turn.Lock()
	defer f.turn.Unlock()
	f.mu.Lock() // before the server can answer with more room
	f.rest[id], f.room[id], f.all = size-1, 65535-5, f.all-5
	f.mu.Unlock()
	if err := f.framer.WriteData(id, false, binary.BigEndian.AppendUint32([]byte{0}, uint32(size))); err != nil {
		f.t.Fatal(err)
	}
}

// write sends what flow control lets it until the connection ends.
func (f *frames) write() {
	for range f.moved {
		for {
			id, n := f.next()
			if n == 0 {
				break
			}
			f.turn.Lock()
			err := f.framer.WriteData(id, false, make([]byte, n))
			f.turn.Unlock()
			if err != nil {
				return
			}
		}
	}
}

func (f *frames) next() (id uint32, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, rest := range f.rest {
		if n := min(rest, f.room[id], f.all, 16<<10); n > 0 {
			f.rest[id], f.room[id], f.all = rest-n, f.room[id]-n, f.all-n
			return id, n
		}
	}
	return 0, 0
}

// status is that of the first stream that ended.
func (f *frames) status() string {
	var got string
	wait.Until(f.t, "a stream's status", func() bool {
		select {
		case got = <-f.statuses:
			return true
		default:
			return false
		}
	})
	return got
}
