// Package upstream connects the agent to the servers of its control plane: discovery and the certificate authority.
//
// A Server says where one of them is and how the two sides prove who they are; it is the only place
// that decides on TLS or plaintext, roots, client certificate, token, headers and keepalive. The
// contract: the roots and the client certificate are read at each handshake and the token at each
// call, so that a rotated file counts without a restart, and a missing one is an error of that
// handshake or call which names the file. The token goes with every call of a connection on which no
// client certificate was presented, or one that has expired since. Names are resolved at each attempt to connect, and no proxy of
// the environment is used: these servers are part of the mesh.
package upstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// SystemRoots as a root file stands for the operating system's certificates. [agent E11]
const SystemRoots = "SYSTEM"

// plaintextPort is where control planes serve without TLS. [agent S8]
const plaintextPort = "15010"

// dialTimeout bounds one attempt to open a TCP connection, resolving the name included.
const dialTimeout = 5 * time.Second

// Options say where a server is and what to present to it.
type Options struct {
	// Name is what errors call the server, such as "CA".
	Name string
	// Address is host:port. Port 15010 means plaintext.
	Address string
	// RootFile holds the PEM certificates that the server's must lead to, or is SystemRoots.
	RootFile string
	// ServerName is what the server's certificate must be for; empty means the host of Address.
	ServerName string
	// TokenFile holds the bearer token. It need not exist where a certificate is presented.
	TokenFile string
	// PlaintextToken sends the token on plaintext connections too. A certificate authority has
	// nothing else to know its callers by; discovery asks for nothing there.
	PlaintextToken bool
	// Certificate is the workload's certificate, nil while there is none. It is called from any
	// goroutine and may be nil.
	Certificate func() *tls.Certificate
	// ProvisionedDir holds cert-chain.pem and key.pem, which are presented while there is no
	// valid workload certificate; empty for none.
	ProvisionedDir string
	// ClusterID and Headers go with each call. Header names may have any case. [agent S6]
	ClusterID string
	Headers   map[string]string
	// Keepalive is how long a connection is quiet before it is probed, and KeepaliveTimeout how
	// long the answer may take. Keepalive 0 never probes; gRPC raises values below 10 s to 10 s.
	Keepalive, KeepaliveTimeout time.Duration
}

// Server is one server of the control plane. Any goroutine may use it.
type Server struct{ o Options }

// New checks the options; it reads no file and opens no connection. The address must be host:port.
func New(o Options) (*Server, error) {
	host, port, err := net.SplitHostPort(o.Address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("address of the %s: %w", o.Name, err)
	case host == "" || port == "":
		return nil, fmt.Errorf("address of the %s: %q: want host:port", o.Name, o.Address)
	}
	return &Server{o: o}, nil
}

// Plaintext says whether connections to an address are made without TLS: those to port 15010. [agent S8]
func Plaintext(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port == plaintextPort
}

// Address is the server's, host:port.
func (s *Server) Address() string { return s.o.Address }

// Connect makes a connection; it is opened by its first use, or by its Connect method. The function
// failed, unless nil, is told why an attempt to connect failed, from any goroutine. Further options
// are those of the use: buffers, codecs, backoff.
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
