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

// transport is what a question came by, and goes on by.
type transport string

const (
	overUDP transport = "udp"
	overTCP transport = "tcp"
)

const (
	serverPort = 53
	// silence is how long a server that gave no answer is asked last.
	silence = 30 * time.Second
	// maxStrays is how many datagrams that answer something else are read before a try is given up:
	// somebody guesses.
	maxStrays = 64
)

// socket is where questions to servers come from.
type socket struct {
	transport transport
	addr      netip.AddrPort
}

// upstream asks the servers.
type upstream struct {
	o    Options
	port uint16
	conf *confFile
	// same lets equal questions wait for one answer. Without it, whoever can make an application
	// ask often has as many guesses at an id; and a server that in the end asks us would have us
	// ask it without end.
	same         singleflight.Group
	sent, failed atomic.Uint64
	turn         atomic.Uint32
	down         atomic.Bool

	mu     sync.Mutex // guards the rest
	silent map[netip.Addr]time.Time
	own    map[socket]bool
}

func newUpstream(o Options, listening []netip.AddrPort) *upstream {
	u := &upstream{o: o, port: serverPort, silent: map[netip.Addr]time.Time{}, own: map[socket]bool{}}
	u.conf = &confFile{path: o.Conf, log: o.Log, timeout: o.Timeout, own: func(a netip.Addr) bool {
		return slices.Contains(listening, netip.AddrPortFrom(a, u.port))
	}}
	return u
}

// asks says whether a question came from a socket that asks servers.
func (u *upstream) asks(t transport, from netip.AddrPort) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.own[socket{t, unmapped(from)}]
}

func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// ask gets an answer to a question, under any id; nil where there is none in time.
func (u *upstream) ask(ctx context.Context, q query, t transport) []byte {
	got, _, _ := u.same.Do(string(t)+string(q.msg[2:]), func() (any, error) { return u.race(ctx, q, t), nil })
	msg, _ := got.([]byte)
	if ctx.Err() != nil {
		return msg
	}
	if u.down.CompareAndSwap(msg != nil, msg == nil) {
		if msg == nil {
			u.o.Log.Warn("no name server answers", "servers", u.conf.current().servers)
		} else {
			u.o.Log.Info("a name server answers again")
		}
	}
	return msg
}

// result is how a try ended: with a message or without.
type result struct {
	try int
	msg []byte
}

// race makes the tries, each in its time or when the one before it has failed, and takes the
// first good answer. A server's word that it can't answer counts if no other knows better.
func (u *upstream) race(ctx context.Context, q query, t transport) []byte {
	c := u.conf.current()
	tries := c.tries(int(u.turn.Add(1)-1), u.o.Parallel, u.keptSilent)
	ctx, cancel := context.WithTimeout(ctx, c.budget())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	began := time.Now()
	results, next := make(chan result, len(tries)), time.NewTimer(0)
	defer next.Stop()
	ended := make([]bool, len(tries))
	var spare []byte
	for begun, running := 0, 0; ; {
		due := next.C
		if begun == len(tries) {
			if due = nil; running == 0 {
				return spare
			}
		}
		select {
		case <-due:
			i, server := begun, tries[begun].server
			group.Go(func() { results <- result{i, u.once(ctx, q, server, t)} })
			running++
			if begun++; begun < len(tries) {
				next.Reset(time.Until(began.Add(tries[begun].after)))
			}
		case r := <-results:
			running--
			ended[r.try] = true
			if r.msg != nil {
				u.note(tries[r.try].server, true)
				if !elsewhere(r.msg) {
					u.blame(tries[:r.try], ended)
					return r.msg
				}
				spare = r.msg
				server := tries[r.try].server
				tries = append(tries[:begun:begun], slices.DeleteFunc(slices.Clone(tries[begun:]), func(t try) bool { return t.server == server })...)
			}
			if ctx.Err() == nil {
				next.Reset(0)
			}
		case <-ctx.Done():
			u.blame(tries[:begun], ended)
			return spare
		}
	}
}

// blame notes the servers of tries that have not ended. Where all are asked at once that says
// nothing.
func (u *upstream) blame(tries []try, ended []bool) {
	for i, t := range tries {
		if !ended[i] && !u.o.Parallel {
			u.note(t.server, false)
		}
	}
}

func (u *upstream) note(server netip.Addr, answered bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if answered {
		delete(u.silent, server)
	} else {
		u.silent[server] = time.Now()
	}
}

func (u *upstream) keptSilent(server netip.Addr) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	since, ok := u.silent[server]
	if ok && time.Since(since) > silence {
		delete(u.silent, server) // also of one that no resolv.conf names any more
		return false
	}
	return ok
}

// once asks one server once; nil where it does not answer before ctx ends.
func (u *upstream) once(ctx context.Context, q query, server netip.Addr, t transport) []byte {
	u.sent.Add(1)
	msg, err := u.exchange(ctx, q, server, t)
	if err != nil {
		u.failed.Add(1)
		u.o.Log.Debug("ask a name server", "server", server, "over", t, "error", err)
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
	// Past is past: whatever is under way on the connection ends at once.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	defer u.register(t, c.LocalAddr())()
	var random [2]byte
	_, _ = rand.Read(random[:]) // it never fails
	id := binary.BigEndian.Uint16(random[:])
	if t == overTCP {
		if err := writeMessage(c, q.under(id)); err != nil {
			return nil, err
		}
		msg, err := readMessage(c, maxMessage)
		if err == nil && !q.answers(msg, id) {
			err = errStray
		}
		if err != nil {
			return nil, err
		}
		return msg, nil
	}
	if _, err := c.Write(q.under(id)); err != nil {
		return nil, err
	}
	buf := make([]byte, min(q.size, maxMessage)+1)
	for range maxStrays {
		n, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		if q.answers(buf[:n], id) {
			return buf[:n], nil
		}
	}
	return nil, errStray
}

var errStray = errors.New("what came back answers another question")

// register remembers a socket until the returned function is called.
func (u *upstream) register(t transport, local net.Addr) (forget func()) {
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
	// lookEvery is the least time between two looks at resolv.conf, which only questions cause.
	lookEvery = time.Second
	maxConf   = 64 << 10
)

// confFile is resolv.conf as it is now.
type confFile struct {
	path    string
	log     *slog.Logger
	timeout time.Duration
	// own says that this server would ask itself.
	own func(netip.Addr) bool

	mu     sync.Mutex // guards the rest
	looked time.Time
	sig    filewatch.Sig
	last   conf
}

// current looks at the file if the last look was a while ago.
func (f *confFile) current() conf {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < lookEvery {
		return f.last
	}
	first := f.looked.IsZero()
	f.looked = time.Now()
	if sig, _ := filewatch.Stat(f.path); sig == f.sig && !first {
		return f.last
	}
	text, sig, err := filewatch.Read(f.path, maxConf)
	if errors.Is(err, filewatch.ErrMoving) {
		text, sig, err = filewatch.Read(f.path, maxConf)
	}
	if err != nil && !first {
		f.log.Warn("read the name servers anew: the last ones stay", "error", err)
		if !errors.Is(err, filewatch.ErrMoving) {
			f.sig = sig
		}
		return f.last
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.log.Warn("read the name servers: this machine's own is asked until that changes", "error", err)
	}
	f.sig = sig
	f.take(parseConf(string(text)), first)
	return f.last
}

// take makes what a file says the case. One that names no server means this machine's, as in the C
// library; but one that was changed to name none may be half written, and the last servers stay.
func (f *confFile) take(c conf, first bool) {
	if len(c.servers) == 0 {
		if !first {
			f.log.Warn("resolv.conf names no server any more: the last ones stay", "file", f.path)
			return
		}
		c.servers = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	if f.timeout > 0 {
		c.timeout = f.timeout
	}
	if n := len(c.servers); n > 0 {
		if c.servers = slices.DeleteFunc(c.servers, f.own); len(c.servers) < n {
			f.log.Warn("resolv.conf names this agent itself, which is left out; without another server no name can be found", "file", f.path)
		}
	}
	if !first {
		f.log.Info("resolv.conf was changed", "servers", c.servers)
	}
	f.last = c
}
