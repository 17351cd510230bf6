package e2e_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// The zone of the name server that plays the cluster's: one name has an address of each family, one
// more text than a datagram holds.
const (
	plainName = "name.example."
	bulkyName = "bulky.example."
)

var (
	plainIP  = netip.MustParseAddr("192.0.2.7")
	plainIP6 = netip.MustParseAddr("2001:db8::7")
)

// zone answers a question; of an answer that a datagram can't hold it says only that.
func zone(msg []byte, datagram bool) ([]byte, error) {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	out := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true},
		Questions: []dnsmessage.Question{q},
	}
	head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
	switch name := q.Name.String(); {
	case name == plainName && q.Type == dnsmessage.TypeA:
		out.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: plainIP.As4()}}}
	case name == plainName && q.Type == dnsmessage.TypeAAAA:
		out.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AAAAResource{AAAA: plainIP6.As16()}}}
	case name == bulkyName && datagram:
		out.Truncated = true
	case name == bulkyName:
		for range 40 {
			out.Answers = append(out.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.TXTResource{TXT: []string{strings.Repeat("x", 200)}}})
		}
	case name != plainName:
		out.RCode = dnsmessage.RCodeNameError
	}
	return out.Pack()
}

// nameServer serves the zone in the mesh's host, where the Pods' resolv.conf looks for it.
func nameServer(t *testing.T, m *meshup.Mesh) (addr string) {
	t.Helper()
	addr = netip.AddrPortFrom(m.Net.Host().IP(), 53).String()
	packets, err := m.Net.Host().ListenPacket("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = packets.Close() })
	streams, err := m.Net.Host().Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = streams.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := packets.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer, err := zone(buf[:n], true); err == nil {
				_, _ = packets.WriteTo(answer, from)
			}
		}
	}()
	go func() {
		for {
			c, err := streams.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				var size [2]byte
				if _, err := io.ReadFull(c, size[:]); err != nil {
					return
				}
				msg := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(c, msg); err != nil {
					return
				}
				if answer, err := zone(msg, false); err == nil {
					_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
				}
			}()
		}
	}()
	return addr
}

// lookup is how an application of the Pod asks that server; network forces TCP, or leaves it.
func lookup(p *meshup.Pod, server, network string) *net.Resolver {
	return &net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, by, _ string) (net.Conn, error) {
		if network != "" {
			by = network
		}
		return p.Net.Dial(ctx, by, server)
	}}
}

// names has an application find what the zone holds, by every road.
func names(ctx context.Context, p *meshup.Pod, server string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var errs []error
	for _, by := range []string{"udp", "tcp"} {
		ips, err := lookup(p, server, by).LookupNetIP(ctx, "ip", plainName)
		if err == nil && (!slices.Contains(ips, plainIP) || !slices.Contains(ips, plainIP6)) {
			err = fmt.Errorf("found %v", ips)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("by %s: %w", by, err))
		}
	}
	text, err := lookup(p, server, "").LookupTXT(ctx, bulkyName)
	if err == nil && len(text) != 40 {
		err = fmt.Errorf("%d records, want 40", len(text))
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("more than a datagram holds: %w", err))
	}
	var none *net.DNSError
	if _, err := lookup(p, server, "udp").LookupNetIP(ctx, "ip4", "other.example."); !errors.As(err, &none) || !none.IsNotFound {
		errs = append(errs, fmt.Errorf("a name that is not there: %w", err))
	}
	return errors.Join(errs...)
}

// asked is how many questions the agent has had.
func asked(t *testing.T, m *meshup.Mesh, p *meshup.Pod) (n int) {
	t.Helper()
	text, err := m.Get(t.Context(), p.Net, "http://127.0.0.1:15020/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "istio_agent_dns_requests_total "); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the agent has no metric of DNS questions")
	return 0
}

// TestCapturedDNSResolvesNames has an application look up names by UDP and TCP while its
// questions are captured: those to the servers of resolv.conf, and those to any address. They pass
// the agent, whose own pass capture.
func TestCapturedDNSResolvesNames(t *testing.T) {
	for _, args := range [][]string{{"--redirect-dns"}, {"--redirect-dns", "--capture-all-dns"}} {
		t.Run(strings.Join(args, ""), func(t *testing.T) {
			m, _ := startWith(t, "job", func(o *meshup.Options) {
				o.CaptureArgs, o.AgentEnv = args, []string{"ISTIO_META_DNS_CAPTURE=true"}
			})
			server, p := nameServer(t, m), m.Pod("once-1.job")
			if err := names(t.Context(), p, server); err != nil {
				t.Fatal(err)
			}
			if n := asked(t, m, p); n < 6 {
				t.Errorf("the agent had %d questions, want those of six lookups at least", n)
			}
		})
	}
}

// During a drain the application still makes calls, and resolves names for them.
func TestDNSWorksUntilEnvoyExits(t *testing.T) {
	m, _ := startWith(t, "job", func(o *meshup.Options) {
		o.CaptureArgs, o.AgentEnv = []string{"--redirect-dns"}, []string{"ISTIO_META_DNS_CAPTURE=true"}
		o.ProxyConfig += "\nterminationDrainDuration: 600s\n"
	})
	server, p := nameServer(t, m), m.Pod("once-1.job")
	ended := make(chan struct{})
	t.Cleanup(func() {
		if err := m.Close(); err != nil { // it does not wait for the drain
			t.Error(err)
		}
		<-ended
	})
	go func() {
		defer close(ended)
		_ = p.StopAgent(syscall.SIGTERM) // killed in the end
	}()
	if err := meshup.Await(t.Context(), time.Minute, "the proxy drains", func(ctx context.Context) error {
		if err := p.Ready(ctx); err == nil || !strings.Contains(err.Error(), "draining") {
			return fmt.Errorf("readiness: %w", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := names(t.Context(), p, server); err != nil {
		t.Errorf("in the drain: %v", err)
	}
}

// TestAgentRefusesItsOwnQueries has capture know another user than the agent's, so that the agent's
// own questions come back to it: it refuses them, and says so in its log.
func TestAgentRefusesItsOwnQueries(t *testing.T) {
	m, _ := startWith(t, "job", func(o *meshup.Options) {
		o.CaptureArgs = []string{"-u", "4242", "-g", "4242", "--istio-local-outbound-ports-exclude", "15012", "--redirect-dns"}
		o.AgentEnv = []string{"ISTIO_META_DNS_CAPTURE=true"}
	})
	server, p := nameServer(t, m), m.Pod("once-1.job")
	_, err := lookup(p, server, "tcp").LookupNetIP(t.Context(), "ip4", plainName)
	if failed := new(net.DNSError); !errors.As(err, &failed) || failed.IsTimeout || failed.IsNotFound {
		t.Errorf("by TCP: %v, want a refusal", err)
	}
	// By UDP the rules lead no answer of that user's back to the application.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := lookup(p, server, "udp").LookupNetIP(ctx, "ip4", plainName); err == nil {
		t.Error("by UDP: answered")
	}
	if n := asked(t, m, p); n > 100 {
		t.Errorf("the agent had %d questions of two lookups: it asks itself", n)
	}
	log, err := os.ReadFile(filepath.Join(p.Dir, "..", "..", "log", p.Spec.Key()+".agent.log"))
	if err != nil || strings.Count(string(log), "own queries are captured") != 1 {
		t.Errorf("its log (%v) does not tell, or tells more than once: %s", err, log)
	}
}

func TestNoDNSListenerWithoutCapture(t *testing.T) {
	m, _ := start(t, "job")
	server, p := nameServer(t, m), m.Pod("once-1.job")
	if err := names(t.Context(), p, server); err != nil {
		t.Error(err)
	}
	if c, err := p.Net.Dial(t.Context(), "tcp", "127.0.0.1:15053"); !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			_ = c.Close()
		}
		t.Errorf("port 15053: %v, want it refused", err)
	}
}
