package main

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// options are what the command line says.
type options struct {
	Mesh    meshSize `json:"mesh"`
	Streams int      `json:"streams"`
	Delta   bool     `json:"delta"`
	TLS     bool     `json:"tls"`
	// AtATime is how many streams at a time have asked for everything and not received it; 0 for all.
	AtATime int `json:"atATime"`
	// VHDS makes the proxies say that they take virtual hosts by VHDS.
	VHDS bool `json:"vhds"`
	// SlowReaders is how many further streams read nothing while the changes are made again; 0 for not.
	SlowReaders int `json:"slowReaders,omitempty"`
	// Repeat is how often each change is made, with another value each time.
	Repeat    int           `json:"repeat"`
	Discovery string        `json:"-"` // path of pilot-discovery
	Bound     time.Duration `json:"-"` // of each step
	profiles  profiler
}

func (o options) check() error {
	if o.Streams < 1 {
		return fmt.Errorf("invalid -streams %d: want 1 or more", o.Streams)
	}
	if o.AtATime < 0 {
		return fmt.Errorf("invalid -at-a-time %d: want 0 or more", o.AtATime)
	}
	if o.Repeat < 1 {
		return fmt.Errorf("invalid -repeat %d: want 1 or more", o.Repeat)
	}
	if o.SlowReaders < 0 || o.SlowReaders > maxSlowReaders {
		return fmt.Errorf("invalid -slow-readers %d: want 0–%d", o.SlowReaders, maxSlowReaders)
	}
	if err := checkFiles(o.Streams, o.SlowReaders); err != nil {
		return err
	}
	return o.Mesh.check()
}

// The steps that are not changes, as in reports.
const (
	stepCertificates = "certificates"
	stepFromNothing  = "from nothing"
	stepBack         = "all come back, unchanged"
)

// load is one run.
type load struct {
	options
	dir       string // temporary
	discovery *discovery
	proxies   []proxy
	key       crypto.Signer // of all proxies' certificates
	certs     []tls.Certificate
	script    script
	report    report
	// fleets are those of discovery and of the wire server, for tests.
	fleets []*fleet
}

// run does everything, in a temporary directory that it removes.
func run(ctx context.Context, o options) (l *load, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "xdsload-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	l = &load{options: o, dir: dir, report: report{Options: o}}
	if err := l.seed(); err != nil {
		return nil, fmt.Errorf("write the mesh: %w", err)
	}
	start, cancel := context.WithTimeout(ctx, o.Bound)
	defer cancel()
	if l.discovery, err = startDiscovery(start, o.Discovery, l.dir, o.Streams); err != nil {
		return nil, err
	}
	defer l.discovery.stop()
	if err := o.profiles.check(start, l.discovery); err != nil {
		return nil, err
	}
	if err := l.loadDiscovery(ctx); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, l.discovery.logTail())
	}
	l.discovery.stop()
	if err := l.loadWire(ctx); err != nil {
		return nil, fmt.Errorf("wire server: %w", err)
	}
	return l, nil
}

// seed writes the mesh.
func (l *load) seed() error {
	config := filepath.Join(l.dir, "config")
	if err := os.Mkdir(config, 0o755); err != nil {
		return err
	}
	for name, text := range l.Mesh.files() {
		if err := writeFile(config, name, text); err != nil {
			return err
		}
	}
	l.proxies = make([]proxy, l.Streams)
	for n := range l.proxies {
		var err error
		if l.proxies[n], err = l.Mesh.proxyOf(n, l.VHDS && l.Delta); err != nil {
			return err
		}
	}
	return nil
}

// loadDiscovery measures the control plane.
func (l *load) loadDiscovery(ctx context.Context) error {
	address, creds := l.discovery.grpc, func(int) credentials.TransportCredentials { return insecure.NewCredentials() }
	if l.TLS {
		root, err := os.ReadFile(filepath.Join(l.dir, "state", "root-cert.pem"))
		if err != nil {
			return err
		}
		if err := l.certify(ctx, root); err != nil {
			return fmt.Errorf("get certificates: %w", err)
		}
		if creds, err = l.mutual(root); err != nil {
			return err
		}
		address = l.discovery.secure
	}
	f := newFleet(l.Delta, address, l.AtATime)
	f.script = &l.script
	m := &meter{load: l, fleet: f, server: l.discovery, creds: creds, side: func(r *row) *cost { return &r.Discovery }}
	m.begin = func(int) error { l.script.next(); return nil }
	m.ended = func(ctx context.Context) error {
		return poll(ctx, func() error {
			if n, err := l.discovery.streams(ctx); err != nil || n > 0 {
				return errors.Join(err, fmt.Errorf("%d streams have not ended", n))
			}
			return nil
		})
	}
	err := m.all(ctx)
	l.report.Restarts = f.restarts.Load()
	return err
}

// loadWire sends what the control plane sent to the first stream to as many streams, by the wire server.
func (l *load) loadWire(ctx context.Context) error {
	file := filepath.Join(l.dir, "script")
	if err := l.script.save(file); err != nil {
		return err
	}
	certFile, creds := "", func(int) credentials.TransportCredentials { return insecure.NewCredentials() }
	if l.TLS {
		now := time.Now()
		root, serving, err := newWireCert(servingName, pki.Validity{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour)})
		if err != nil {
			return err
		}
		certFile = filepath.Join(l.dir, "wire.pem")
		if err := os.WriteFile(certFile, serving, 0o600); err != nil {
			return err
		}
		if creds, err = l.mutual(root); err != nil {
			return err
		}
	}
	w, err := startWire(file, certFile)
	if err != nil {
		return err
	}
	defer w.stop()
	f := newFleet(l.Delta, w.address, l.AtATime)
	m := &meter{load: l, fleet: f, server: w, replay: true, creds: creds, side: func(r *row) *cost { return &r.Wire }}
	m.begin = func(n int) error { _, err := w.tell(fmt.Sprint(commandPhase, " ", n)); return err }
	m.ended = func(context.Context) error { return nil }
	return m.all(ctx)
}

// certify gets a certificate for each proxy from the CA, one after another, as their agents would with their
// tokens. All proxies have one key: the server does not notice, and it saves making them.
func (l *load) certify(ctx context.Context, root []byte) error {
	ctx, cancel := context.WithTimeout(ctx, l.Bound)
	defer cancel()
	issuer, err := authn.OpenIssuer(filepath.Join(l.dir, "state"))
	if err != nil {
		return err
	}
	if l.key, err = pki.GenerateKey(pki.ECDSAP256); err != nil {
		return err
	}
	config, err := l.tlsConfig(root)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+l.discovery.secure, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return err
	}
	defer conn.Close()
	m := &meter{load: l, fleet: newFleet(l.Delta, "", l.AtATime), server: l.discovery}
	var times []time.Duration
	c, err := m.measure(ctx, func() ([]time.Duration, error) {
		start := time.Now()
		for _, p := range l.proxies {
			cert, err := l.certificate(ctx, conn, issuer, p)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", p.id, err)
			}
			l.certs = append(l.certs, cert)
			times = append(times, time.Since(start))
		}
		return times, nil
	})
	if err == nil {
		l.report.Rows = append(l.report.Rows, &row{Step: stepCertificates, Runs: 1, Discovery: c})
	}
	return err
}

func (l *load) certificate(ctx context.Context, conn *grpc.ClientConn, issuer *authn.Issuer, p proxy) (tls.Certificate, error) {
	token, err := issuer.Issue(p.namespace, p.account, "", time.Hour, time.Now())
	if err != nil {
		return tls.Certificate{}, err
	}
	csr, err := pki.MakeCSR(l.key, mesh.Identity{TrustDomain: "cluster.local", Namespace: p.namespace, ServiceAccount: p.account})
	if err != nil {
		return tls.Certificate{}, err
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	answer, err := securityv1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &securityv1.IstioCertificateRequest{Csr: string(csr)})
	if err != nil {
		return tls.Certificate{}, err
	}
	out := tls.Certificate{PrivateKey: l.key}
	for _, text := range answer.GetCertChain() {
		certs, err := pki.ParseBundle([]byte(text))
		if err != nil {
			return out, err
		}
		for _, c := range certs {
			out.Certificate = append(out.Certificate, c.Raw)
		}
	}
	return out, nil
}

func (l *load) tlsConfig(root []byte) (*tls.Config, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(root) {
		return nil, errors.New("the root certificate is not PEM")
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: servingName}, nil
}

// mutual returns the credentials of each proxy: its certificate, and a root for the server.
func (l *load) mutual(root []byte) (func(n int) credentials.TransportCredentials, error) {
	config, err := l.tlsConfig(root)
	return func(n int) credentials.TransportCredentials {
		c := config.Clone()
		c.Certificates = []tls.Certificate{l.certs[n]}
		return credentials.NewTLS(c)
	}, err
}

// meter measures a server.
type meter struct {
	load   *load
	fleet  *fleet
	server server
	replay bool // the server sends a script: there are no files to change
	creds  func(n int) credentials.TransportCredentials
	// begin is called with the number of each phase before it starts.
	begin func(phase int) error
	// ended waits until the server has noticed that all streams have ended.
	ended func(context.Context) error
	// side is the server's side of a row of the report.
	side func(*row) *cost

	phase int
	goal  *goal
}

// all runs all steps.
func (m *meter) all(ctx context.Context) error {
	l, f := m.load, m.fleet
	l.fleets = append(l.fleets, f)
	defer f.close()
	empty, err := m.memory(ctx)
	if err != nil {
		return fmt.Errorf("memory without streams: %w", err)
	}
	for n, p := range l.proxies {
		f.add(p, m.creds(n))
	}
	connect := func(ctx context.Context) (*goal, error) {
		if err := m.begin(m.phase); err != nil {
			return nil, err
		}
		g := f.aim(0, len(f.streams), nil)
		return g, f.connect(ctx, f.streams)
	}
	first := l.row(stepFromNothing)
	if err := m.profiled(ctx, stepFromNothing, func() (err error) {
		*m.side(first), err = m.step(ctx, connect)
		return err
	}); err != nil {
		return fmt.Errorf("%s: %w", stepFromNothing, err)
	}
	l.report.count(f)
	if err := m.perStream(ctx, empty); err != nil {
		return fmt.Errorf("memory of streams: %w", err)
	}
	if err := m.allChanges(ctx, "", 0); err != nil {
		return err
	}
	if l.SlowReaders > 0 {
		if err := m.withSlowReaders(ctx); err != nil {
			return err
		}
	}
	f.close()
	if err := m.bounded(ctx, m.ended); err != nil {
		return err
	}
	m.phase++
	if err := m.profiled(ctx, stepBack, func() (err error) {
		*m.side(l.row(stepBack)), err = m.step(ctx, connect)
		return err
	}); err != nil {
		return fmt.Errorf("%s: %w", stepBack, err)
	}
	return nil
}

// allChanges makes the changes of all kinds, and adds rows for them with a suffix. The number of the first turn
// decides the values.
func (m *meter) allChanges(ctx context.Context, suffix string, first int) error {
	for _, kind := range changeKinds {
		r := m.load.row(kind + suffix)
		r.Runs = m.load.Repeat
		var runs []cost
		if err := m.profiled(ctx, r.Step, func() (err error) {
			runs, err = m.changes(ctx, kind, first)
			return err
		}); err != nil {
			return fmt.Errorf("%s: %w", r.Step, err)
		}
		*m.side(r) = mean(runs)
	}
	return nil
}

// changes makes all changes of a kind.
func (m *meter) changes(ctx context.Context, kind string, first int) (runs []cost, err error) {
	l, f := m.load, m.fleet
	for turn := first; turn < first+l.Repeat; turn++ {
		m.phase++
		c, err := m.step(ctx, func(context.Context) (*goal, error) {
			edit := l.Mesh.edit(kind, turn)
			g := f.aim(0, len(f.streams), edit.marker)
			if err := m.begin(m.phase); err != nil || m.replay {
				return g, err
			}
			return g, writeFile(l.discovery.config(), edit.file, edit.text)
		})
		if err != nil {
			return nil, err
		}
		runs = append(runs, c)
	}
	return runs, nil
}

// profiled does a step, with a profile if the server is pilot-discovery.
func (m *meter) profiled(ctx context.Context, step string, f func() error) error {
	if m.replay {
		return f()
	}
	return m.load.profiles.during(ctx, m.load.discovery, step, f)
}

// row returns the report's row of a step.
func (l *load) row(step string) *row {
	for _, r := range l.report.Rows {
		if r.Step == step {
			return r
		}
	}
	r := &row{Step: step, Runs: 1}
	l.report.Rows = append(l.report.Rows, r)
	return r
}

func (m *meter) bounded(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, m.load.Bound)
	defer cancel()
	return f(ctx)
}

func (m *meter) memory(ctx context.Context) (n int64, err error) {
	err = m.bounded(ctx, func(ctx context.Context) error { n, err = m.server.memory(ctx); return err })
	return n, err
}

// step starts a step, and measures what it costs until all streams have reached its goal and nothing moves any
// more. Streams that start opens end with ctx, not with the step.
func (m *meter) step(ctx context.Context, start func(context.Context) (*goal, error)) (cost, error) {
	bounded, cancel := context.WithTimeout(ctx, m.load.Bound)
	defer cancel()
	return m.measure(bounded, func() ([]time.Duration, error) {
		g, err := start(ctx)
		if err != nil {
			return nil, err
		}
		m.goal = g
		return m.fleet.wait(bounded, g)
	})
}

// measure measures what f costs. f returns the times at which the streams were done, in order.
func (m *meter) measure(ctx context.Context, f func() ([]time.Duration, error)) (cost, error) {
	if err := m.server.proc().resetPeak(); err != nil {
		return cost{}, err
	}
	cpu, err := m.server.proc().cpu()
	if err != nil {
		return cost{}, err
	}
	own, before := ownCPU(), m.fleet.totals()
	times, err := f()
	if err == nil {
		err = m.quiet(ctx, before)
	}
	if err != nil {
		return cost{}, err
	}
	after, err1 := m.server.proc().cpu()
	peak, err2 := m.server.proc().peak()
	moved := m.fleet.totals().minus(before)
	return cost{
		P50: at(times, 50), P99: at(times, 99), Last: at(times, 100),
		CPU: (after - cpu).Seconds(), Clients: (ownCPU() - own).Seconds(), PeakRSS: peak,
		Sent: moved.Sent, Asked: moved.Asked, Responses: moved.Responses, Resources: moved.Resources,
	}, errors.Join(err1, err2)
}

// quietTime is how long nothing must be sent until a step counts as ended. It is longer than the time for which
// pilot-discovery collects changes.
const quietTime = 300 * time.Millisecond

// quiet waits until nothing is sent any more. What a script sends is known.
func (m *meter) quiet(ctx context.Context, before totals) error {
	last, since := m.fleet.totals(), time.Now()
	var want int64
	if m.replay {
		want = int64(m.goal.streams * len(m.load.script.phases[m.phase]))
	}
	return poll(ctx, func() error {
		select {
		case err := <-m.fleet.failed:
			return &finalError{err}
		default:
		}
		if now := m.fleet.totals(); now != last {
			last, since = now, time.Now()
		}
		if m.replay && last.minus(before).Responses >= want || !m.replay && time.Since(since) >= quietTime {
			return nil
		}
		return errors.New("the server is still sending")
	})
}

// ownCPU is the processor time that this process, which is all clients, has used.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // there is no such error for a pointer that is valid
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// moreStreams is the greatest number of streams that perStream opens.
const moreStreams = 500

// perStream measures what a connected stream costs the server in bytes: all of them, with what was compiled for
// them, and then some more of the same proxies, for which there is nothing to compile.
func (m *meter) perStream(ctx context.Context, empty int64) error {
	l, f := m.load, m.fleet
	all, err := m.memory(ctx)
	if err != nil {
		return err
	}
	have := len(f.streams)
	more := min(have, moreStreams)
	for n := range more {
		f.add(l.proxies[n], m.creds(n))
	}
	added := f.streams[have:]
	f.streams = f.streams[:have]
	defer func() {
		for _, s := range added {
			if s.conn != nil {
				s.close()
			}
		}
	}()
	if _, err := m.step(ctx, func(ctx context.Context) (*goal, error) {
		g := f.aim(have, more, nil)
		return g, f.connect(ctx, added)
	}); err != nil {
		return err
	}
	with, err := m.memory(ctx)
	if err != nil {
		return err
	}
	side := &l.report.Discovery
	if m.replay {
		side = &l.report.Wire
	} else {
		l.report.Client = ownMemory() / int64(have+more)
	}
	*side = memoryCost{Empty: empty, All: (all - empty) / int64(have), More: (with - all) / int64(more)}
	return nil
}
