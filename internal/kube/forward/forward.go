// Package forward opens connections to ports of a Pod through the API server, as kubectl port-forward does.
//
// A Pod is connected to at the first use, and again after its connection was lost. No local port is opened, so no other
// user of this machine can use the connections. It needs create of pods/portforward in the Pod's namespace.
package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	// maxMessage bounds an error of the Pod's node, in bytes.
	maxMessage = 4 << 10
	// messageTimeout is how long that error may come after the end of the connection that it is about.
	messageTimeout = time.Second
)

// Pod opens connections to one Pod. It is safe for concurrent use.
type Pod struct {
	dialer   httpstream.Dialer
	requests atomic.Int64
	// session holds the connection to the API server; it is nil inside until the first use, and after an error.
	session chan httpstream.Connection
}

// New returns a Pod. It opens no connection.
func New(config *rest.Config, namespace, pod string) (*Pod, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to Pod %s/%s: %w", namespace, pod, err)
	}
	u := base.JoinPath("api", "v1", "namespaces", namespace, "pods", pod, "portforward")
	dialer, err := newDialer(config, u)
	if err != nil {
		return nil, fmt.Errorf("connect to Pod %s/%s: %w", namespace, pod, err)
	}
	p := &Pod{dialer: dialer, session: make(chan httpstream.Connection, 1)}
	p.session <- nil
	return p, nil
}

// newDialer prefers WebSockets, as kubectl does, and uses SPDY with API servers and proxies that refuse them.
func newDialer(config *rest.Config, u *url.URL) (httpstream.Dialer, error) {
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	web, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, config)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialerForStreaming(web, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// Dial connects to a TCP port of the Pod, from the Pod's own loopback. That nobody listens there is an error of the
// connection's first Read. Connections have no deadlines.
func (p *Pod) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() { // the libraries take no context
		c, err := p.dial(ctx, port)
		done <- result{c, err}
	}()
	select {
	case r := <-done:
		return r.conn, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.conn != nil {
				_ = r.conn.Close() // nobody wants it any more
			}
		}()
		return nil, fmt.Errorf("connect through the API server: %w", ctx.Err())
	}
}

func (p *Pod) dial(ctx context.Context, port uint16) (net.Conn, error) {
	session, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	header.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	header.Set(corev1.PortForwardRequestIDHeader, strconv.FormatInt(p.requests.Add(1), 10))
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	errs, err := session.CreateStream(header)
	if err != nil {
		return nil, fmt.Errorf("connect through the API server: %w", err)
	}
	_ = errs.Close() // nothing is written to it
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := session.CreateStream(header)
	if err != nil {
		_ = errs.Reset()
		return nil, fmt.Errorf("connect through the API server: %w", err)
	}
	c := &conn{data: data, errs: errs, session: session, message: make(chan string, 1)}
	go func() {
		text, _ := io.ReadAll(io.LimitReader(errs, maxMessage)) // an end without a message is none
		c.message <- string(text)
	}()
	return c, nil
}

// open returns the connection to the API server, a new one if there is none or it was lost.
func (p *Pod) open(ctx context.Context) (httpstream.Connection, error) {
	var session httpstream.Connection
	select {
	case session = <-p.session:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { p.session <- session }()
	if session != nil {
		select {
		case <-session.CloseChan():
			session = nil
		default:
			return session, nil
		}
	}
	opened, _, err := p.dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, fmt.Errorf("connect through the API server: %w", err)
	}
	session = opened
	return session, nil
}

// Close ends all connections. It does not wait for one that is being opened, which ends afterwards. A later Dial opens
// new ones.
func (p *Pod) Close() error {
	end := func(session httpstream.Connection) error {
		defer func() { p.session <- nil }()
		if session == nil {
			return nil
		}
		return session.Close()
	}
	select {
	case session := <-p.session:
		return end(session)
	default:
		go func() { _ = end(<-p.session) }() // nobody uses it
		return nil
	}
}

// conn is one connection to a port: a stream of data, and one for an error of the node.
type conn struct {
	data, errs httpstream.Stream
	session    httpstream.Connection
	message    chan string
}

// Read implements net.Conn. If the connection has ended because of an error of the node, that is the error.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.data.Read(b)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	_ = c.data.Close() // the node ends the stream of errors only after both sides have ended this one
	timer := time.NewTimer(messageTimeout)
	defer timer.Stop()
	select {
	case text := <-c.message:
		c.message <- text
		if text != "" {
			return n, errors.New(strings.TrimSpace(text))
		}
	case <-timer.C:
	}
	return n, io.EOF
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) { return c.data.Write(b) }

// Close implements net.Conn.
func (c *conn) Close() error {
	err := c.data.Reset()
	_ = c.errs.Reset() // ends the goroutine that reads it
	c.session.RemoveStreams(c.data, c.errs)
	return err
}

// LocalAddr implements net.Conn.
func (*conn) LocalAddr() net.Addr { return address{} }

// RemoteAddr implements net.Conn.
func (*conn) RemoteAddr() net.Addr { return address{} }

// SetDeadline implements net.Conn.
func (*conn) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline implements net.Conn.
func (*conn) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements net.Conn.
func (*conn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

// address is that of both ends, which are not known.
type address struct{}

// Network implements net.Addr.
func (address) Network() string { return "portforward" }

// String implements net.Addr.
func (address) String() string { return "portforward" }
