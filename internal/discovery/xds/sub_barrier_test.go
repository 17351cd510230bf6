package xds

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const guardedCluster = "outbound|80||guarded"

// barrierClient has a Sub with a client that accepts what it is sent, but for listeners that are not answered.
type barrierClient struct {
	sub  *Sub
	now  time.Time
	has  map[string]string // "type name" → content
	mute bool              // listeners are not answered
	// unanswered is the nonce of the last response of listeners.
	unanswered string
	wake       time.Time
}

func newBarrierClient(delta bool) *barrierClient {
	return &barrierClient{sub: NewSub(delta, nil), now: time.Unix(1e9, 0), has: map[string]string{}}
}

func (c *barrierClient) step(ev Event) {
	effects := slices.Clone(c.sub.Step(Now{T: c.now}))
	var answers []*Request
	for _, e := range append(effects, c.sub.Step(ev)...) {
		switch e := e.(type) {
		case Send:
			for _, r := range e.Upserts {
				c.has[r.Type.String()+" "+r.Name] = content(r)
			}
			for _, n := range e.Removed {
				delete(c.has, e.Type.String()+" "+n)
			}
			if c.unanswered = ""; e.Type == LDS && c.mute {
				c.unanswered = e.Nonce
				continue
			}
			answers = append(answers, c.answer(e.Type, e.Nonce))
		case Wake:
			c.wake = e.At
		}
	}
	for _, a := range answers {
		c.step(a)
	}
}

// answer accepts a response.
func (c *barrierClient) answer(t Type, nonce string) *Request {
	r := &Request{Type: t, Nonce: nonce}
	if !c.sub.delta && t == RDS {
		r.Names = namesOf("r", "s")
	}
	return r
}

// open asks for everything.
func (c *barrierClient) open(v *View) {
	c.step(Moved{View: v})
	c.step(&Request{Type: CDS})
	c.step(&Request{Type: LDS})
	c.step(&Request{Type: RDS, Names: namesOf("r", "s")})
}

// guardedViews are a view and the next one with a listener, a route that leads to a service and one that does not.
func guardedViews(b *Barrier) (before, after *View) {
	make := func(version string) *View {
		return (&View{}).put(NewCluster(guardedCluster, []byte("1"), ""), NewCluster("outbound|80||other", []byte("1"), ""),
			naming(NewResource(LDS, "in", []byte(version))), naming(NewResource(LDS, "tcp", []byte(version)), guardedCluster),
			naming(NewResource(RDS, "r", []byte(version)), guardedCluster), naming(NewResource(RDS, "s", []byte(version)), "outbound|80||other"))
	}
	before, after = make("1"), make("2")
	after = after.At(before.Generation + 1)
	after.Barrier = b
	return before, after
}

// text is what the client has of the guarded and of the other resources.
func (c *barrierClient) text() string {
	var out []string
	for _, n := range []string{"LDS in", "LDS tcp", "RDS r", "RDS s"} {
		out = append(out, n+"="+c.has[n])
	}
	return strings.Join(out, ", ")
}

// What leads to a guarded service waits until there is a view without the barrier, or the time has come; the rest
// does not.
func TestRoutesWaitBehindABarrier(t *testing.T) {
	for _, delta := range []bool{true, false} {
		for _, end := range []string{"view", "time"} {
			c := newBarrierClient(delta)
			before, after := guardedViews(&Barrier{Hosts: map[string]time.Time{"guarded": c.now.Add(5 * time.Second)}})
			c.open(before)
			if want := "LDS in=1, LDS tcp=1, RDS r=1, RDS s=1"; c.text() != want {
				t.Fatalf("delta %v: has %s, want %s", delta, c.text(), want)
			}
			c.step(Moved{View: after})
			want := "LDS in=2, LDS tcp=1, RDS r=1, RDS s=2"
			c.now = c.now.Add(4 * time.Second)
			c.step(&Request{Type: EDS}) // something else goes on
			if c.text() != want {
				t.Errorf("delta %v: has %s behind the barrier, want %s", delta, c.text(), want)
			}
			if _, applied := c.sub.Progress(); applied {
				t.Errorf("delta %v: applied, although routes wait", delta)
			}
			if end == "view" {
				open := *after
				open.Barrier = nil
				c.step(Moved{View: &open})
			} else {
				if c.wake != c.now.Add(time.Second) {
					t.Errorf("delta %v: to be woken at %v, want a second from %v", delta, c.wake, c.now)
				}
				c.now = c.now.Add(time.Second)
				c.step(Now{T: c.now})
			}
			if want := "LDS in=2, LDS tcp=2, RDS r=2, RDS s=2"; c.text() != want {
				t.Errorf("delta %v: has %s after the end by %s, want %s", delta, c.text(), end, want)
			}
			if _, applied := c.sub.Progress(); !applied {
				t.Errorf("delta %v: not applied after the end by %s", delta, end)
			}
		}
	}
}

// A client that starts behind a barrier gets what leads to the service afterwards, too.
func TestANewClientWaitsBehindABarrier(t *testing.T) {
	for _, delta := range []bool{true, false} {
		c := newBarrierClient(delta)
		_, after := guardedViews(&Barrier{Hosts: map[string]time.Time{"guarded": c.now.Add(5 * time.Second)}})
		c.open(after)
		if c.has["RDS r"] != "" || c.has["LDS tcp"] != "" {
			t.Errorf("delta %v: has %s", delta, c.text())
		}
		c.now = c.now.Add(5 * time.Second)
		c.step(Now{T: c.now})
		if want := "LDS in=2, LDS tcp=2, RDS r=2, RDS s=2"; c.text() != want {
			t.Errorf("delta %v: has %s after the time, want %s", delta, c.text(), want)
		}
	}
}

// On one proxy, routes wait until the listener with the policy is accepted.
func TestRoutesWaitForTheListenerOfTheirOwnProxy(t *testing.T) {
	for _, delta := range []bool{true, false} {
		for _, how := range []string{"accepted", "refused"} {
			c := newBarrierClient(delta)
			before, after := guardedViews(&Barrier{Own: map[string]time.Time{"in": c.now.Add(5 * time.Second)}})
			c.open(before)
			c.mute = true
			c.step(Moved{View: after})
			if want := "LDS in=2, LDS tcp=2, RDS r=1, RDS s=1"; c.text() != want {
				t.Errorf("delta %v: has %s before the answer, want %s", delta, c.text(), want)
			}
			c.mute = false
			r := c.answer(LDS, c.unanswered)
			if how == "refused" {
				r.Refused, r.Message = true, "in: bad"
			}
			c.step(r)
			want := "RDS r=2, RDS s=2"
			if how == "refused" {
				want = "RDS r=1, RDS s=1"
			}
			if !strings.HasSuffix(c.text(), want) {
				t.Errorf("delta %v: has %s after it was %s, want %s", delta, c.text(), how, want)
			}
			c.now = c.now.Add(5 * time.Second)
			c.step(Now{T: c.now})
			if want := "RDS r=2, RDS s=2"; !strings.HasSuffix(c.text(), want) {
				t.Errorf("delta %v: has %s after the time, want %s", delta, c.text(), want)
			}
		}
	}
}

// A stream of one type waits, too.
func TestAStreamOfRoutesWaitsBehindABarrier(t *testing.T) {
	c := newBarrierClient(true)
	c.sub = NewSubOf(RDS, true, nil)
	before, after := guardedViews(&Barrier{Hosts: map[string]time.Time{"guarded": c.now.Add(5 * time.Second)}})
	c.step(Moved{View: before})
	c.step(&Request{Type: RDS, Names: namesOf("r", "s")})
	c.step(Moved{View: after})
	if want := "RDS r=1, RDS s=2"; !strings.HasSuffix(c.text(), want) {
		t.Errorf("has %s behind the barrier, want %s", c.text(), want)
	}
	c.now = c.now.Add(5 * time.Second)
	c.step(Now{T: c.now})
	if want := "RDS r=2, RDS s=2"; !strings.HasSuffix(c.text(), want) {
		t.Errorf("has %s after the time, want %s", c.text(), want)
	}
}

func TestWhereAResourceLeads(t *testing.T) {
	hosts := func(host string) bool { return slices.Contains([]string{"a.b", ""}, host) }
	for cluster, want := range map[string]bool{
		"outbound|80||a.b": true, "outbound|80|v1|a.b": true, "outbound|80||b": false, "inbound|80||": false, "PassthroughCluster": false, "a.b": false,
	} {
		if got := naming(NewResource(RDS, "r", nil), "x", cluster).LeadsTo(hosts); got != want {
			t.Errorf("cluster %s: %v, want %v", cluster, got, want)
		}
	}
	r := NewResource(RDS, "r", nil)
	if r.refers = (references{unknown: true}); !r.LeadsTo(func(string) bool { return false }) {
		t.Error("what is not known may lead there")
	}
}
