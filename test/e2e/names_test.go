package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// getent has the C library's resolver find the addresses of a name in a Pod, as a user that is not the proxy's.
func getent(p *meshup.Pod, name string) (string, error) {
	var out bytes.Buffer
	c, err := p.Net.Start(netmesh.Command{Path: "getent", Args: []string{"ahostsv4", name}, Env: []string{"PATH=/usr/bin:/bin"}, UID: 2000, GID: 2000, Stdout: &out})
	if err != nil {
		return "", err
	}
	if err := c.Wait(); err != nil {
		return "", fmt.Errorf("getent ahostsv4 %s: %w", name, err)
	}
	var all []string
	for line := range strings.Lines(out.String()) {
		if ip := strings.Fields(line)[0]; !slices.Contains(all, ip) {
			all = append(all, ip)
		}
	}
	return strings.Join(all, " "), nil
}

// dig returns what dig finds as the A records of a name in a Pod, with the search domains of resolv.conf.
func dig(p *meshup.Pod, path, name string, more ...string) (string, error) {
	var out bytes.Buffer
	args := append([]string{"+short", "+search", "+time=10", name, "A"}, more...)
	c, err := p.Net.Start(netmesh.Command{Path: path, Args: args, Env: []string{"PATH=/usr/bin:/bin"}, UID: 2000, GID: 2000, Stdout: &out})
	if err != nil {
		return "", err
	}
	if err := c.Wait(); err != nil {
		return "", fmt.Errorf("dig %s: %w: %s", name, err, out.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// greeting returns what the server at a port of a name sends, by the addresses that Go's resolver finds.
func greeting(ctx context.Context, p *meshup.Pod, server, name, port string) (string, error) {
	ips, err := lookup(p, server, "").LookupNetIP(ctx, "ip4", name)
	if err != nil {
		return "", err
	}
	c, err := p.Net.Dial(ctx, "tcp", net.JoinHostPort(ips[0].String(), port))
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(wait.Bound)); err != nil {
		return "", err
	}
	buf := make([]byte, 5)
	n, err := c.Read(buf)
	if n > 0 {
		err = nil
	}
	return string(buf[:n]), err
}

// namedMesh is a mesh with captured DNS.
type namedMesh struct {
	m *meshup.Mesh
	// p is the Pod whose applications look names up, at server; config is the mesh's directory.
	p              *meshup.Pod
	server, config string
	// allocated is the address of outside.example.com, which has none of its own.
	allocated string
}

// TestNamesOfTheMesh has applications resolve names that no DNS server knows, by the C library's resolver, Go's and another DNS
// client, and connect to them through Envoy. That goes on while Envoy is killed or restarted, and while discovery is away.
func TestNamesOfTheMesh(t *testing.T) {
	n := startNamed(t)
	n.resolve(t)
	n.goOn(t)
	n.change(t)
}

// startNamed starts the mesh, and a server that greets outside of it.
func startNamed(t *testing.T) *namedMesh {
	t.Helper()
	m, config := startWith(t, "names", func(o *meshup.Options) {
		o.CaptureArgs, o.AgentEnv = []string{"--redirect-dns"}, []string{"ISTIO_META_DNS_CAPTURE=true"}
	})
	server, p := nameServer(t, m), m.Pod("client-1.names")
	l, err := m.Pod("outside-1.names").Net.Listen("tcp", "10.99.0.31:7000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("hello"))
			_ = c.Close()
		}
	}()

	text, err := m.Get(t.Context(), p.Net, "http://127.0.0.1:15020/debug/ndsz")
	if err != nil {
		t.Fatal(err)
	}
	var page struct {
		Table map[string]struct{ IPs []string }
	}
	if err := json.Unmarshal(text, &page); err != nil {
		t.Fatal(err)
	}
	// The names of Services are in the Pod's /etc/hosts otherwise.
	if err := p.Net.SetHosts(map[string]netip.Addr{"istiod.istio-system.svc": m.Net.Host().IP()}); err != nil {
		t.Fatal(err)
	}
	allocated := ""
	if ips := page.Table["outside.example.com"].IPs; len(ips) > 0 {
		allocated = ips[0]
	}
	if a, err := netip.ParseAddr(allocated); err != nil || !netip.MustParsePrefix("240.240.0.0/16").Contains(a) {
		t.Fatalf("the address of outside.example.com is %q: %s", allocated, text)
	}
	return &namedMesh{m: m, p: p, server: server, config: config, allocated: allocated}
}

// resolve checks what resolvers find, and connections by it.
func (n *namedMesh) resolve(t *testing.T) {
	t.Helper()
	for name, want := range map[string]string{
		"outside.example.com": n.allocated, "Outside.Example.COM": n.allocated, "x.wild.example.com": "10.96.7.9",
		"web.names.svc.cluster.local": "10.96.7.1", "web.names.svc": "10.96.7.1", "web.names": "10.96.7.1", "web": "10.96.7.1",
		"pods.names": "10.99.0.31", "first.pods.names.svc.cluster.local": "10.99.0.31", strings.TrimSuffix(plainName, "."): plainIP.String(),
	} {
		if got, err := getent(n.p, name); err != nil || got != want {
			t.Errorf("getent: %s is %q, want %q (%v)", name, got, want, err)
		}
	}
	if path, err := exec.LookPath("dig"); err != nil {
		t.Log("dig is not installed: hack/test-deps.sh installs it")
	} else {
		for _, name := range []string{"outside.example.com", "web", "web.names"} {
			want := map[bool]string{true: n.allocated, false: "10.96.7.1"}[name == "outside.example.com"]
			for _, by := range []string{"+notcp", "+tcp"} {
				if got, err := dig(n.p, path, name, by); err != nil || got != want {
					t.Errorf("dig %s: %s is %q, want %q (%v)", by, name, got, want, err)
				}
			}
		}
	}
	for _, name := range []string{"outside.example.com", "x.wild.example.com"} {
		if got, err := greeting(t.Context(), n.p, n.server, name, "5000"); err != nil || got != "hello" {
			t.Errorf("%s:5000: %q, %v", name, got, err)
		}
	}
	// A known name has no address of IPv6, and nobody else is asked.
	for _, by := range []string{"udp", "tcp"} {
		conn, err := n.p.Net.Dial(t.Context(), by, n.server)
		if err != nil {
			t.Fatal(err)
		}
		r, _, err := (&dns.Client{Net: by, Timeout: wait.Bound}).ExchangeWithConn(new(dns.Msg).SetQuestion("web.names.", dns.TypeAAAA), &dns.Conn{Conn: conn})
		_ = conn.Close()
		if err != nil || r.Rcode != 0 || !r.Authoritative || len(r.Answer) > 0 {
			t.Errorf("over %s: %v, %v", by, r, err)
		}
	}

}

// goOn has lookups and connections go on through restarts and failures.
func (n *namedMesh) goOn(t *testing.T) {
	t.Helper()
	// Lookups and connections go on; each is answered exactly once.
	ctx, cancel := context.WithCancel(t.Context())
	var lookups, connections atomic.Int64
	failures := make(chan error, 100)
	done := make(chan struct{}, 2)
	var connecting sync.Mutex // held while connections are made
	go func() {
		defer func() { done <- struct{}{} }()
		for ctx.Err() == nil {
			for _, by := range []string{"udp", "tcp"} {
				ips, err := lookup(n.p, n.server, by).LookupNetIP(ctx, "ip4", "outside.example.com")
				if ctx.Err() == nil && (err != nil || len(ips) != 1 || ips[0].String() != n.allocated) {
					failures <- fmt.Errorf("lookup over %s: %v, %w", by, ips, err)
				}
				lookups.Add(1)
			}
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		for ctx.Err() == nil {
			connecting.Lock()
			got, err := greeting(ctx, n.p, n.server, "outside.example.com", "5000")
			connecting.Unlock()
			if ctx.Err() == nil && (err != nil || got != "hello") {
				failures <- fmt.Errorf("connection: %q, %w", got, err)
			}
			connections.Add(1)
		}
	}()
	more := func(what string, connect int64) {
		t.Helper()
		a, b := lookups.Load(), connections.Load()
		if err := meshup.Await(t.Context(), time.Minute, "lookups and connections go on "+what, func(context.Context) error {
			if lookups.Load() < a+20 || connections.Load() < b+connect {
				return errors.New("fewer")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	more("at first", 5)
	before, err := n.p.Epoch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:15020/restart", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := n.p.Net.HTTPClient().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if err := meshup.Await(t.Context(), time.Minute, "another Envoy serves", func(ctx context.Context) error {
		if e, err := n.p.Epoch(ctx); err != nil || e.Number <= before.Number {
			return fmt.Errorf("%+v, %w", e, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	more("through a hot restart", 5)
	if err := n.m.KillDiscovery(); err != nil {
		t.Fatal(err)
	}
	more("while discovery is away", 5)
	if err := n.m.StartDiscovery(t.Context()); err != nil {
		t.Fatal(err)
	}
	connecting.Lock() // connections of a killed Envoy are lost; names are not
	pid, err := n.p.EnvoyPID()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	more("while Envoy is killed", 0)
	if err := meshup.Await(t.Context(), time.Minute, "the proxy is ready again", n.p.Ready); err != nil {
		t.Fatal(err)
	}
	connecting.Unlock()
	more("after that", 5)
	cancel()
	<-done
	<-done
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	t.Logf("%d lookups and %d connections", lookups.Load(), connections.Load())

}

// change renames a host: a change reaches applications, and a name that is removed is nobody's.
func (n *namedMesh) change(t *testing.T) {
	t.Helper()
	file := filepath.Join(n.config, "mesh.yaml")
	yaml, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file+".new", bytes.ReplaceAll(yaml, []byte("outside.example.com"), []byte("other.example.com")), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	if err := meshup.Await(t.Context(), time.Minute, "the other name resolves", func(context.Context) error {
		got, err := getent(n.p, "other.example.com")
		if err == nil && !strings.HasPrefix(got, "240.240.") {
			err = errors.New(got)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if got, err := getent(n.p, "outside.example.com"); err == nil {
		t.Errorf("outside.example.com is still %s", got)
	}
}
