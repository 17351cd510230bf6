// Package gather finds out the facts that package doctor decides about: of the machine, the files of the agent, and the control plane.
//
// It changes nothing. Servers are connected to and no call is made; no token is sent. A fact that cannot be found out has
// the error instead.
package gather

import (
	"context"
	"crypto/x509"
	"encoding/base64"
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
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/doctor"
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/identity"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/upstream"
	"github.com/pilothouse/pilothouse/internal/cgroup"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/finding"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// maxRoots bounds a file of root certificates, in bytes.
const maxRoots = 1 << 20

// monitoringPort is where a control plane serves its version over HTTP.
const monitoringPort = "15014"

// Options say what is asked.
type Options struct {
	// Spec is that of the agent; nil if its settings are wrong.
	Spec *spec.Spec
	// WorkingDir is the agent's, which relative paths are relative to.
	WorkingDir string
	// PIDs are those of the agent and its Envoys.
	PIDs []int
	// Timeout bounds each name and each server.
	Timeout time.Duration
}

// Host finds out what does not depend on the agent's settings, and with them the rest.
func Host(ctx context.Context, o Options, f *doctor.Facts) {
	f.UID, f.Capabilities = os.Getuid(), envoy.Capabilities()
	f.Kernel = kernel()
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		f.OpenFiles = limit.Max
	}
	f.Memory, f.CPUs = cgroup.MemoryLimit(), cgroup.CPULimit()
	f.Killed, _ = cgroup.OOMKills()
	s := o.Spec
	if s == nil {
		return
	}
	f.Ports = finding.Of(ports(s, o.PIDs))
	f.Envoy = finding.Of("none (DISABLE_ENVOY)", nil)
	if !s.Envoy.Disabled {
		f.Envoy = finding.Of(version(ctx, s.Envoy.Binary, o.Timeout))
	}
	plan, err := identity.Decide(s, identity.Host{WorkingDir: o.WorkingDir, IsFile: func(path string) bool {
		st, err := os.Stat(o.path(path))
		return err == nil && !st.IsDir()
	}})
	if err != nil {
		f.Settings = finding.Known[doctor.Settings]{Err: err.Error(), Asked: true}
		return
	}
	f.Token = o.token(plan)
	o.controlPlane(ctx, plan, f)
}

// path is an absolute path.
func (o Options) path(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(o.WorkingDir, path)
}

func kernel() doctor.Kernel {
	var k doctor.Kernel
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		k.Release = unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
	}
	if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
		k.Problems = append(k.Problems, fmt.Sprintf("inotify: %v: raise fs.inotify.max_user_instances", err))
	} else {
		_ = unix.Close(fd)
	}
	if err := unix.Access("/dev/shm", unix.W_OK); err != nil {
		k.Problems = append(k.Problems, fmt.Sprintf("/dev/shm: %v: Envoys cannot hot restart without shared memory", err))
	}
	return k
}

// ports are those that the agent and its Envoy listen on.
func ports(s *spec.Spec, pids []int) ([]doctor.Port, error) {
	out := []doctor.Port{
		{Number: s.Envoy.AdminPort, Use: "Envoy's admin interface"},
		{Number: s.Status.Port, Use: "status of the agent"},
		{Number: s.Envoy.HealthPort, Use: "readiness"},
		{Number: s.Envoy.PrometheusPort, Use: "Envoy's metrics"},
	}
	for _, secure := range []doctor.Port{{Number: s.Envoy.SecureMetricsPort, Use: "Envoy's metrics over mutual TLS"}, {Number: s.Envoy.SecureMergedMetricsPort, Use: "all metrics over mutual TLS"}} {
		if secure.Number != 0 {
			out = append(out, secure)
		}
	}
	if s.Envoy.Disabled {
		out = []doctor.Port{{Number: s.Status.Port, Use: "status of the agent"}}
	} else if s.Node.ID.Role == mesh.Sidecar {
		out = append(out, doctor.Port{Number: mesh.OutboundPort, Use: "captured outbound connections"},
			doctor.Port{Number: mesh.InboundPort, Use: "captured inbound connections"})
	}
	if _, port, err := net.SplitHostPort(s.DNS.Address); err == nil && s.DNS.Serve {
		if n, err := net.LookupPort("tcp", port); err == nil {
			out = append(out, doctor.Port{Number: n, Use: "DNS"})
		}
	}
	held, err := listeners()
	if err != nil {
		return nil, err
	}
	owners := owners(held)
	for i := range out {
		inodes, ok := held[out[i].Number]
		if !ok {
			continue
		}
		out[i].Held = true
		for _, inode := range inodes {
			if p, ok := owners[inode]; ok {
				out[i].Own = slices.Contains(pids, p.pid)
				out[i].By = fmt.Sprintf("%s (pid %d)", p.program, p.pid)
			}
		}
	}
	return out, nil
}

// version asks an Envoy what it is.
func version(ctx context.Context, binary string, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	path, err := exec.LookPath(binary)
	if err != nil {
		return "", fmt.Errorf("find Envoy (binaryPath): %w", err)
	}
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = time.Second
	text, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	}
	// path  version: revision/1.40.0/Clean/RELEASE/BoringSSL
	for field := range strings.SplitSeq(strings.TrimSpace(string(text)), "/") {
		if len(field) > 0 && field[0] >= '0' && field[0] <= '9' && strings.Count(field, ".") == 2 {
			return field, nil
		}
	}
	return "", fmt.Errorf("ask %s for its version: answer %.100q", path, text)
}

// token reads the token; nil if none is used.
func (o Options) token(plan identity.Plan) *doctor.Token {
	u := o.Spec.Upstream
	if plan.Mounted != nil || u.TokenFile == "" || u.MetadataServer != "" || !o.Spec.Certificates.Own {
		return nil
	}
	t := &doctor.Token{Source: u.TokenFile}
	text, err := upstream.ReadTokenFile(o.path(u.TokenFile))
	if err != nil {
		t.Err = err.Error()
		return t
	}
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return t
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Audience      json.RawMessage `json:"aud"`
		Exp, Iat, Nbf float64
	}
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return t
	}
	t.JWT = true
	var one string
	if json.Unmarshal(claims.Audience, &one) == nil {
		t.Audiences = []string{one}
	} else if json.Unmarshal(claims.Audience, &t.Audiences) != nil {
		t.Audiences = nil
	}
	t.NotAfter, t.Issued, t.NotBefore = moment(claims.Exp), moment(claims.Iat), moment(claims.Nbf)
	return t
}

// moment is a time of a token; the zero time if it is none.
func moment(seconds float64) time.Time {
	if seconds <= 0 || seconds > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0)
}

// controlPlane finds out what is known of the servers, each with its name and its roots, all at once.
func (o Options) controlPlane(ctx context.Context, plan identity.Plan, f *doctor.Facts) {
	type target struct{ name, address, roots string }
	u := o.Spec.Upstream
	targets := []target{{"discovery", u.Discovery, plan.DiscoveryRoot}}
	if plan.Mounted == nil && o.Spec.Certificates.Own {
		for _, address := range u.CA {
			targets = append(targets, target{"CA", address, plan.CARoot})
		}
	}
	hosts := map[string]bool{}
	f.Servers, f.Roots = make([]doctor.Server, len(targets)), make([]doctor.Root, 0, len(targets))
	var wait sync.WaitGroup
	for i, t := range targets {
		if host, _, err := net.SplitHostPort(t.address); err == nil {
			if _, err := netip.ParseAddr(host); err != nil && !hosts[host] {
				hosts[host] = true
			}
		}
		if !upstream.Plaintext(t.address) {
			f.Roots = append(f.Roots, o.roots(t.name, t.roots))
		}
		wait.Go(func() { f.Servers[i] = o.server(ctx, t.name, t.address, t.roots) })
	}
	names := make([]doctor.Name, 0, len(hosts))
	for host := range hosts {
		names = append(names, doctor.Name{Name: host})
	}
	slices.SortFunc(names, func(a, b doctor.Name) int { return strings.Compare(a.Name, b.Name) })
	f.Names = names
	for i := range f.Names {
		wait.Go(func() { resolve(ctx, &f.Names[i], o.Timeout) })
	}
	wait.Go(func() { f.Clock = clock(ctx, u.Discovery, o.Timeout) })
	wait.Wait()
}

func resolve(ctx context.Context, n *doctor.Name, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", n.Name)
	n.Addresses = len(addresses)
	if err != nil {
		n.Err = err.Error()
	}
}

func (o Options) roots(use, file string) doctor.Root {
	r := doctor.Root{Use: use, File: file}
	switch file {
	case upstream.SystemRoots:
		r.File = ""
		return r
	case "":
		r.Err = identity.ErrNoRoot.Error()
		return r
	}
	text, err := filewatch.ReadFile(o.path(file), maxRoots)
	var certs []*x509.Certificate
	if err == nil {
		certs, err = pki.ParseBundle(text)
	}
	if err != nil {
		r.Err = fmt.Sprintf("read %s: %v", file, err)
		return r
	}
	v := pki.ValidityOf(certs)
	r.NotBefore, r.NotAfter = v.NotBefore, v.NotAfter
	return r
}

func (o Options) server(ctx context.Context, name, address, roots string) doctor.Server {
	out := doctor.Server{Name: name, Address: address}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if roots != upstream.SystemRoots && roots != "" {
		roots = o.path(roots)
	}
	s, err := upstream.New(upstream.Options{
		Name: name, Address: address, RootFile: roots, ServerName: o.Spec.Upstream.ServerName, ProvisionedDir: o.Spec.Certificates.ProvisionedDir,
		TLS: o.Spec.TLS,
	})
	var h upstream.Handshake
	if err == nil {
		h, err = s.Try(ctx)
	}
	if err != nil {
		out.Err = err.Error()
		return out
	}
	out.Plaintext = h.Plaintext
	if len(h.Certificates) > 0 {
		out.NotBefore, out.NotAfter = h.Certificates[0].NotBefore, h.Certificates[0].NotAfter
	}
	return out
}

// clock asks discovery's machine for its time.
func clock(ctx context.Context, discovery string, timeout time.Duration) finding.Clock {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	host, _, err := net.SplitHostPort(discovery)
	if err != nil {
		return finding.Clock{Err: err.Error()}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, "http://"+net.JoinHostPort(host, monitoringPort)+"/version", http.NoBody)
	if err != nil {
		return finding.Clock{Err: err.Error()}
	}
	c := finding.Clock{Sent: time.Now()}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	c.Received = time.Now()
	if err != nil {
		c.Err = short(err).Error()
		return c
	}
	_ = resp.Body.Close()
	c.Date, _ = http.ParseTime(resp.Header.Get("Date")) // the zero time is not known
	return c
}

// short is an error without the request that it is about.
func short(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op
	}
	return err
}
