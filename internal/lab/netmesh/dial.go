package netmesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects from the Pod, as the user that this program runs as. Network is tcp or udp, with
// or without 4 or 6; the host is an address, localhost, the Pod's own name or one in its
// /etc/hosts. Only the socket is made on the Pod's thread, so a slow dial holds nothing up.
func (p *Pod) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := p.dial(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("dial %s %s from Pod %s: %w", network, addr, p.name, err)
	}
	return conn, nil
}

func (p *Pod) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	to, err := p.resolve(addr)
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(network, "4") && !to.Addr().Is4() || strings.HasSuffix(network, "6") && !to.Addr().Is6() {
		return nil, fmt.Errorf("%s does not match the network %s", to, network)
	}
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	if strings.HasPrefix(network, "udp") {
		kind = unix.SOCK_DGRAM
	} else if !strings.HasPrefix(network, "tcp") {
		return nil, net.UnknownNetworkError(network)
	}
	var fd int
	err = p.thread.do(func() (err error) {
		fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		unix.Close(fd)
		return nil, os.NewSyscallError("connect", err)
	}
	f := os.NewFile(uintptr(fd), addr)
	defer f.Close()
	if err := awaitConnect(ctx, f); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// awaitConnect waits until a connect that was begun has ended, or the context has.
func awaitConnect(ctx context.Context, f *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err != nil {
			result = os.NewSyscallError("connect", err)
			return true
		}
		// Readiness may be an older event's: only a peer proves a connection.
		_, err = unix.Getpeername(int(fd))
		return err == nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, result)
}

// resolve reads host:port with the names that the Pod knows, preferring IPv4.
func (p *Pod) resolve(addr string) (netip.AddrPort, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("invalid port %q: want 0–65535", portText)
	}
	p.mu.Lock()
	ip, known := p.hosts[host]
	p.mu.Unlock()
	switch {
	case known:
	case host == "localhost":
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case host == p.name:
		if ip = p.ip; !ip.IsValid() {
			ip = p.ip6
		}
	default:
		if ip, err = netip.ParseAddr(host); err != nil {
			return netip.AddrPort{}, fmt.Errorf("the Pod's /etc/hosts has no %q", host)
		}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(port)), nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// Listen listens in the Pod. The host of addr must be an address or empty.
func (p *Pod) Listen(network, addr string) (net.Listener, error) {
	var l net.Listener
	err := p.listen(addr, func(lc *net.ListenConfig) (err error) {
		l, err = lc.Listen(context.Background(), network, addr)
		return err
	})
	return l, err
}

// ListenPacket is Listen for datagrams.
func (p *Pod) ListenPacket(network, addr string) (net.PacketConn, error) {
	var c net.PacketConn
	err := p.listen(addr, func(lc *net.ListenConfig) (err error) {
		c, err = lc.ListenPacket(context.Background(), network, addr)
		return err
	})
	return c, err
}

// listen takes no names: looking one up would leave the Pod's thread.
func (p *Pod) listen(addr string, on func(*net.ListenConfig) error) error {
	if host, _, err := net.SplitHostPort(addr); err == nil && host != "" {
		if _, err := netip.ParseAddr(host); err != nil {
			return fmt.Errorf("listen on %s in Pod %s: %w", addr, p.name, err)
		}
	}
	var lc net.ListenConfig
	// Plain TCP, as nearly every server listens: a multipath socket hides original destinations.
	lc.SetMultipathTCP(false)
	return p.Do(func() error { return on(&lc) })
}

// HTTPClient makes requests from the Pod; all its users share one pool of connections.
func (p *Pod) HTTPClient() *http.Client { return p.client }
