package capture_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// labPorts are the ports of listeners in both Pods, TCP and UDP, beside those of the proxy and the
// agent.
var labPorts = []int{22, 53, 80, 443, 8005, 9000, 15008, 15020}

// lab is a captured Pod with more links than one: eth0 and eth1 to another Pod, which has every
// address of 10.20.0.0/16, 10.1.0.0/16, fd20::/32 and fd01::/32, and tap0 to a virtual machine, for
// which the Pod is the router.
type lab struct {
	world
	vm *netmesh.Pod

	mu       sync.Mutex
	arrivals map[uint32]arrival
}

// arrival is where a packet arrived, and its original destination where that is known.
type arrival struct {
	pod  string
	port int
	to   netip.AddrPort
}

func newLab(t *testing.T, tproxy bool) *lab {
	t.Helper()
	w := newWorld(t)
	l := &lab{world: w, arrivals: map[uint32]arrival{}}
	var err error
	// The mesh closes it.
	if l.vm, err = w.mesh.AddPod(netmesh.PodOptions{Name: "vm"}); err != nil {
		t.Fatal(err)
	}
	link(t, w.pod, w.other, "eth1", "10.98.0.%d/24", "fd98::%d/64")
	link(t, w.pod, l.vm, "tap0", "10.97.0.%d/24", "fd97::%d/64")
	for _, far := range []string{"10.20.0.0/16", "10.1.0.0/16", "fd20::/32", "fd01::/32"} {
		via, tap := "10.99.0.3", "10.97.0.2"
		if netip.MustParsePrefix(far).Addr().Is6() {
			via, tap = "fd99:99::b", "fd97::2"
		}
		route(t, w.pod, "eth0", far, via)
		route(t, l.vm, "tap0", far, tap)
		everyAddress(t, w.other, far)
	}
	route(t, w.other, "eth0", "10.97.0.0/24", "10.99.0.2")
	route(t, w.other, "eth0", "fd97::/64", "fd99:99::a")
	sysctls(t, w.pod, "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
	for _, p := range []*netmesh.Pod{w.pod, w.other} {
		ports := labPorts
		if p == w.pod {
			ports = append([]int{15001, 15006, 15053}, labPorts...)
		}
		for _, port := range ports {
			l.listenTCP(t, p, port, tproxy && port == 15006)
			l.listenUDP(t, p, port)
		}
	}
	l.listenICMP(t, unix.AF_INET)
	l.listenICMP(t, unix.AF_INET6)
	return l
}

// valid marks the number of the packet that follows an invalid one.
const valid = 1 << 31

// The types of echo, of both versions.
var echo = map[int]struct{ protocol, request, reply byte }{
	unix.AF_INET: {unix.IPPROTO_ICMP, 8, 0}, unix.AF_INET6: {unix.IPPROTO_ICMPV6, 128, 129},
}

// listenICMP sees the echoes that reach the captured Pod.
func (l *lab) listenICMP(t *testing.T, family int) {
	t.Helper()
	var f *os.File
	do(t, l.pod, func() error {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(echo[family].protocol))
		f = os.NewFile(uintptr(fd), "icmp")
		return err
	})
	t.Cleanup(func() { f.Close() })
	go func() {
		var b [128]byte
		for {
			n, err := f.Read(b[:])
			if err != nil {
				return
			}
			icmp := b[:n]
			if family == unix.AF_INET && n > 20 {
				icmp = b[20:n]
			}
			if len(icmp) >= 8 && (icmp[0] == echo[family].request || icmp[0] == echo[family].reply) {
				l.arrive(binary.BigEndian.Uint32(icmp[4:]), arrival{pod: "pod"})
			}
		}
	}()
}

// sendInvalid sends an ICMP echo reply without a request, then a request that shows when the reply
// would have arrived.
func sendInvalid(p plan.Packet, id uint32) error {
	family := unix.AF_INET
	if p.To.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(echo[family].protocol))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = freebind(fd, family)
	err = errors.Join(err, unix.Bind(fd, sockaddr(netip.AddrPortFrom(p.From.Addr(), 0))))
	for _, m := range []struct {
		kind byte
		id   uint32
	}{{echo[family].reply, id}, {echo[family].request, id | valid}} {
		packet := binary.BigEndian.AppendUint32([]byte{m.kind, 0, 0, 0}, m.id)
		sum := uint32(m.kind)<<8 + m.id>>16 + m.id&0xffff
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(packet[2:], ^uint16(sum))
		err = errors.Join(err, unix.Sendto(fd, packet, 0, sockaddr(netip.AddrPortFrom(p.To.Addr(), 0))))
	}
	return err
}

func do(t *testing.T, p *netmesh.Pod, fn func() error) {
	t.Helper()
	if err := p.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// link joins two Pods; a has the address 2, b the address 3.
func link(t *testing.T, a, b *netmesh.Pod, name, v4, v6 string) {
	t.Helper()
	var ns *os.File
	do(t, b, func() (err error) {
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	defer ns.Close()
	do(t, a, func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: name, PeerNamespace: netlink.NsFd(ns.Fd())}
		veth.Name = name
		return netlink.LinkAdd(veth)
	})
	for n, p := range map[int]*netmesh.Pod{2: a, 3: b} {
		do(t, p, func() error {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			for _, text := range []string{fmt.Sprintf(v4, n), fmt.Sprintf(v6, n)} {
				addr, err := netlink.ParseAddr(text)
				if err != nil {
					return err
				}
				addr.Flags = unix.IFA_F_NODAD
				if err := netlink.AddrAdd(l, addr); err != nil {
					return err
				}
			}
			return netlink.LinkSetUp(l)
		})
	}
}

func route(t *testing.T, p *netmesh.Pod, nic, to, via string) {
	t.Helper()
	do(t, p, func() error {
		l, err := netlink.LinkByName(nic)
		if err != nil {
			return err
		}
		_, dst, err := net.ParseCIDR(to)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst, Gw: net.ParseIP(via)})
	})
}

func everyAddress(t *testing.T, p *netmesh.Pod, of string) {
	t.Helper()
	do(t, p, func() error {
		l, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		_, dst, err := net.ParseCIDR(of)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: l.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Table: unix.RT_TABLE_LOCAL,
		})
	})
}

func sysctls(t *testing.T, p *netmesh.Pod, keys ...string) {
	t.Helper()
	do(t, p, func() error {
		var errs []error
		for _, key := range keys {
			errs = append(errs, os.WriteFile("/proc/sys/"+key, []byte("1"), 0o644))
		}
		return errors.Join(errs...)
	})
}

func (l *lab) arrive(id uint32, a arrival) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrivals[id] = a
}

func (l *lab) arrived(id uint32) (arrival, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, ok := l.arrivals[id]
	return a, ok
}

// listenTCP identifies connections by their source ports, which are unique.
func (l *lab) listenTCP(t *testing.T, p *netmesh.Pod, port int, tproxy bool) {
	t.Helper()
	lc := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		if !tproxy {
			return nil
		}
		return transparent(network, c)
	}}
	lc.SetMultipathTCP(false)
	var ln net.Listener
	do(t, p, func() (err error) {
		ln, err = lc.Listen(t.Context(), "tcp", fmt.Sprintf(":%d", port))
		return err
	})
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conn := c.(*net.TCPConn)
			a := arrival{pod: p.Name(), port: port}
			switch local := conn.LocalAddr().(*net.TCPAddr).AddrPort(); {
			case tproxy && int(local.Port()) != port:
				a.to = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
			case port == 15001 || port == 15006 || port == 15053:
				a.to, _ = netip.ParseAddrPort(originalDestination(conn))
			}
			l.arrive(uint32(conn.RemoteAddr().(*net.TCPAddr).Port), a)
			conn.SetLinger(0)
			conn.Close()
		}
	}()
}

// listenUDP identifies datagrams by the number in them.
func (l *lab) listenUDP(t *testing.T, p *netmesh.Pod, port int) {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	}}
	var conn net.PacketConn
	do(t, p, func() (err error) {
		conn, err = lc.ListenPacket(t.Context(), "udp", fmt.Sprintf(":%d", port))
		return err
	})
	t.Cleanup(func() { conn.Close() })
	go func() {
		var b [16]byte
		for {
			n, _, err := conn.ReadFrom(b[:])
			if err != nil {
				return
			}
			if n == 4 {
				l.arrive(binary.BigEndian.Uint32(b[:]), arrival{pod: p.Name(), port: port})
			}
		}
	}()
}

// send sends a packet from the calling thread's Pod; a TCP one is a whole connection.
func send(p plan.Packet, id uint32, owner bool) error {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	if p.To.Addr().Is6() {
		family = unix.AF_INET6
	}
	if p.Protocol == "udp" {
		kind = unix.SOCK_DGRAM
	}
	if owner {
		setID(unix.SYS_SETFSGID, int(p.GID))
		setID(unix.SYS_SETFSUID, int(p.UID))
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if owner {
		setID(unix.SYS_SETFSUID, 0)
		setID(unix.SYS_SETFSGID, 0)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		freebind(fd, family),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 30}),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.Bind(fd, sockaddr(p.From)))
	if p.Mark != 0 {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(p.Mark)))
	}
	if err != nil {
		return err
	}
	// The listeners reset the connections that they record, perhaps before this returns.
	err = unix.Connect(fd, sockaddr(p.To))
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EINPROGRESS) {
		err = connected(fd) // a signal of Go's scheduler came between; the connection is on its way
	}
	if err != nil && !errors.Is(err, unix.ECONNRESET) {
		return err
	}
	err = nil
	if p.Protocol == "udp" {
		_, err = unix.Write(fd, binary.BigEndian.AppendUint32(nil, id))
	}
	return err
}

// connected waits for the end of a connect that goes on by itself.
func connected(fd int) error {
	for end := time.Now().Add(30 * time.Second); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 1000)
		switch {
		case n > 0:
			code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err != nil || code == 0 {
				return err
			}
			return unix.Errno(code)
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case time.Now().After(end):
			return unix.ETIMEDOUT
		}
	}
}

// freebind lets a socket use addresses that are this host's only by a route.
func freebind(fd, family int) error {
	if family == unix.AF_INET6 {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_FREEBIND, 1)
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
