package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// The wire server is the limit of what any control plane can reach: it sends the bytes of a script as they are,
// one slice for each response that all streams share, and discards what it receives. It runs in a process of its
// own, which takes one command a line and answers each with a line:
//
//	phase N  streams are sent phase N of the script from now on; prints "ok"
//	memory   collects garbage; prints the bytes of heap and stacks that are in use
const (
	commandPhase  = "phase"
	commandMemory = "memory"
)

// wireServer serves one script.
type wireServer struct {
	script [][]frame

	mu      sync.Mutex
	phase   int
	started chan struct{} // closed when the phase has ended and the next has begun
}

// serveWire runs the wire server until its input ends. With a certificate file, which holds the key too, it
// serves TLS.
func serveWire(scriptFile, certFile string, in io.Reader, out io.Writer) error {
	script, err := loadScript(scriptFile)
	if err != nil {
		return err
	}
	w := &wireServer{script: script, started: make(chan struct{})}
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(wireCodec{encoding.GetCodecV2("proto")}), grpc.MaxRecvMsgSize(64 << 20),
		grpc.ReadBufferSize(8 << 10),
	}
	if certFile != "" {
		cert, err := tls.LoadX509KeyPair(certFile, certFile)
		if err != nil {
			return err
		}
		opts = append(opts, grpc.Creds(credentials.NewTLS(&tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert,
		})))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer(opts...)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: discoveryv3.AggregatedDiscoveryService_ServiceDesc.ServiceName,
		Streams: []grpc.StreamDesc{
			{StreamName: "StreamAggregatedResources", Handler: w.serve, ServerStreams: true, ClientStreams: true},
			{StreamName: "DeltaAggregatedResources", Handler: w.serve, ServerStreams: true, ClientStreams: true},
		},
	}, nil)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	if _, err := fmt.Fprintln(out, l.Addr()); err != nil {
		return err
	}
	err = w.obey(in, out)
	server.Stop()
	return errors.Join(err, <-served)
}

func (w *wireServer) obey(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var command string
		var n int
		_, _ = fmt.Sscan(lines.Text(), &command, &n) // the commands without a number have none
		answer := "ok"
		switch {
		case command == commandPhase && n >= 0 && n < len(w.script):
			w.begin(n)
		case command == commandMemory:
			answer = fmt.Sprint(memoryInUse())
		default:
			return fmt.Errorf("invalid command %q: want %s with a number below %d, or %s", lines.Text(), commandPhase, len(w.script), commandMemory)
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

// memoryInUse is the size of heap and stacks after garbage has been collected.
func memoryInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func (w *wireServer) begin(phase int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = phase
	close(w.started)
	w.started = make(chan struct{})
}

// now returns the frames of the phase, and a channel that is closed when the next begins.
func (w *wireServer) now() ([]frame, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.script[w.phase], w.started
}

// serve is the handler of a stream. It sends and receives in two goroutines, so that neither waits for the other
// while a window is full.
func (w *wireServer) serve(_ any, s grpc.ServerStream) error {
	asked := make(chan struct{}, 64)
	received := make(chan error, 1)
	go func() {
		for {
			if err := s.RecvMsg(&discard{}); err != nil {
				received <- err
				return
			}
			select {
			case asked <- struct{}{}:
			case <-s.Context().Done():
			}
		}
	}()
	frames, ended := w.now()
	requests := 0
	for {
		for len(frames) > 0 && frames[0].After <= requests {
			if err := s.SendMsg(frames[0].Body); err != nil {
				return err
			}
			frames = frames[1:]
		}
		select {
		case <-asked:
			requests++
		case <-ended:
			frames, ended = w.now()
			requests = 0
		case err := <-received:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// discard is a request that is not looked at.
type discard struct{}

// wireCodec sends bytes as they are.
type wireCodec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.([]byte); ok {
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c wireCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if _, ok := v.(*discard); ok {
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// newWireCert makes a root and a serving certificate of it with its key, in PEM.
func newWireCert(name string, term pki.Validity) (root, serving []byte, err error) {
	rootKey, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		return nil, nil, err
	}
	ca, err := pki.Sign(pki.RootTemplate("xdsload", term), nil, rootKey.Public(), rootKey)
	if err != nil {
		return nil, nil, err
	}
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		return nil, nil, err
	}
	leaf, err := pki.Sign(pki.ServerTemplate([]string{name}, term), ca, key.Public(), rootKey)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err := pki.EncodeKey(key, true)
	if err != nil {
		return nil, nil, err
	}
	return pki.EncodeCerts(ca), append(pki.EncodeCerts(leaf), keyPEM...), nil
}
