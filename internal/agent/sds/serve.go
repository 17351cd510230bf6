// Package sds serves the workload's secret to the local Envoys, over the secret discovery service on a Unix socket.
//
// Every stream gets the secrets it requested as soon as they exist, and again each
// time they change; a request before there is a secret waits and is not rejected. A name that is not served is an
// error of that name and affects no other.
// Any number of streams and Envoys are served at once. The names are "default" (leaf and
// key) and "ROOTCA" (the roots), and the names of files, if the server has a
// source of them. StreamSecrets, DeltaSecrets and FetchSecrets are served. [agent D1]
//
// Only the processes of certain users are served, by the credentials that the kernel recorded for their connection: the mode of the
// socket's folder is not enough, because a volume of a Pod can be writable to all of its users. Of files, only those that
// Envoy's configuration names are read.
package sds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

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
	// maxRequest is the maximum size of a request in bytes: it has Envoy's node.
	maxRequest = 4 << 20
	// fetchTimeout bounds how long FetchSecrets waits for secrets that do not exist yet.
	fetchTimeout = 5 * time.Second
	// maxAttempts and firstWait bound how often and how soon listening is tried again: each wait is twice the one before. [agent D10]
	maxAttempts = 5
	firstWait   = time.Second
)

// Source has the workload's secret: the current value (nil for none yet) and a channel that
// is closed when there is a newer one. Any goroutine may call it.
type Source interface {
	Current() (*pki.Secret, <-chan struct{})
}

// Lists has the revocation list that goes with the roots: the current value in PEM (nil for none), whether it is known whether there
// is one, and a channel that is closed when that changes. The roots are not served before it is known. Any goroutine may call
// it. [agent S21]
type Lists interface {
	Current() (text []byte, known bool, changed <-chan struct{})
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

// Names has the names of files that may be requested. Any goroutine may call it.
type Names interface {
	Has(name string) bool
	// Changed is closed when Has changes.
	Changed() <-chan struct{}
}

// Config configures a Server. Socket, Users and Log are required.
type Config struct {
	// Socket is the path to listen on, Access its mode and owner.
	Socket string
	Access claim.SocketOptions
	// Users are those who are served.
	Users Users
	// Source has the workload's secret. If it is nil, another server has it, and only the secrets of files are served.
	Source Source
	// Lists has the revocation list, nil for none.
	Lists Lists
	// Files has the secrets of files, nil for none, and Names says which of them may be requested; both or none.
	Files Files
	Names Names
	// KeyProvider uses the workload's private key in Envoy's stead; nil for none.
	KeyProvider *KeyProvider
	Log         *slog.Logger
	// after is time.After, except in tests.
	after func(time.Duration) <-chan time.Time
}

// Server serves one socket.
type Server struct {
	Config
	listener *guarded // nil if it could not be opened yet
	restores chan chan error
	// plain is done when it was told that Envoy uses the key itself.
	plain sync.Once
}

// New opens the socket at once, so that a problem with its path is reported before
// anything starts. A socket without a listener is replaced; one with a listener is an error, which wraps *claim.InUseError. The folder is
// created with mode 0750. [agent P12, P15] A problem that may pass, such as too many open files, is not an error: Run then tries
// again. Call Run, or Close instead of Run.
func New(c Config) (*Server, error) {
	if c.after == nil {
		c.after = time.After
	}
	s := &Server{Config: c, restores: make(chan chan error)}
	if err := s.listen(); err != nil {
		if !temporary(err) {
			return nil, fmt.Errorf("listen for Envoy's secrets: %w", err)
		}
		c.Log.Warn("secrets are not served yet", "reason", err)
	}
	return s, nil
}

func (s *Server) listen() error {
	l, err := claim.Socket(s.Socket, s.Access)
	if err == nil {
		s.listener = &guarded{Listener: l, users: s.Users, log: s.Log}
	}
	return err
}

// Close closes the socket of a server that was never run.
func (s *Server) Close() error {
	if s.listener == nil {
		return nil
	}
	return s.listener.Close()
}

// Run serves until ctx ends, then ends every stream and returns nil. If the socket cannot be opened, or fails, it
// is opened again, five times with doubling waits; then Run returns an error. Call it once.
func (s *Server) Run(ctx context.Context) error {
	wait := firstWait
	for attempt := 1; ; attempt++ {
		var err error
		if s.listener == nil {
			err = s.listen()
		}
		if err == nil {
			if err = s.serve(ctx); err == nil {
				return nil
			}
			s.listener = nil
		}
		if attempt == maxAttempts {
			return fmt.Errorf("serve secrets: %d attempts: %w", attempt, err)
		}
		s.Log.Warn("secrets are not served", "reason", err, "attempt", attempt, "next", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-s.after(wait):
		}
		wait *= 2
	}
}

// serve serves one listener. The error is nil if ctx ended.
func (s *Server) serve(ctx context.Context) error {
	g := grpc.NewServer(
		grpc.ForceServerCodecV2(codec{}), grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(maxRequest),
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
	err := s.accept(g)
	if stop() { // accept ended by itself
		g.Stop()
		return err
	}
	<-stopped
	return nil
}

// accept accepts connections until accepting fails, or g is stopped. When the socket is opened again, connections stay.
func (s *Server) accept(g *grpc.Server) error {
	type end struct {
		of  *guarded
		err error
	}
	ends := make(chan end)
	running := 0
	begin := func(l *guarded) {
		running++
		go func() { ends <- end{l, g.Serve(l)} }()
	}
	begin(s.listener)
	defer func() {
		g.Stop() // for those that are left
		for ; running > 0; running-- {
			<-ends
		}
	}()
	for {
		select {
		case e := <-ends:
			running--
			if e.of == s.listener {
				return e.err
			}
		case answer := <-s.restores:
			before := s.listener
			err := s.restore()
			if s.listener != before {
				begin(s.listener)
				err = errors.Join(err, before.Close())
			}
			answer <- err
		}
	}
}

// Restore opens the socket again if its path does not lead to this server any more: other users can replace the file in a folder that
// they may write to, and Envoy does not check who serves it. Connections stay. Another server that one of Users runs is left
// alone. It may be called by any goroutine while Run runs.
func (s *Server) Restore(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case s.restores <- answer:
		return <-answer
	case <-ctx.Done():
		return nil
	}
}

func (s *Server) restore() error {
	lost := claim.Lost(s.listener.Listener)
	var other *claim.InUseError
	served := errors.As(lost, &other)
	switch {
	case lost == nil:
		return nil
	case served && s.Users.Has(other.UID):
		s.Log.Error("another server has taken the place of the secrets' socket, and is left alone because its user may have the secrets", "socket", s.Socket, "uid", other.UID,
			"remedy", "stop it, or restart the agent to use it")
		return nil
	}
	if err := os.Remove(s.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("open the secrets' socket again: %w", err)
	}
	if err := s.listen(); err != nil {
		return fmt.Errorf("open the secrets' socket again: %w", err)
	}
	s.Log.Error("the secrets' socket was removed or replaced by another process, and is open again", "socket", s.Socket, "reason", lost,
		"remedy", "give the folder a mode in which only the agent's user can write")
	return nil
}

// service describes SecretDiscoveryService.
var service = grpc.ServiceDesc{
	ServiceName: "envoy.service.secret.v3.SecretDiscoveryService",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "FetchSecrets", Handler: func(s any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		r := &request{}
		if err := decode(r); err != nil {
			return nil, err
		}
		return s.(*Server).fetch(ctx, r)
	}}},
	Streams: []grpc.StreamDesc{
		{StreamName: "StreamSecrets", ServerStreams: true, ClientStreams: true, Handler: func(s any, st grpc.ServerStream) error {
			me := &stream{}
			return serveStream(s.(*Server), st, me.request, me.response, func() []string { return me.names }, func(r *request) extensions { return r.client })
		}},
		{StreamName: "DeltaSecrets", ServerStreams: true, ClientStreams: true, Handler: func(s any, st grpc.ServerStream) error {
			me := &delta{}
			return serveStream(s.(*Server), st, me.request, me.response, me.subscribed, func(r *deltaRequest) extensions { return r.client })
		}},
	},
}

// client is what one stream or call sees of the server's sources.
type client struct {
	*Server
	files *follower
	// extensions are those of the client.
	extensions extensions
	// warned are the problems that were logged.
	warned []string
	// Closed when there may be something new.
	secret, list, file, names <-chan struct{}
}

func (s *Server) newClient() *client { return &client{Server: s, files: newFollower(s.Files, s.Names)} }

// close stops following files.
func (c *client) close() { c.files.set(nil) }

// follow makes names the requested names, and reports names that are not served.
func (c *client) follow(names []string) {
	problems := c.files.set(names)
	for _, n := range names {
		if p := c.unknown(n); p != "" {
			problems = append(problems, p)
		}
	}
	for _, p := range problems {
		if !slices.Contains(c.warned, p) {
			c.Log.Warn("a secret is requested that is not served", "reason", p)
		}
	}
	c.warned = problems
}

// unknown says why a name is not served whatever the configuration is; empty if it is.
func (c *client) unknown(name string) string {
	switch {
	case isFile(name) && c.Server.Files != nil:
		return ""
	case name == LeafName && c.Source != nil && c.withoutProvider() && !c.KeyProvider.Fallback:
		return fmt.Sprintf("secret %q: this Envoy has no private key provider %q: set privateKeyProvider.%s.fallback, or use an Envoy that has it", name, c.KeyProvider.Name, c.KeyProvider.Name)
	case (name == LeafName || name == RootsName) && c.Source != nil:
		return ""
	}
	return fmt.Sprintf("secret %.200q: the agent has none of this name", name)
}

// withoutProvider reports whether the client lacks the provider that is configured. Envoy itself rejects a secret with a provider that it does not
// know, even where the provider may be left out.
func (c *client) withoutProvider() bool {
	return c.KeyProvider != nil && c.extensions.lacks(c.KeyProvider)
}

// is records what the client says of itself in a request.
func (c *client) is(e extensions) {
	if !e.listed {
		return
	}
	c.extensions = e
	if c.Source != nil && c.withoutProvider() && c.KeyProvider.Fallback {
		c.plain.Do(func() {
			c.Log.Warn("this Envoy has no such private key provider, and uses the workload's key itself, as privateKeyProvider's fallback says", "provider", c.KeyProvider.Name)
		})
	}
}

// find returns a lookup of the current secrets. What changes later closes a channel of the client.
func (c *client) find() lookup {
	var secret *pki.Secret
	var list []byte
	complete := true
	if c.Source != nil {
		secret, c.secret = c.Source.Current()
	}
	if c.Lists != nil {
		list, complete, c.list = c.Lists.Current()
	}
	c.file, c.names = c.files.changed(), c.files.namesChanged()
	return func(name string) resource {
		if p := c.unknown(name); p != "" {
			return resource{problem: p}
		}
		provider, value := c.KeyProvider, secret
		if c.withoutProvider() {
			provider = nil
		}
		if isFile(name) {
			if p := c.files.entries[name].problem; p != "" {
				return resource{problem: p}
			}
			provider, value = nil, c.Server.Files.Get(name)
		}
		switch {
		case value == nil, name == RootsName && !complete:
			return resource{}
		case isPair(name):
			return resource{version: pki.VersionOf(value.Key, value.Chain), encode: func() []byte { return encodePair(name, value.Chain, value.Key, provider) }}
		case name == RootsName && len(list) > 0:
			return resource{version: pki.VersionOf(value.Roots, list), encode: func() []byte { return encodeRoots(name, value.Roots, list) }}
		}
		return resource{version: pki.VersionOf(value.Roots), encode: func() []byte { return encodeRoots(name, value.Roots, nil) }}
	}
}

// serveStream serves one stream, whose state is behind the functions. [agent D6–D9]
func serveStream[R any](s *Server, st grpc.ServerStream, request func(*R) (report, error), response func(lookup) *response, names func() []string, client func(*R) extensions) error {
	requests, ended := receive[R](st)
	c := s.newClient()
	defer c.close()
	for {
		if r := response(c.find()); r != nil {
			if err := st.SendMsg(r); err != nil {
				return err
			}
			s.Log.Debug("secret sent", "names", names(), "version", r.version)
		}
		select {
		case <-c.secret:
		case <-c.list:
		case <-c.file:
		case <-c.names:
			c.follow(names())
		case req := <-requests:
			rep, err := request(req)
			if err != nil {
				return status.Error(codes.InvalidArgument, err.Error())
			}
			if rep.text != "" {
				s.Log.Warn(rep.text, "detail", rep.detail, "names", names())
			}
			c.is(client(req))
			c.follow(names())
		case err := <-ended:
			return err
		}
	}
}

// fetch answers one request when each name has a secret or a problem, at the latest after fetchTimeout with those that exist. It is an
// error if there are none.
func (s *Server) fetch(ctx context.Context, req *request) (*response, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	c, me := s.newClient(), &stream{}
	defer c.close()
	if _, err := me.request(&request{names: req.names, typeURL: req.typeURL}); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if len(me.names) == 0 {
		return nil, status.Error(codes.InvalidArgument, "invalid request: want the names of secrets")
	}
	c.is(req.client)
	c.follow(me.names)
	for {
		r := (&stream{names: me.names}).response(c.find())
		switch {
		case r == nil:
		case len(r.problems) == len(me.names):
			return nil, status.Error(codes.NotFound, r.problems[0].text)
		case len(r.resources)+len(r.problems) == len(me.names) || ctx.Err() != nil && len(r.resources) > 0:
			return r, nil
		}
		if ctx.Err() != nil {
			return nil, status.Error(codes.Unavailable, "the requested secrets do not exist yet")
		}
		select {
		case <-c.secret:
		case <-c.list:
		case <-c.file:
		case <-c.names:
			c.follow(me.names)
		case <-ctx.Done():
		}
	}
}

// receive reads requests into a channel, because a select needs one. The
// goroutine ends with the stream, which gRPC ends when its handler returns. The error is
// nil if the client closed the stream.
func receive[R any](st grpc.ServerStream) (<-chan *R, <-chan error) {
	requests, ended := make(chan *R), make(chan error, 1)
	go func() {
		for {
			r := new(R)
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
