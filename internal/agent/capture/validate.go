package capture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Validation sends probes through the rules that are in force.
type Validation struct {
	Probes []Probe
	// Timeout bounds each of the probes.
	Timeout time.Duration
}

// Run makes each probe's connection in the calling thread's network namespace and waits for it at
// the proxy's port, which nobody else may listen at. It returns how many probes arrived as they
// should and an error for each of the others. A probe that this process has not the right to make,
// or that has no route, counts as neither; skipped says why.
func (v Validation) Run(ctx context.Context) (good int, skipped []string, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var errs []error
	for _, p := range v.Probes {
		if reason := p.impossible(); reason != "" {
			skipped = append(skipped, reason)
			continue
		}
		if err := p.run(ctx, v.Timeout); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p, err))
			continue
		}
		good++
	}
	return good, skipped, errors.Join(errs...)
}

// String names the probe for people.
func (p Probe) String() string {
	return fmt.Sprintf("connect to %s as user %d and group %d", p.Packet.To, p.Packet.UID, p.Packet.GID)
}

// impossible says why the connection can't be made as the plan's owner, or at all.
func (p Probe) impossible() string {
	if p.Packet.Cgroup != "" {
		return fmt.Sprintf("%s: this process is not in the cgroup %s", p, p.Packet.Cgroup)
	}
	uid, gid := unix.Geteuid(), unix.Getegid()
	if p.Packet.Mark == 0 && uid != 0 && (uid != int(p.Packet.UID) || gid != int(p.Packet.GID)) {
		return fmt.Sprintf("%s: this is user %d and group %d", p, uid, gid)
	}
	if p.Packet.Interface == "lo" {
		return ""
	}
	// To connect a datagram socket sends nothing; that there is no route is known here, while an
	// answer from elsewhere that there is none shows that the rules did not hold.
	c, err := net.Dial("udp", p.Packet.To.String())
	if err != nil {
		return fmt.Sprintf("%s: there is no route: %v", p, err)
	}
	c.Close()
	return ""
}

func (p Probe) run(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	host := ipv4.loopback.Addr()
	if p.Packet.To.Addr().Is6() {
		host = ipv6.loopback.Addr()
	}
	// Go's listeners have SO_REUSEADDR. A multipath one would hide the original destination.
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(host, p.Port).String())
	if err != nil {
		return fmt.Errorf("listen in the proxy's place (it must not run yet): %w", err)
	}
	defer l.Close()
	arrived := make(chan error, 1)
	go func() { arrived <- p.accept(l) }()
	c, err := p.dial(ctx)
	if err != nil {
		l.Close()
		<-arrived
		return err
	}
	defer c.Close()
	select {
	case err = <-arrived:
	case <-ctx.Done():
		l.Close()
		if err = <-arrived; err != nil {
			err = fmt.Errorf("it did not arrive at port %d within %s", p.Port, timeout)
		}
	}
	return err
}

func (p Probe) accept(l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	to, err := originalDestination(c.(*net.TCPConn))
	if err != nil {
		return fmt.Errorf("read the original destination: %w", err)
	}
	if to != p.Packet.To {
		return fmt.Errorf("it arrived as one to %s", to)
	}
	return nil
}

// dial connects as the probe's owner: the kernel knows a socket by the file-system ids of the
// thread that made it.
func (p Probe) dial(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		if p.Packet.Mark == 0 {
			return nil
		}
		var err error
		controlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(p.Packet.Mark))
		})
		return errors.Join(controlErr, err)
	}}
	d.SetMultipathTCP(false)
	if p.Packet.From.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(p.Packet.From)
	}
	if unix.Geteuid() == 0 {
		uid, gid := setfs(unix.SYS_SETFSUID, ^uintptr(0)), setfs(unix.SYS_SETFSGID, ^uintptr(0))
		setfs(unix.SYS_SETFSGID, uintptr(p.Packet.GID))
		setfs(unix.SYS_SETFSUID, uintptr(p.Packet.UID))
		defer setfs(unix.SYS_SETFSGID, gid)
		defer setfs(unix.SYS_SETFSUID, uid)
	}
	return d.DialContext(ctx, "tcp", p.Packet.To.String())
}

// setfs sets a file-system id of the calling thread and returns the former one; it has no errors,
// and an id that nobody can have changes nothing.
func setfs(call, id uintptr) uintptr {
	before, _, _ := unix.RawSyscall(call, id, 0, 0)
	return before
}

// originalDestination is where a redirected connection was to go.
func originalDestination(c *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return to, err
	}
	const option = 80 // SO_ORIGINAL_DST, and IP6T_SO_ORIGINAL_DST. [agent I46]
	level := uintptr(unix.SOL_IP)
	if c.LocalAddr().(*net.TCPAddr).IP.To4() == nil {
		level = unix.SOL_IPV6
	}
	var sa unix.RawSockaddrInet6 // holds the other too
	size := uint32(unsafe.Sizeof(sa))
	var errno unix.Errno
	if err := raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, level, option,
			uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)), 0)
	}); err != nil {
		return to, err
	}
	if errno != 0 {
		return to, errno
	}
	port := sa.Port<<8 | sa.Port>>8
	if sa.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&sa)).Addr), port), nil
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), port), nil
}
