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

	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// Validation sends probes through the rules that are in force.
type Validation struct {
	Probes []plan.Probe
	// Timeout bounds each of the probes.
	Timeout time.Duration
}

// Run makes each probe's connection in the calling thread's network namespace and waits for it at
// the proxy's port, which must be free. It returns the number of probes that arrived as
// planned and an error for each of the others. A probe that this process is not permitted to make,
// or that has no route, counts as neither; skipped says why.
func (v Validation) Run(ctx context.Context) (arrived int, skipped []string, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var errs []error
	for _, p := range v.Probes {
		if reason := skipReason(p); reason != "" {
			skipped = append(skipped, reason)
			continue
		}
		if err := runProbe(ctx, p, v.Timeout); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p, err))
			continue
		}
		arrived++
	}
	return arrived, skipped, errors.Join(errs...)
}

// skipReason returns why the probe cannot be sent; empty if it can.
func skipReason(p plan.Probe) string {
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
	// Connecting a UDP socket sends nothing, but fails without a route. An ICMP error of the probe itself
	// would mean that the rules did not capture it.
	c, err := net.Dial("udp", p.Packet.To.String())
	if err != nil {
		return fmt.Sprintf("%s: there is no route: %v", p, err)
	}
	c.Close()
	return ""
}

func runProbe(ctx context.Context, p plan.Probe, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Go's listeners have SO_REUSEADDR. A multipath one would hide the original destination.
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp", p.Listen().String())
	if err != nil {
		return fmt.Errorf("listen on the proxy's port (the proxy must not run yet): %w", err)
	}
	defer l.Close()
	arrived := make(chan error, 1)
	go func() { arrived <- accept(l, p) }()
	c, err := dial(ctx, p)
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

// accept checks that the connection that arrives is the probe.
func accept(l net.Listener, p plan.Probe) error {
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
		return fmt.Errorf("its original destination is %s", to)
	}
	return nil
}

// dial connects as the probe's user: the owner of a socket is given by the file-system ids of the
// thread that made it.
func dial(ctx context.Context, p plan.Probe) (net.Conn, error) {
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

// setfs sets a file-system ID of the calling thread and returns the previous one. The system call
// reports no errors.
func setfs(call, id uintptr) uintptr {
	before, _, _ := unix.RawSyscall(call, id, 0, 0)
	return before
}

// originalDestination returns the destination of a redirected connection before the redirect.
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
	var sa unix.RawSockaddrInet6 // large enough for IPv4 too
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
