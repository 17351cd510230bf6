// Package dns passes the questions that capture sends to the agent on to the name servers of resolv.conf.
//
// It answers nothing of its own: what comes back is what a server said, or SERVFAIL before the
// asker gives up, never silence. Each question goes out under a random id from a port of its own,
// and only a message from the server that was asked, with that id and that question, is an answer
// to it; a truncated one is passed back so that the asker comes again by TCP. Servers are asked in
// their order, and as often, as resolv.conf says; a change of that file holds from the next
// question on. Questions at a time, connections, their idle time and the length of messages are
// bounded. Not passed on are transfers of zones (REFUSED) and operations other than QUERY, NOTIFY
// and UPDATE (NOTIMP). conf.go and message.go are pure.
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

// Options say where questions come from and where they go.
type Options struct {
	// Address is host:port to listen on by UDP and TCP. The host is an address, or localhost, which
	// stands for 127.0.0.1 and ::1, whichever this machine has.
	Address string
	// Conf is the path of the resolv.conf that names the servers.
	Conf string
	// Timeout goes over the one of resolv.conf, unless it is 0.
	Timeout time.Duration
	// Parallel asks all servers at once and takes the first answer.
	Parallel bool
	Log      *slog.Logger
}

// Stats count since the start. Questions are the application's, Upstream those to servers, and
// Failures those of the latter that brought no answer.
type Stats struct{ Questions, Upstream, Failures uint64 }

// Server passes questions on.
type Server struct {
	log       *slog.Logger
	addrs     []netip.AddrPort
	packets   []*net.UDPConn
	listeners []net.Listener
	up        *upstream
	questions atomic.Uint64
	looped    atomic.Bool
}

// New opens the sockets and reads resolv.conf. It fails where an address is taken or is none.
func New(o Options) (*Server, error) {
	s := &Server{log: o.Log}
	addrs, either, err := addresses(o.Address)
	if err != nil {
		return nil, err
	}
	var missing error
	for _, a := range addrs {
		err := s.open(a)
		if either && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
			missing = err
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("take the address for DNS: %w (another program answers there: end it, or unset ISTIO_META_DNS_CAPTURE)", err), s.Close())
		}
	}
	if len(s.addrs) == 0 {
		return nil, fmt.Errorf("take the address for DNS: %w", missing)
	}
	s.up = newUpstream(o, s.addrs)
	s.log.Info("captured DNS is passed on to the servers of "+o.Conf+"; the mesh's own names are not answered here",
		"listening", s.addrs, "servers", s.up.conf.current().servers)
	return s, nil
}

// addresses reads host:port. The second result says that one of those listed will do.
func addresses(address string) ([]netip.AddrPort, bool, error) {
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
		return nil, false, fmt.Errorf("parse DNS_PROXY_ADDR %q: host %q is neither localhost nor an IP address", address, host)
	}
	return []netip.AddrPort{netip.AddrPortFrom(ip, uint16(n))}, false, nil
}

// open takes both sockets of an address, or none.
func (s *Server) open(a netip.AddrPort) error {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(a))
	if err != nil {
		return err
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
	if err != nil {
		return errors.Join(err, c.Close())
	}
	s.addrs, s.packets, s.listeners = append(s.addrs, a), append(s.packets, c), append(s.listeners, l)
	return nil
}

// Close gives the sockets back of a server that never ran.
func (s *Server) Close() error {
	var errs []error
	for i := range s.packets {
		errs = append(errs, s.packets[i].Close(), s.listeners[i].Close())
	}
	return errors.Join(errs...)
}

// Run answers until ctx ends, then returns nil. Call it once; it closes the sockets.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	packets, streams := newGate(maxPackets), newGate(maxStreamed)
	connections := make(chan struct{}, maxConnections)
	var group sync.WaitGroup
	for i := range s.addrs {
		group.Go(func() { s.servePackets(ctx, s.packets[i], packets) })
		group.Go(func() { s.serveStreams(ctx, s.listeners[i], connections, streams) })
	}
	group.Wait()
	return nil
}

// Stats is how much was asked and answered so far. Any goroutine may call it.
func (s *Server) Stats() Stats {
	return Stats{Questions: s.questions.Load(), Upstream: s.up.sent.Load(), Failures: s.up.failed.Load()}
}

// answer is what an asker is to be told; nil where what came was no question.
func (s *Server) answer(ctx context.Context, msg []byte, from netip.AddrPort, t transport) []byte {
	q, c, ok := readQuery(msg)
	if !ok {
		return nil
	}
	s.questions.Add(1)
	if c != good {
		return q.failure(c)
	}
	if s.up.asks(t, from) {
		if s.looped.CompareAndSwap(false, true) {
			s.log.Error("the agent's own questions are captured too, and refused: run the agent as the user, group or cgroup that istio-iptables was told (" +
				strconv.Itoa(os.Getuid()) + " is this one's user)")
		}
		return q.failure(refused)
	}
	got := s.up.ask(ctx, q, t)
	if got == nil {
		return q.failure(serverFailure)
	}
	return q.back(got, t == overTCP)
}

// busy is what an asker is told who can't be served now; nil where what came was no question.
func (s *Server) busy(msg []byte) []byte {
	q, _, ok := readQuery(msg)
	if !ok {
		return nil
	}
	s.questions.Add(1)
	return q.failure(serverFailure)
}
