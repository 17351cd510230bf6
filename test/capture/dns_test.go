package capture_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// answerUDP answers each datagram as a user.
func answerUDP(t *testing.T, p *netmesh.Pod, u user, addr string, line func(question string) string) {
	t.Helper()
	var c net.PacketConn
	do(t, p, func() (err error) {
		setID(unix.SYS_SETFSGID, u.gid)
		setID(unix.SYS_SETFSUID, u.uid)
		defer setID(unix.SYS_SETFSGID, 0)
		defer setID(unix.SYS_SETFSUID, 0)
		c, err = net.ListenPacket("udp", addr)
		return err
	})
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			question := string(b[:n])
			go func() { c.WriteTo([]byte(line(question)), from) }()
		}
	}()
}

// askUDP sends a datagram as a user and waits for an answer from its destination.
func askUDP(p *netmesh.Pod, u user, to, question string) string {
	var c net.Conn
	err := p.Do(func() error {
		setID(unix.SYS_SETFSGID, u.gid)
		setID(unix.SYS_SETFSUID, u.uid)
		defer setID(unix.SYS_SETFSGID, 0)
		defer setID(unix.SYS_SETFSUID, 0)
		var err error
		c, err = net.Dial("udp", to)
		return err
	})
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait.Bound))
	io.WriteString(c, question)
	b := make([]byte, 512)
	n, err := c.Read(b)
	if err != nil {
		return err.Error()
	}
	return string(b[:n])
}

func withDNS(all bool) plan.Options {
	o := injector()
	o.DNS = plan.DNS{Capture: true, All: all}
	return o
}

// The agent answers from the resolver's address, and its own queries reach the resolver.
func TestDNSIsAnsweredByTheAgent(t *testing.T) {
	both(t, func(t *testing.T, _, other, vip, loopback, _ string) {
		for _, c := range []struct {
			name    string
			options plan.Options
			facts   plan.Facts
		}{
			{"resolvers", withDNS(false), plan.Facts{Resolvers: addresses("10.99.0.3", "fd99:99::b")}},
			{"all", withDNS(true), plan.Facts{}},
		} {
			t.Run(c.name, func(t *testing.T) {
				w := newWorld(t)
				answerUDP(t, w.other, app, ":53", func(q string) string { return "resolver: " + q })
				answerUDP(t, w.pod, proxy, loopback+":15053", func(q string) string {
					return "agent > " + askUDP(w.pod, proxy, other+":53", q)
				})
				answer(t, w.pod, ":15053", func(*net.TCPConn) string { return "agent" })
				answer(t, w.other, ":53", func(*net.TCPConn) string { return "resolver" })
				rules, err := plan.Build(c.options, c.facts)
				if err != nil {
					t.Fatal(err)
				}
				do(t, w.pod, func() error {
					choice, err := capture.Choose(under, rules)
					if err == nil {
						_, err = choice.Apply(rules)
					}
					return err
				})
				for i := range 20 {
					if got, want := askUDP(w.pod, app, other+":53", "a?"), "agent > resolver: a?"; got != want {
						t.Fatalf("question %d: %q, want %q", i, got, want)
					}
				}
				if got := askUDP(w.pod, proxy, other+":53", "b?"); got != "resolver: b?" {
					t.Errorf("the agent's own question: %q", got)
				}
				legs := []leg{{w.pod, app, "", other + ":53", "agent"}, {w.pod, proxy, "", other + ":53", "resolver"}}
				w.check(t, legs)
				// By TCP, as nothing would answer a datagram.
				if got := ask(w.pod, app, "", vip+":53"); (got == "agent") != c.options.DNS.All {
					t.Errorf("a question to another address: %q", got)
				}
			})
		}
	})
}

func addresses(list ...string) (addrs []netip.Addr) {
	for _, a := range list {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	return addrs
}
