package dns

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// transport is the network of a query, from the client and to the servers.
type transport string

const (
	overUDP transport = "udp"
	overTCP transport = "tcp"
)

const (
	serverPort = 53
	// unresponsiveTTL is how long a server that did not respond is queried last.
	unresponsiveTTL = 30 * time.Second
	// maxMismatches is how many datagrams that are not the response are read in one attempt:
	// somebody may be guessing IDs.
	maxMismatches = 64
)

// socket is the source of queries to servers.
type socket struct {
	transport transport
	addr      netip.AddrPort
}

// upstream queries the servers.
type upstream struct {
	o    Options
	port uint16
	conf *confFile
	// inFlight lets equal queries share one response. Otherwise a client could multiply the chances
	// of somebody who guesses IDs, and a server that forwards to this one would cause endless queries.
	inFlight     singleflight.Group
	sent, failed atomic.Uint64
	waited       atomic.Int64 // until responses, in nanoseconds
	durations    [len(DurationBounds) + 1]atomic.Uint64
	offset       atomic.Uint32
	unavailable  atomic.Bool

	mu           sync.Mutex // guards the rest
	unresponsive map[netip.Addr]time.Time
	own          map[socket]bool
}

func newUpstream(o Options, listening []netip.AddrPort) *upstream {
	u := &upstream{o: o, port: serverPort, unresponsive: map[netip.Addr]time.Time{}, own: map[socket]bool{}}
	u.conf = &confFile{path: o.Conf, log: o.Log, timeout: o.Timeout, own: func(a netip.Addr) bool {
		return slices.Contains(listening, netip.AddrPortFrom(a, u.port))
	}}
	return u
}

// isOwnSocket reports whether a query came from a socket that queries servers.
func (u *upstream) isOwnSocket(t transport, from netip.AddrPort) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.own[socket{t, unmapped(from)}]
}

func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// resolve returns the response to a query, with any ID; nil if there is none in time.
func (u *upstream) resolve(ctx context.Context, q query, t transport) []byte {
	got, _, _ := u.inFlight.Do(string(t)+string(q.msg[2:]), func() (any, error) { return u.queryServers(ctx, q, t), nil })
	msg, _ := got.([]byte)
	if ctx.Err() != nil {
		return msg
	}
	if u.unavailable.CompareAndSwap(msg != nil, msg == nil) {
		if msg == nil {
			u.o.Log.Warn("no name server responds", "servers", u.conf.current().servers)
		} else {
			u.o.Log.Info("a name server responds again")
		}
	}
	return msg
}

// result is the response of an attempt, or nil.
type result struct {
	attempt int
	msg     []byte
}

// queryServers makes the attempts, each at its time or when an earlier one has failed, and returns the
// first response. One with a server's error is returned only if there is no other.
func (u *upstream) queryServers(ctx context.Context, q query, t transport) []byte {
	c := u.conf.current()
	attempts := c.schedule(int(u.offset.Add(1)-1), u.o.Parallel, u.isUnresponsive)
	ctx, cancel := context.WithTimeout(ctx, c.budget())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	start := time.Now()
	results, next := make(chan result, len(attempts)), time.NewTimer(0)
	defer next.Stop()
	ended := make([]bool, len(attempts))
	var serverError []byte
	for started, running := 0, 0; ; {
		due := next.C
		if started == len(attempts) {
			if due = nil; running == 0 {
				return serverError
			}
		}
		select {
		case <-due:
			i, server := started, attempts[started].server
			group.Go(func() { results <- result{i, u.queryServer(ctx, q, server, t)} })
			running++
			if started++; started < len(attempts) {
				next.Reset(time.Until(start.Add(attempts[started].after)))
			}
		case r := <-results:
			running--
			ended[r.attempt] = true
			if r.msg != nil {
				server := attempts[r.attempt].server
				u.setResponsive(server, true)
				if !isServerError(r.msg) {
					u.setUnresponsive(attempts[:r.attempt], ended)
					return r.msg
				}
				serverError = r.msg
				attempts = append(attempts[:started:started], slices.DeleteFunc(slices.Clone(attempts[started:]), func(a attempt) bool { return a.server == server })...)
			}
			if ctx.Err() == nil {
				next.Reset(0)
			}
		case <-ctx.Done():
			u.setUnresponsive(attempts[:started], ended)
			return serverError
		}
	}
}

// setUnresponsive marks the servers of attempts that have not ended. That says nothing about a server
// if all were queried at once.
func (u *upstream) setUnresponsive(attempts []attempt, ended []bool) {
	for i, a := range attempts {
		if !ended[i] && !u.o.Parallel {
			u.setResponsive(a.server, false)
		}
	}
}

func (u *upstream) setResponsive(server netip.Addr, responsive bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if responsive {
		delete(u.unresponsive, server)
	} else {
		u.unresponsive[server] = time.Now()
	}
}

func (u *upstream) isUnresponsive(server netip.Addr) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	since, ok := u.unresponsive[server]
	if ok && time.Since(since) > unresponsiveTTL {
		delete(u.unresponsive, server)
		return false
	}
	return ok
}

// queryServer makes one attempt; it returns nil if there is no response before ctx ends.
func (u *upstream) queryServer(ctx context.Context, q query, server netip.Addr, t transport) []byte {
	u.sent.Add(1)
	start := time.Now()
	msg, err := u.exchange(ctx, q, server, t)
	if err == nil {
		took := time.Since(start)
		u.waited.Add(int64(took))
		i, _ := slices.BinarySearch(DurationBounds[:], took)
		u.durations[i].Add(1)
	}
	if err != nil {
		u.failed.Add(1)
		u.o.Log.Debug("query a name server", "server", server, "transport", t, "error", err)
	}
	return msg
}

func (u *upstream) exchange(ctx context.Context, q query, server netip.Addr, t transport) ([]byte, error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, string(t), netip.AddrPortFrom(server, u.port).String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	// A deadline in the past ends reads and writes that are in progress.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	defer u.register(t, c.LocalAddr())()
	var random [2]byte
	_, _ = rand.Read(random[:]) // it never fails
	id := binary.BigEndian.Uint16(random[:])
	if t == overTCP {
		if err := writeMessage(c, withID(q.msg, id)); err != nil {
			return nil, err
		}
		msg, err := readMessage(c, maxMessage)
		if err == nil && !q.answeredBy(msg, id) {
			err = errMismatch
		}
		if err != nil {
			return nil, err
		}
		return msg, nil
	}
	if _, err := c.Write(withID(q.msg, id)); err != nil {
		return nil, err
	}
	buf := make([]byte, min(q.size, maxMessage)+1)
	for range maxMismatches {
		n, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		if q.answeredBy(buf[:n], id) {
			return buf[:n], nil
		}
	}
	return nil, errMismatch
}

var errMismatch = errors.New("the response does not match the query")

// register remembers a socket until the returned function is called.
func (u *upstream) register(t transport, local net.Addr) (unregister func()) {
	addr, _ := netip.ParseAddrPort(local.String())
	s := socket{t, unmapped(addr)}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.own[s] = true
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.own, s)
	}
}

const (
	// checkInterval is the least time between two checks of resolv.conf, which only queries cause.
	checkInterval = time.Second
	maxConf       = 64 << 10
)

// confFile is the current resolv.conf.
type confFile struct {
	path    string
	log     *slog.Logger
	timeout time.Duration
	// own reports whether an address is this server's.
	own func(netip.Addr) bool

	domains atomic.Pointer[[]string] // the search domains of last

	mu      sync.Mutex // guards the rest
	checked time.Time
	sig     filewatch.Sig
	last    conf
}

// search returns the search domains, as they were when a query was last forwarded, or at the start. It does not read the file, so that
// answers from the table never wait for it.
func (f *confFile) search() []string {
	if s := f.domains.Load(); s != nil {
		return *s
	}
	return nil
}

// current returns the configuration, after checking the file if checkInterval has passed.
func (f *confFile) current() conf {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.checked) < checkInterval {
		return f.last
	}
	first := f.checked.IsZero()
	f.checked = time.Now()
	if sig, _ := filewatch.Stat(f.path); sig == f.sig && !first {
		return f.last
	}
	text, sig, err := filewatch.Read(f.path, maxConf)
	if errors.Is(err, filewatch.ErrMoving) {
		text, sig, err = filewatch.Read(f.path, maxConf)
	}
	if err != nil && !first {
		f.log.Warn("read resolv.conf: the last servers are kept", "error", err)
		if !errors.Is(err, filewatch.ErrMoving) {
			f.sig = sig
		}
		return f.last
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.log.Warn("read resolv.conf: the server of this machine is used", "error", err)
	}
	f.sig = sig
	f.apply(parseConf(string(text)), first)
	return f.last
}

// apply uses a new configuration. Without servers it means this machine's server, as in the C
// library; but a changed file without servers may be half written, so the last servers are kept.
func (f *confFile) apply(c conf, first bool) {
	f.domains.Store(&c.search)
	if len(c.servers) == 0 {
		if !first {
			f.log.Warn("resolv.conf has no servers any more: the last ones are kept", "file", f.path)
			return
		}
		c.servers = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	if f.timeout > 0 {
		c.timeout = f.timeout
	}
	if n := len(c.servers); n > 0 {
		if c.servers = slices.DeleteFunc(c.servers, f.own); len(c.servers) < n {
			f.log.Warn("resolv.conf names this agent, which is ignored; without another server no name can be resolved", "file", f.path)
		}
	}
	if !first {
		f.log.Info("resolv.conf has changed", "servers", c.servers)
	}
	f.last = c
}
