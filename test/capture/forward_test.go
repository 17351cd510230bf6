package capture_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/internal/agent/dns"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// forward is the agent's part in DNS as a program of its own, which is killed in the end.
func forward(conf string) error {
	s, err := dns.New(dns.Options{Address: "localhost:15053", Conf: conf, Log: slog.New(slog.NewTextHandler(os.Stdout, nil))})
	if err != nil {
		return err
	}
	return s.Run(context.Background())
}

// resolved makes an answer of a question: an address that depends on nothing.
func resolved(question string) string {
	var m dnsmessage.Message
	if err := m.Unpack([]byte(question)); err != nil || len(m.Questions) != 1 {
		return ""
	}
	q := m.Questions[0]
	m.Response, m.Additionals = true, nil
	if q.Type == dnsmessage.TypeA {
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 7}},
		}}
	}
	out, err := m.Pack()
	if err != nil {
		return ""
	}
	return string(out)
}

// resolvedTCP serves the same by TCP.
func resolvedTCP(t *testing.T, p *netmesh.Pod, addr string) {
	t.Helper()
	answer(t, p, addr, func(c *net.TCPConn) string {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return ""
		}
		msg := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, msg); err != nil {
			return ""
		}
		out := resolved(string(msg))
		return string(binary.BigEndian.AppendUint16(nil, uint16(len(out)))) + out
	})
}

// The agent answers in the name of resolvers of both families and asks them itself, by UDP and TCP.
func TestCapturedDNSIsPassedOn(t *testing.T) {
	both(t, func(t *testing.T, _, other, _, _, _ string) {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprintf("all %v", all), func(t *testing.T) {
				w := newWorld(t)
				answerUDP(t, w.other, app, ":53", resolved)
				resolvedTCP(t, w.other, ":53")
				rules, err := plan.Build(withDNS(all), plan.Facts{Resolvers: addresses("10.99.0.3", "fd99:99::b")})
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
				resolver := &net.Resolver{PreferGo: true, StrictErrors: true}
				find := func(by string) error {
					resolver.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return w.pod.Dial(ctx, by, other+":53") }
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					ips, err := resolver.LookupNetIP(ctx, "ip4", "name.example.")
					if err == nil && (len(ips) != 1 || ips[0] != netip.MustParseAddr("192.0.2.7")) {
						err = fmt.Errorf("found %v", ips)
					}
					return err
				}
				if err := find("tcp"); err == nil {
					t.Error("a name is resolved before a server answers: nothing is captured")
				}
				dir, err := os.MkdirTemp("", "forward-") // not t.TempDir: the proxy's user must reach it
				if err == nil {
					err = os.Chmod(dir, 0o755)
				}
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = os.RemoveAll(dir) })
				conf := filepath.Join(dir, "resolv.conf")
				if err := os.WriteFile(conf, []byte("nameserver "+strings.Trim(other, "[]")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				var log wait.Output
				if _, err := w.pod.Start(netmesh.Command{
					Path: "/proc/self/exe", Args: []string{"forward", conf}, UID: proxyID, GID: proxyID, Stdout: &log, Stderr: &log,
				}); err != nil {
					t.Fatal(err)
				}
				wait.Until(t, "the agent listens", func() bool { return strings.Contains(log.String(), "are forwarded") })
				for range 20 {
					for _, by := range []string{"udp", "tcp"} {
						if err := find(by); err != nil {
							t.Fatalf("by %s: %v\n%s", by, err, log.String())
						}
					}
				}
				if strings.Contains(log.String(), "own queries") {
					t.Error(log.String())
				}
			})
		}
	})
}
