// Package dns answers captured DNS queries: for the names of the mesh from a table, for others from the name servers of resolv.conf.
//
// Addresses of hosts in the table are answered at once, whatever else is in progress: a name without an address of the family in
// question has no address, and is not asked for elsewhere. Before the first table, that of an earlier agent is used, if it has
// saved one. For all other queries the client gets the response of a server, or SERVFAIL before its own
// timeout, never silence. Each query is sent with a random ID from a new port, and only a message
// from that server with that ID and question counts as its response. A truncated response is
// forwarded, so that the client retries over TCP. Servers are queried in the order and as often as
// resolv.conf says; a change of that file applies from the next query on. Concurrent queries,
// connections, their idle time and the size of messages are bounded. Zone transfers are answered
// with REFUSED, operations other than QUERY, NOTIFY and UPDATE with NOTIMP. conf.go, message.go and table.go
// are pure.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Options configure a Server. Address, Conf and Log are required.
type Options struct {
	// Address is the host:port to listen on over UDP and TCP, with a port of 1–65535. The host is
	// an IP address, or localhost for those of 127.0.0.1 and ::1 that this machine has.
	Address string
	// Conf is the path of the resolv.conf that names the servers.
	Conf string
	// Timeout overrides the timeout of resolv.conf, unless it is 0.
	Timeout time.Duration
	// Parallel queries all servers at once and uses the first response.
	Parallel bool
	// Self is what the names of the mesh depend on. Saved is the file with the table for the next agent; empty for none.
	Self  Self
	Saved string
	Log   *slog.Logger
}

// Stats are counters since the start: Queries of clients, those that were Answered from the table, Upstream queries to servers, and
// Failures, the upstream queries without a response. Waited is how long servers took to respond to all others, and Durations how many
// of these took up to each of DurationBounds, and more than the one before; the last is of those that took longer than all.
type Stats struct {
	Queries, Answered, Upstream, Failures uint64
	Waited                                time.Duration
	Durations                             [len(DurationBounds) + 1]uint64
}

// DurationBounds are those of the histogram that Istio's agent has.
var DurationBounds = [...]time.Duration{time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, time.Second, 5 * time.Second}

// Server answers queries. Make it with New; call Run once, or Close.
type Server struct {
	log        *slog.Logger
	addrs      []netip.AddrPort
	udpConns   []*net.UDPConn
	listeners  []net.Listener
	up         *upstream
	queries    atomic.Uint64
	answered   atomic.Uint64 // from the table
	loopLogged atomic.Bool
	names      names
	table      atomic.Pointer[Table]
	turn       atomic.Uint32
}

// New opens the sockets and reads resolv.conf. It returns an error if the address is invalid or in use.
func New(o Options) (*Server, error) {
	s := &Server{log: o.Log, names: names{self: o.Self, path: o.Saved, log: o.Log, changed: make(chan struct{}, 1)}}
	addrs, optional, err := parseAddress(o.Address)
	if err != nil {
		return nil, err
	}
	var missing error
	for _, a := range addrs {
		err := s.listen(a)
		if optional && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
			missing = err
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("listen for DNS at DNS_PROXY_ADDR: %w (stop the program that uses the address, or unset ISTIO_META_DNS_CAPTURE)", err), s.Close())
		}
	}
	if len(s.addrs) == 0 {
		return nil, fmt.Errorf("listen for DNS: %w", missing)
	}
	s.up = newUpstream(o, s.addrs)
	s.load()
	s.log.Info("captured DNS queries for other names than the mesh's are forwarded to the servers of "+o.Conf, "listening", s.addrs, "servers", s.up.conf.current().servers)
	return s, nil
}

// parseAddress parses host:port. If the addresses are optional, one that is available is enough.
func parseAddress(address string) (addrs []netip.AddrPort, optional bool, err error) {
	host, port, err := net.SplitHostPort(address)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err == nil && (portErr != nil || n == 0) {
		err = fmt.Errorf("invalid port %q: want 1–65535", port)
	}
	if err != nil {
		return nil, false, fmt.Errorf("parse DNS_PROXY_ADDR %q: %w", address, err)
	}
	if host == "localhost" {
		return []netip.AddrPort{
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(n)), netip.AddrPortFrom(netip.IPv6Loopback(), uint16(n)),
		}, true, nil
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil, false, fmt.Errorf("parse DNS_PROXY_ADDR %q: invalid host %q: want localhost or an IP address", address, host)
	}
	return []netip.AddrPort{netip.AddrPortFrom(ip, uint16(n))}, false, nil
}

// listen opens both sockets of an address, or none.
func (s *Server) listen(a netip.AddrPort) error {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(a))
	if err != nil {
		return err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
	if err != nil {
		return errors.Join(err, c.Close())
	}
	s.addrs, s.udpConns, s.listeners = append(s.addrs, a), append(s.udpConns, c), append(s.listeners, l)
	return nil
}

// Close closes the sockets. Only a server that does not run needs it.
func (s *Server) Close() error {
	var errs []error
	for i := range s.udpConns {
		errs = append(errs, s.udpConns[i].Close(), s.listeners[i].Close())
	}
	return errors.Join(errs...)
}

// Run serves until ctx ends, closes the sockets, and returns nil. Call it once.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	udp, tcp := newLimiter(maxUDPQueries), newLimiter(maxTCPQueries)
	connections := make(chan struct{}, maxConnections)
	var group sync.WaitGroup
	group.Go(func() { s.save(ctx) })
	for i := range s.addrs {
		group.Go(func() { s.serveUDP(ctx, s.udpConns[i], udp) })
		group.Go(func() { s.serveTCP(ctx, s.listeners[i], connections, tcp) })
	}
	group.Wait()
	return nil
}

// Stats returns the counters. Any goroutine may call it.
func (s *Server) Stats() Stats {
	out := Stats{
		Queries: s.queries.Load(), Answered: s.answered.Load(), Upstream: s.up.sent.Load(), Failures: s.up.failed.Load(),
		Waited: time.Duration(s.up.waited.Load()),
	}
	for i := range out.Durations {
		out.Durations[i] = s.up.durations[i].Load()
	}
	return out
}

// respond returns the response to a client's message; nil if that is not a query.
func (s *Server) respond(ctx context.Context, msg []byte, from netip.AddrPort, t transport) []byte {
	q, code, ok := parseQuery(msg)
	if !ok {
		return nil
	}
	s.queries.Add(1)
	if code != noError {
		return q.failure(code)
	}
	if s.up.isOwnSocket(t, from) {
		if s.loopLogged.CompareAndSwap(false, true) {
			s.log.Error("the agent's own queries are captured too, and refused: run the agent as the user, group or cgroup that istio-iptables was given (its user is " +
				strconv.Itoa(os.Getuid()) + ")")
		}
		return q.failure(refused)
	}
	resp := s.up.resolve(ctx, q, t)
	if resp == nil {
		return q.failure(serverFailure)
	}
	return q.response(resp, t == overTCP)
}

// overloaded returns the response to a query beyond the limits; nil if the message is not a query.
func (s *Server) overloaded(msg []byte) []byte {
	q, _, ok := parseQuery(msg)
	if !ok {
		return nil
	}
	s.queries.Add(1)
	return q.failure(serverFailure)
}
