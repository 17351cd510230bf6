// Package sds serves the workload's secret to the local Envoys, over the secret discovery service on a Unix socket.
//
// Every stream gets the secrets it requested as soon as they exist, and again each
// time they change; a request before there is a secret waits and is not rejected.
// Any number of streams and Envoys are served at once. The names are "default" (leaf and
// key) and "ROOTCA" (the roots), and the names of files, if the server has a
// source of them. Only StreamSecrets is served. [agent D1]
//
// Access is controlled by the permissions of the socket's folder: every user who can connect gets the key.
package sds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/pki"
)

const (
	// bufferSize is the size of each connection's buffers in bytes. It is small because messages are small, and every Pod has an agent.
	bufferSize = 4 << 10
)

// Source has the workload's secret: the current value (nil for none yet) and a channel that
// is closed when there is a newer one. Any goroutine may call it.
type Source interface {
	Current() (*pki.Secret, <-chan struct{})
}

// Files has the secrets that clusters name by the paths of files. Any goroutine may call it. [agent S2]
type Files interface {
	// Follow keeps the named secret up to date until release is called. The error says why the name
	// cannot be followed.
	Follow(name string) (release func(), err error)
	// Get returns the secret of a followed name, nil while there is none.
	Get(name string) *pki.Secret
	// Changed is closed when Get changes.
	Changed() <-chan struct{}
}

// Server serves one socket.
type Server struct {
	source   Source
	files    Files
	log      *slog.Logger
	listener net.Listener
}

// New opens the socket at once, so that a problem with its path is reported before
// anything starts. A socket without a listener is replaced; one with a listener is an error. The folder is created with mode 0750, and the
// socket has mode 0666, for every user who can traverse the folder. [agent P12, P15] Call
// Run, or Close instead of Run. If files is nil, no secrets of files are
// served.
func New(socket string, source Source, files Files, log *slog.Logger) (*Server, error) {
	ln, err := claim.Socket(socket)
	if err != nil {
		return nil, fmt.Errorf("listen for Envoy's secrets: %w", err)
	}
	return &Server{source: source, files: files, log: log, listener: ln}, nil
}

// Close closes the socket of a server that was never run.
func (s *Server) Close() error { return s.listener.Close() }

// Run serves until ctx ends, then ends every stream and returns nil. Call it once.
func (s *Server) Run(ctx context.Context) error {
	g := grpc.NewServer(
		grpc.ForceServerCodecV2(codec{}), grpc.WaitForHandlers(true),
		grpc.ReadBufferSize(bufferSize), grpc.WriteBufferSize(bufferSize),
		// The usual pool would keep a megabyte for each stream's first request, whose
		// node is too long for the pool's smaller buffers.
		experimental.BufferPool(mem.NopBufferPool{}),
	)
	g.RegisterService(&service, s)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		g.Stop()
		close(stopped)
	})
	err := g.Serve(s.listener)
	if stop() { // Serve ended by itself
		g.Stop()
		return fmt.Errorf("serve secrets: %w", err)
	}
	<-stopped
	return nil
}

// service describes what is served of SecretDiscoveryService; gRPC answers its other
// methods with Unimplemented.
var service = grpc.ServiceDesc{
	ServiceName: "envoy.service.secret.v3.SecretDiscoveryService",
	HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "StreamSecrets", ServerStreams: true, ClientStreams: true,
		Handler: func(s any, st grpc.ServerStream) error { return s.(*Server).stream(st) },
	}},
}

// stream serves one stream. [agent D6–D9]
func (s *Server) stream(st grpc.ServerStream) error {
	requests, ended := receive(st)
	me := stream{files: s.files != nil}
	followed := follower{files: s.files, release: map[string]func(){}}
	defer func() { _ = followed.set(nil) }() // nothing is followed, so nothing fails
	for {
		secret, changed := s.source.Current()
		filesChanged := followed.changed()
		have := func(name string) *pki.Secret {
			if isFile(name) {
				return s.files.Get(name)
			}
			return secret
		}
		if r := me.response(have); r != nil {
			if err := st.SendMsg(r); err != nil {
				return err
			}
			s.log.Debug("secret sent", "names", me.names, "version", me.sent)
		}
		select {
		case <-changed:
		case <-filesChanged:
		case req := <-requests:
			rep, err := me.request(req)
			if err != nil {
				return status.Error(codes.InvalidArgument, err.Error())
			}
			if rep.text != "" {
				s.log.Warn(rep.text, "detail", rep.detail, "names", me.names, "version", me.sent)
			}
			if err := followed.set(me.names); err != nil {
				s.log.Warn("Envoy asks for a secret that cannot be served", "reason", err)
			}
		case err := <-ended:
			return err
		}
	}
}

// receive reads requests into a channel, because a select needs one. The
// goroutine ends with the stream, which gRPC ends when its handler returns. The error is
// nil if Envoy closed the stream.
func receive(st grpc.ServerStream) (<-chan *request, <-chan error) {
	requests, ended := make(chan *request), make(chan error, 1)
	go func() {
		for {
			r := &request{}
			if err := st.RecvMsg(r); err != nil {
				if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
					err = nil
				}
				ended <- err
				return
			}
			select {
			case requests <- r:
			case <-st.Context().Done():
				ended <- nil // for a handler that was busy when the stream ended
				return
			}
		}
	}()
	return requests, ended
}
