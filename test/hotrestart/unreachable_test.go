package hotrestart_test

import (
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/supervise"
	"github.com/pilothouse/pilothouse/test/fakeenvoy"
)

// adminProxy forwards to an admin interface until it is blocked: then it accepts connections and answers nothing, as a firewall
// that drops packets.
type adminProxy struct {
	address, behind string

	mu       sync.Mutex
	blocked  bool
	accepted []net.Conn
}

// newAdminProxy forwards to the address behind it, for as long as the test lasts.
func newAdminProxy(t *testing.T, behind string) *adminProxy {
	t.Helper()
	d := &adminProxy{address: fakeenvoy.FreeAddress(t), behind: behind}
	l, err := net.Listen("tcp", d.address)
	if err != nil {
		t.Fatal(err)
	}
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			forwarding.Go(func() { d.forward(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		d.block(false)
		forwarding.Wait()
	})
	return d
}

// block blocks or unblocks; connections that were accepted while blocked are closed.
func (d *adminProxy) block(blocked bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.blocked = blocked
	for _, c := range d.accepted {
		c.Close()
	}
	d.accepted = nil
}

func (d *adminProxy) forward(c net.Conn) {
	d.mu.Lock()
	if d.blocked {
		d.accepted = append(d.accepted, c)
		d.mu.Unlock()
		return
	}
	d.mu.Unlock()
	defer c.Close()
	to, err := net.Dial("tcp", d.behind)
	if err != nil {
		return
	}
	defer to.Close()
	go func() { _, _ = io.Copy(to, c) }() // ends when c is closed
	_, _ = io.Copy(c, to)
}

// TestAChildWhoseAdminNeverAnswers: the child has taken over anyway, because its parent no longer listens. It is not given up, whether the parent ends before
// the time limit for a child to be live, after it, or the child was not checked until then.
func TestAChildWhoseAdminNeverAnswers(t *testing.T) {
	for _, tt := range []struct {
		name             string
		within, shutdown time.Duration
		hurried          bool // it may not be live in time on a busy machine, and is tried again then
	}{
		{"the parent ends first", 20 * time.Second, 3 * time.Second, false},
		{"its time is over first", 10 * time.Second, 14 * time.Second, false},
		{"its time is over before the first look", 2500 * time.Millisecond, 4 * time.Second, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d *adminProxy
			// On a slow machine, both times are longer, by as much as a child could need to take over.
			slow := 3 * time.Duration(slowest.Load())
			p := up(t, func(o *envoy.Options) {
				d = newAdminProxy(t, o.Admin)
				o.Admin = d.address
				o.Policy.Epochs.LiveWithin, o.Hot.ParentShutdown = max(tt.within, slow), max(tt.shutdown, tt.shutdown-tt.within+slow)
			})
			l := p.traffic()
			parent := p.State().PID
			d.block(true)
			p.Desire(p.launch("next", 2))
			p.await("the parent's end", func(*envoy.State) bool { return dead(parent) })
			d.block(false)
			p.await("an Envoy with the next configuration", func(s *envoy.State) bool {
				return s.Live && s.Hash == "next" && len(s.Epochs) == 1
			})
			s := p.State()
			if s.Epoch != 1 || s.Restarts != 0 && !tt.hurried {
				t.Errorf("epoch %d serves after %d restarts, want the child, 1, and none", s.Epoch, s.Restarts)
			}
			p.adminAnswersFor(1)
			p.unharmed(l, []time.Time{s.Started})
			if s := p.restart(p.launch("another", 2)); s.Epoch != 2 {
				t.Errorf("the next restart: %+v", s)
			}
		})
	}
}

// TestAdminNeverReached is known to serve, and taken over.
func TestAdminNeverReached(t *testing.T) {
	t.Parallel()
	p := up(t, func(o *envoy.Options) {
		d := newAdminProxy(t, o.Admin)
		d.block(true)
		o.Admin, o.Hot.ParentShutdown = d.address, 3*time.Second
	})
	l := p.traffic()
	s := p.restart(p.launch("next", 2))
	if s.Epoch != 1 || s.Restarts != 0 || s.Goal.Plain {
		t.Errorf("after the restart: %+v", s)
	}
	p.unharmed(l, []time.Time{s.Started})
}

// TestAdminInterfaceOfAnotherEnvoy: if another agent's Envoy answers on the admin port, it neither counts as live
// for this agent nor is drained by it.
func TestAdminInterfaceOfAnotherEnvoy(t *testing.T) {
	p := up(t, nil)
	q := &proxy{
		t: t, admin: p.admin, http: fakeenvoy.FreeAddress(t), tcp: fakeenvoy.FreeAddress(t), served: &atomic.Int64{},
		upstreamHTTP: p.upstreamHTTP, upstreamTCP: p.upstreamTCP,
	}
	policy := supervise.HotPolicy()
	policy.Budget, policy.Backoff = 1, 50*time.Millisecond
	q.Runner = envoy.New(envoy.Options{Admin: p.admin, Policy: policy, Launch: q.launch("other", 1), Log: slog.New(slog.DiscardHandler)})
	if err := q.Run(t.Context()); err == nil {
		t.Error("an Envoy that cannot have its admin interface runs")
	}
	if s := q.State(); s.Goal.Good != "" {
		t.Errorf("it was taken for live: %+v", s)
	}
	p.adminAnswersFor(0)
}
