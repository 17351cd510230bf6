// Package sds hands the workload's secret to the local Envoys, over the secret discovery service on a Unix socket.
//
// The contract: every stream gets what it asked for as soon as it exists, and again each
// time it changes; a stream that asks before there is a secret waits, it is not refused.
// Any number of streams and Envoys are served at once. The names are "default" (leaf and
// key) and "ROOTCA" (the roots), and those of files that clusters name, where there is a
// source of them. Only StreamSecrets is served. [agent D1]
//
// The socket is guarded by its folder: whoever can reach it gets the key.
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
	// bufferSize is small because messages are, and the agent is in every Pod.
	bufferSize = 4 << 10
)

// Source is what is served: the value that stands (nil for none yet) and a channel that
// is closed when another one does.
type Source interface {
	Current() (*pki.Secret, <-chan struct{})
}

// Files is where secrets come from that clusters name by their files. [agent S2]
type Files interface {
	// Follow has the named secret kept until release is called. The error says why nothing
	// could ever be served under that name.
	Follow(name string) (release func(), err error)
	// Get is what a followed name stands for, nil while there is nothing.
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

// New takes the socket at once, so that what is wrong with its path is known before
// anything starts: a stale socket is removed, one that somebody serves is not, its folder made (mode 0750), and the
// socket opened to all who get through the folder (mode 0666). [agent P12, P15] Call
// Run, or Close where it comes to nothing. files may be nil: then no secrets of files are
// served.
func New(socket string, source Source, files Files, log *slog.Logger) (*Server, error) {
	ln, err := claim.Socket(socket)
	if err != nil {
		return nil, fmt.Errorf("listen for Envoy's secrets: %w", err)
	}
	return &Server{source: source, files: files, log: log, listener: ln}, nil
}

// Close gives the socket back; for a server that was never run.
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

// receive reads requests into a channel, because a stream cannot be selected on. The
// goroutine ends with the stream, which gRPC ends when its handler returns. The error is
// nil where Envoy hung up.
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
				ended <- nil // the handler may have been busy, and looks here next
				return
			}
		}
	}()
	return requests, ended
}
