// Package capture_test tests the rules of capture in the kernel: with connections of several users in Pods.
//
// A Pod has two listeners in the proxy's place, which answer with their port and the connection's
// original destination, and one in the application's place; the tests compare the answers.
package capture_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/netns"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan/plantest"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

const proxyID = 1337

// world is a captured Pod and another one.
type world struct {
	pod, other *netmesh.Pod
	mesh       *netmesh.Mesh
}

func newWorld(t *testing.T) world {
	t.Helper()
	m, err := netmesh.New(netmesh.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	add := func(name, ip6 string) *netmesh.Pod {
		p, err := m.AddPod(netmesh.PodOptions{Name: name, IP6: netip.MustParseAddr(ip6)})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	return world{add("pod", "fd99:99::a"), add("other", "fd99:99::b"), m}
}

// injector is the options that the injector sets, for both families.
func injector() plan.Options {
	o := plantest.Defaults()
	o.Mode = "REDIRECT"
	o.Inbound = plan.Inbound{Ports: "*", ExcludePorts: "15090,15021,15020"}
	o.Outbound.CIDRs = "*"
	o.DualStack = true
	return o
}

func (w world) apply(t *testing.T, o plan.Options) capture.Report {
	t.Helper()
	var report capture.Report
	if err := w.pod.Do(func() error {
		f, err := netns.ReadFacts("/")
		if err != nil {
			return err
		}
		rules, err := plan.Build(o, f)
		if err != nil {
			return err
		}
		c, err := capture.Choose(under, rules)
		if err == nil {
			report, err = c.Apply(rules)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return report
}

// answer accepts connections and sends one line to each.
func answer(t *testing.T, p *netmesh.Pod, addr string, line func(*net.TCPConn) string) {
	t.Helper()
	l, err := p.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, line(c.(*net.TCPConn)))
			c.Close()
		}
	}()
}

// listen listens in the proxy's and the applications' place. The applications answer with their Pod
// and the caller's address.
func (w world) listen(t *testing.T, appPorts ...int) {
	t.Helper()
	for place, port := range map[string]int{"outbound": 15001, "inbound": 15006} {
		answer(t, w.pod, fmt.Sprintf(":%d", port), func(c *net.TCPConn) string {
			return fmt.Sprintf("%s for %s", place, originalDestination(c))
		})
	}
	for _, p := range []*netmesh.Pod{w.pod, w.other} {
		for _, port := range appPorts {
			answer(t, p, fmt.Sprintf(":%d", port), func(*net.TCPConn) string { return p.Name() })
		}
	}
}

// originalDestination asks the kernel for the destination before the rules rewrote it.
func originalDestination(c *net.TCPConn) string {
	raw, err := c.SyscallConn()
	if err != nil {
		return err.Error()
	}
	var dst netip.AddrPort
	level, local := unix.SOL_IP, c.LocalAddr().(*net.TCPAddr)
	if local.IP.To4() == nil {
		level = unix.SOL_IPV6
	}
	if controlErr := raw.Control(func(fd uintptr) { dst, err = getOriginal(int(fd), level) }); controlErr != nil {
		return controlErr.Error()
	}
	if err != nil {
		return err.Error()
	}
	return dst.String()
}

func getOriginal(fd, level int) (netip.AddrPort, error) {
	const option = 80 // SO_ORIGINAL_DST, and of the same number IP6T_SO_ORIGINAL_DST
	var sa unix.RawSockaddrAny
	size := uint32(unsafe.Sizeof(sa))
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), option,
		uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
		return netip.AddrPort{}, errno
	}
	if sa.Addr.Family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&sa))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), v4.Port<<8|v4.Port>>8), nil
	}
	v6 := (*unix.RawSockaddrInet6)(unsafe.Pointer(&sa))
	return netip.AddrPortFrom(netip.AddrFrom16(v6.Addr), v6.Port<<8|v6.Port>>8), nil
}

// user is the owner of a connection.
type user struct{ uid, gid int }

var (
	app   = user{0, 0}
	proxy = user{proxyID, proxyID}
	agent = user{0, proxyID} // an agent that must stay root
)

// ask connects from p as u, from a source address if one is given, and returns the answer. The owner
// of a socket is given by the file-system ids of the thread that made it.
func ask(p *netmesh.Pod, u user, from, to string) string {
	var c net.Conn
	err := p.Do(func() error {
		setID(unix.SYS_SETFSGID, u.gid)
		setID(unix.SYS_SETFSUID, u.uid)
		defer setID(unix.SYS_SETFSUID, 0)
		defer setID(unix.SYS_SETFSGID, 0)
		d := net.Dialer{Timeout: wait.Bound}
		if from != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		var err error
		c, err = d.Dial("tcp", to)
		return err
	})
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "refused"
	}
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait.Bound))
	told, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(told)
}

func setID(trap uintptr, id int) {
	// The call has no error: it returns the previous id.
	unix.RawSyscall(trap, uintptr(id), 0, 0)
}

// leg is one connection and the answer that it must get.
type leg struct {
	by       *netmesh.Pod
	as       user
	from, to string
	want     string
}

func (w world) check(t *testing.T, legs []leg) {
	t.Helper()
	for _, l := range legs {
		if got := ask(l.by, l.as, l.from, l.to); got != l.want {
			t.Errorf("from %s as %v %s to %s: arrived at %q, want %q", l.by.Name(), l.as, l.from, l.to, got, l.want)
		}
	}
}

// both gives an IPv4 and an IPv6 form of each address: pod and other, a service's virtual
// address, loopback, and the address that the proxy calls its own application from.
func both(t *testing.T, legs func(t *testing.T, pod, other, vip, loopback, passthrough string)) {
	t.Run("IPv4", func(t *testing.T) { legs(t, "10.99.0.2", "10.99.0.3", "10.96.0.10", "127.0.0.1", "127.0.0.6") })
	t.Run("IPv6", func(t *testing.T) { legs(t, "[fd99:99::a]", "[fd99:99::b]", "[fd00:96::10]", "[::1]", "[::6]") })
}

func TestCapturedConnectionsArriveAtTheProxyAndOthersDoNot(t *testing.T) {
	both(t, func(t *testing.T, pod, other, vip, loopback, passthrough string) {
		w := newWorld(t)
		w.listen(t, 80, 15008, 15020)
		w.apply(t, injector())
		own := strings.Trim(passthrough, "[]")
		w.check(t, []leg{
			{w.other, app, "", pod + ":80", "inbound for " + pod + ":80"},
			{w.other, proxy, "", pod + ":7", "inbound for " + pod + ":7"},
			{w.other, app, "", pod + ":15008", "pod"},
			{w.other, app, "", pod + ":15020", "pod"},
			{w.pod, app, "", other + ":80", "outbound for " + other + ":80"},
			{w.pod, app, "", vip + ":80", "outbound for " + vip + ":80"},
			{w.pod, user{1000, 1000}, "", other + ":80", "outbound for " + other + ":80"},
			{w.pod, app, "", loopback + ":80", "pod"},
			{w.pod, app, "", pod + ":80", "pod"},
			{w.pod, proxy, "", other + ":80", "other"},
			{w.pod, proxy, "", loopback + ":80", "pod"},
			{w.pod, proxy, "", pod + ":80", "inbound for " + pod + ":80"},
			{w.pod, proxy, "", pod + ":15008", "pod"},
			{w.pod, proxy, own, pod + ":80", "pod"},
			{w.pod, agent, "", other + ":80", "other"},
			{w.pod, agent, "", pod + ":80", "pod"},
		})
	})
}

func TestExclusionsAndLists(t *testing.T) {
	both(t, func(t *testing.T, pod, other, vip, _, _ string) {
		w := newWorld(t)
		w.listen(t, 80, 443, 9000, 9005, 9011)
		prefix := func(a string) string {
			addr := netip.MustParseAddr(strings.Trim(a, "[]"))
			return netip.PrefixFrom(addr, addr.BitLen()-8).String()
		}
		t.Run("all but", func(t *testing.T) {
			o := injector()
			o.Inbound.ExcludePorts = "80,9000-9010"
			o.Outbound.ExcludePorts, o.Outbound.ExcludeCIDRs = "9000-9010", prefix(vip)
			w.apply(t, o)
			w.check(t, []leg{
				{w.other, app, "", pod + ":80", "pod"},
				{w.other, app, "", pod + ":9000", "pod"},
				{w.other, app, "", pod + ":9005", "pod"},
				{w.other, app, "", pod + ":9011", "inbound for " + pod + ":9011"},
				{w.pod, app, "", other + ":9005", "other"},
				{w.pod, app, "", other + ":9011", "outbound for " + other + ":9011"},
				{w.pod, app, "", other + ":80", "outbound for " + other + ":80"},
			})
			if got := ask(w.pod, app, "", vip+":80"); !strings.Contains(got, "unreachable") && !strings.Contains(got, "no route") {
				t.Errorf("an excluded destination that does not exist: %q", got)
			}
		})
		t.Run("only", func(t *testing.T) {
			o := injector()
			o.Inbound.Ports = "443,9000-9010"
			o.Outbound.CIDRs, o.Outbound.Ports = prefix(vip), "443"
			w.apply(t, o)
			w.check(t, []leg{
				{w.other, app, "", pod + ":80", "pod"},
				{w.other, app, "", pod + ":443", "inbound for " + pod + ":443"},
				{w.other, app, "", pod + ":9005", "inbound for " + pod + ":9005"},
				{w.other, app, "", pod + ":9011", "pod"},
				{w.pod, app, "", other + ":80", "other"},
				{w.pod, app, "", other + ":443", "outbound for " + other + ":443"},
				{w.pod, app, "", vip + ":80", "outbound for " + vip + ":80"},
			})
		})
		t.Run("interface", func(t *testing.T) {
			o := injector()
			o.ExcludeInterfaces = "eth0"
			w.apply(t, o)
			w.check(t, []leg{
				{w.other, app, "", pod + ":80", "pod"},
				{w.pod, app, "", other + ":80", "other"},
			})
		})
		t.Run("nothing", func(t *testing.T) {
			w.apply(t, plantest.Defaults())
			w.check(t, []leg{
				{w.other, app, "", pod + ":80", "pod"},
				{w.pod, app, "", other + ":80", "other"},
			})
		})
	})
}

func TestOwnerGroups(t *testing.T) {
	w := newWorld(t)
	w.listen(t, 80)
	o := injector()
	o.Outbound.OwnerGroups = "100,101"
	w.apply(t, o)
	w.check(t, []leg{
		{w.pod, user{5, 100}, "", "10.99.0.3:80", "outbound for 10.99.0.3:80"},
		{w.pod, user{5, 101}, "", "10.99.0.3:80", "outbound for 10.99.0.3:80"},
		{w.pod, user{5, 102}, "", "10.99.0.3:80", "other"},
	})
	o.Outbound.OwnerGroups, o.Outbound.OwnerGroupsExclude = "*", "102"
	w.apply(t, o)
	w.check(t, []leg{
		{w.pod, user{5, 100}, "", "10.99.0.3:80", "outbound for 10.99.0.3:80"},
		{w.pod, user{5, 102}, "", "10.99.0.3:80", "other"},
	})
}

// Without IPv6 in the plan, IPv6 is not captured.
func TestIPv6IsNotTouchedUnlessAskedFor(t *testing.T) {
	w := newWorld(t)
	w.listen(t, 80)
	o := injector()
	o.DualStack = false
	w.apply(t, o)
	w.check(t, []leg{
		{w.other, app, "", "[fd99:99::a]:80", "pod"},
		{w.pod, app, "", "[fd99:99::b]:80", "other"},
		{w.pod, proxy, "", "[fd99:99::a]:80", "pod"},
		{w.pod, app, "", "10.99.0.3:80", "outbound for 10.99.0.3:80"},
	})
}
