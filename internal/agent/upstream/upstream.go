// Package upstream connects the agent to the servers of its control plane: discovery and the certificate authority.
//
// A Server is the only place that decides on TLS or plaintext, roots, client certificate, token,
// headers and keepalive. The roots and the client certificate are read for each handshake and the
// token for each call, so that a rotated file is used without a restart, and a missing one is an error
// of that handshake or call which names the file. The token is sent with every call of a connection
// without a client certificate, or whose client certificate has expired. Names are resolved for each
// connection attempt. Proxies of the environment are not used: these servers are part of the mesh.
package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// SystemRoots as Options.RootFile selects the operating system's root certificates. [agent E11]
const SystemRoots = "SYSTEM"

// plaintextPort is the port where control planes serve without TLS. [agent S8]
const plaintextPort = "15010"

// dialTimeout bounds one attempt to resolve the name and open a TCP connection.
const dialTimeout = 5 * time.Second

// Options configure a Server. Name and Address are required.
type Options struct {
	// Name is the server's name in errors, such as "CA".
	Name string
	// Address is host:port. Port 15010 means plaintext.
	Address string
	// RootFile is the file of PEM root certificates for the server's certificate, or SystemRoots.
	RootFile string
	// RootsFrom is where the roots come from, in errors; empty means RootFile.
	RootsFrom string
	// ChooseRootFile, unless nil, returns the RootFile of each handshake. It must allow concurrent calls.
	ChooseRootFile func() string
	// Trust, unless nil, returns the roots to use for a handshake, from those in RootFile: a mesh may have
	// rotated its root since the file was written. It must allow concurrent calls.
	Trust func(file []*x509.Certificate) []*x509.Certificate
	// TLS limits versions, ciphers and curves.
	TLS pki.TLSPolicy
	// ServerName is the name to verify in the server's certificate; empty means the host of Address.
	ServerName string
	// Token returns the bearer token for one call; TokenFile and GCE make such functions. An error that wraps
	// fs.ErrNotExist is none if there is a client certificate. Nil means that there is no token. It must allow
	// concurrent calls.
	Token func(context.Context) (string, error)
	// PlaintextToken sends the token on plaintext connections too: a certificate authority needs it to
	// authenticate its clients, discovery does not.
	PlaintextToken bool
	// Certificate, unless nil, returns the workload's certificate, or nil while there is none. It must
	// allow concurrent calls.
	Certificate func() *tls.Certificate
	// ProvisionedDir is the directory of cert-chain.pem and key.pem, which are presented while there is
	// no valid workload certificate; empty for none.
	ProvisionedDir string
	// ClusterID and Headers are sent with each call. Header names may have any case. [agent S6]
	ClusterID string
	Headers   map[string]string
	// Keepalive is the idle time of a connection before a keepalive probe, KeepaliveTimeout the
	// timeout of the probe. Keepalive 0 means no probes; gRPC raises values below 10 s to 10 s.
	Keepalive, KeepaliveTimeout time.Duration
}

// Server is one server of the control plane. It may be used by several goroutines at once.
type Server struct{ o Options }

// New returns a Server, and an error unless the address is host:port. It reads no file and opens no connection.
func New(o Options) (*Server, error) {
	host, port, err := net.SplitHostPort(o.Address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("parse the address of the %s: %w", o.Name, err)
	case host == "" || port == "":
		return nil, fmt.Errorf("parse the address of the %s: invalid address %q: want host:port", o.Name, o.Address)
	}
	return &Server{o: o}, nil
}

// Plaintext reports whether connections to an address, host:port, are made without TLS: those to port
// 15010. [agent S8]
func Plaintext(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port == plaintextPort
}

// RootFile returns the file by which the server is verified; empty if that is none.
func (s *Server) RootFile() string {
	if file := s.o.rootFile(); file != SystemRoots && !Plaintext(s.o.Address) {
		return file
	}
	return ""
}

// Address returns the server's address, host:port.
func (s *Server) Address() string { return s.o.Address }

// Connect returns a connection, which is opened when it is first used, or by its Connect method. The
// function failed, unless nil, is called with the error of each failed attempt, from any goroutine.
// opts are additional options, such as codecs or backoff.
func (s *Server) Connect(failed func(error), opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if failed == nil {
		failed = func(error) {}
	}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		d := net.Dialer{Timeout: dialTimeout}
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			failed(err)
		}
		return c, err
	}
	all := []grpc.DialOption{grpc.WithContextDialer(dial), grpc.WithNoProxy(), grpc.WithDisableServiceConfig()}
	if s.o.Keepalive > 0 {
		all = append(all, grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: s.o.Keepalive, Timeout: s.o.KeepaliveTimeout}))
	}
	plain := Plaintext(s.o.Address)
	all = append(all, grpc.WithPerRPCCredentials(&callCredentials{o: &s.o, plaintext: plain}))
	if plain {
		all = append(all, grpc.WithTransportCredentials(insecure.NewCredentials()))
	} else {
		all = append(all, grpc.WithTransportCredentials(&transport{o: &s.o, failed: failed}))
		if s.o.ServerName != "" {
			all = append(all, grpc.WithAuthority(s.o.ServerName))
		}
	}
	c, err := grpc.NewClient("passthrough:///"+s.o.Address, append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to the %s %s: %w", s.o.Name, s.o.Address, err)
	}
	return c, nil
}

// Handshake is the result of a connection that was only opened and closed.
type Handshake struct {
	// Plaintext says that there was no TLS; Certificates are the server's, verified, its leaf first.
	Plaintext    bool
	Certificates []*x509.Certificate
}

// Try opens a connection as Connect does, with the same roots, names and client certificate, and closes it. No call is
// made and no token is sent.
func (s *Server) Try(ctx context.Context) (Handshake, error) {
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(ctx, "tcp", s.o.Address)
	if err != nil {
		return Handshake{}, err
	}
	defer c.Close()
	if Plaintext(s.o.Address) {
		return Handshake{Plaintext: true}, nil
	}
	if until, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(until); err != nil {
			return Handshake{}, err
		}
	}
	authority := s.o.ServerName
	if authority == "" {
		authority = s.o.Address
	}
	conn, info, err := (&transport{o: &s.o}).handshake(ctx, authority, c)
	if err != nil {
		return Handshake{}, err
	}
	defer conn.Close()
	return Handshake{Certificates: info.(authInfo).State.PeerCertificates}, nil
}
