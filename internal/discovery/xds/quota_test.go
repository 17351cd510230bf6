package xds

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// connect enters a connection that cannot wait.
func (l *quota) connect(address string) (*connUsage, error) {
	c := &connUsage{address: address}
	return c, l.addConn(c)
}

func (l *quota) stream(t *testing.T, node, owner string) (*account, error) {
	t.Helper()
	conn, err := l.connect(node)
	if err != nil {
		t.Fatal(err)
	}
	a, err := l.openStream(conn)
	if err != nil {
		return nil, err
	}
	if err := a.identify(node, owner); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

// All replicas of a Deployment are one identity: it may fill three quarters of a server
// by itself, and from then on others still find room.
func TestAnIdentityIsLimitedOnlyWhenItGetsTight(t *testing.T) {
	l := newQuota()
	l.limits.Streams = 100
	var big []*account
	for i := 0; ; i++ {
		a, err := l.stream(t, fmt.Sprint("big-", i), "big")
		if err != nil {
			if !strings.Contains(err.Error(), "at most 100") || status.Code(err) != codes.ResourceExhausted {
				t.Errorf("refused with %v", err)
			}
			break
		}
		big = append(big, a)
	}
	if n := len(big); n != 75 {
		t.Errorf("%d streams of one identity, want 75", n)
	}
	for i := range 25 {
		if _, err := l.stream(t, fmt.Sprint("small-", i), "small"); err != nil {
			t.Fatalf("stream %d of another identity: %v", i, err)
		}
	}
	if _, err := l.stream(t, "small", "small"); err == nil {
		t.Error("another identity gets more than a quarter, too")
	}
	for _, a := range big {
		a.close()
	}
	if _, err := l.stream(t, "small", "small"); err != nil {
		t.Errorf("room again: %v", err)
	}
}

func TestBytesAreChargedToConnectionNodeAndIdentity(t *testing.T) {
	l := newQuota()
	a, _ := l.stream(t, "n", "o")
	b, _ := l.stream(t, "n", "o") // another connection
	if err := a.charge(maxHeld - 10); err != nil {
		t.Fatal(err)
	}
	if err := b.charge(11); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), fmt.Sprint(maxHeld)) {
		t.Errorf("beyond the node's share: %v", err)
	}
	if err := b.charge(10); err != nil {
		t.Errorf("within the node's share: %v", err)
	}
	a.close()
	if err := a.charge(1); err == nil {
		t.Error("a stream that has ended is charged")
	}
	b.close()
	if l.all != (usage{}) || len(l.nodes)+len(l.owners) != 0 {
		t.Errorf("left behind: %+v, %d nodes, %d owners", l.all, len(l.nodes), len(l.owners))
	}
}

func TestNobodyHasMoreThanAQuarterOfTheBytesWhenItGetsTight(t *testing.T) {
	l := newQuota()
	l.limits.Streams = 128 // 32 MiB
	for i := range 2 {
		a, err := l.stream(t, fmt.Sprint(i), "big")
		if err != nil || a.charge(maxHeld) != nil {
			t.Fatal(err)
		}
	}
	a, _ := l.stream(t, "other", "other")
	if err := a.charge(7 << 20); err != nil {
		t.Fatal(err)
	}
	b, _ := l.stream(t, "more", "big")
	if err := b.charge(2 << 20); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "of big") {
		t.Errorf("more for who has half: %v", err)
	}
	if err := a.charge(1 << 19); err != nil {
		t.Errorf("more for who has less than a quarter: %v", err)
	}
}

// Many proxies behind one address may come at once: those that find no place wait for one.
func TestConnectionsWithoutAStreamWaitForAPlace(t *testing.T) {
	l := newQuota()
	var turns, open []*connUsage
	enter := func(address string) *connUsage {
		t.Helper()
		c := &connUsage{address: address}
		c.admitted = func() { turns = append(turns, c) }
		if err := l.addConn(c); err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		return c
	}
	for range maxIdlePerHost {
		enter("10.0.0.1")
	}
	turns = nil
	second, third := enter("10.0.0.1"), enter("10.0.0.1")
	if len(turns) != 0 {
		t.Fatal("more than the limit have a place")
	}
	if _, err := l.connect("10.0.0.1"); err == nil || !strings.Contains(err.Error(), "at most 512 and 8192") {
		t.Errorf("one that cannot wait: %v", err)
	}
	if other := enter("10.0.0.2"); !slices.Equal(turns, []*connUsage{other}) {
		t.Error("another address waits, too")
	}
	a, err := l.openStream(open[0])
	if err != nil || a.identify("n", "o") != nil {
		t.Fatal(err)
	}
	if len(turns) != 2 || turns[1] != second {
		t.Errorf("%d have got a place when one has its stream", len(turns)-1)
	}
	l.removeConn(open[1])
	if len(turns) != 3 || turns[2] != third {
		t.Errorf("%d have got a place when another is gone", len(turns)-1)
	}
	a.close()
	for range 2 {
		for _, c := range open {
			l.removeConn(c)
		}
	}
	if len(l.hosts) != 0 || l.conns != 0 {
		t.Errorf("left behind: %+v, %d connections", l.hosts, l.conns)
	}
}

// A connection that stays idle gives its place to one that waits, and nobody waits for ever.
func TestWhoIsIdleOrWaitsForLongGivesWay(t *testing.T) {
	l := newQuota()
	ended := 0
	enter := func() error {
		c := &connUsage{address: "10.0.0.1", admitted: func() {}}
		c.end = func() {
			ended++
			l.removeConn(c)
		}
		return l.addConn(c)
	}
	at := func(after time.Duration) int {
		ended = 0
		for _, end := range l.expired(time.Now().Add(after)) {
			end()
		}
		return ended
	}
	for range maxIdlePerHost {
		if err := enter(); err != nil {
			t.Fatal(err)
		}
	}
	if n := at(time.Hour); n != 0 {
		t.Errorf("%d are ended though nobody waits", n)
	}
	for range 3 {
		if err := enter(); err != nil {
			t.Fatal(err)
		}
	}
	if n := at(0); n != 0 {
		t.Errorf("%d are ended at once", n)
	}
	if n := at(maxIdleTime); n != 3 || len(l.hosts["10.0.0.1"].queue) != 0 {
		t.Errorf("%d are ended for 3 that wait", n)
	}
	for range maxWaitingPerHost {
		if err := enter(); err != nil {
			t.Fatal(err)
		}
	}
	if err := enter(); err == nil || !strings.Contains(err.Error(), "8192 that wait") {
		t.Errorf("one more than may wait: %v", err)
	}
	if n := at(handshakeLimit); n != maxIdlePerHost+maxWaitingPerHost {
		t.Errorf("%d are ended after the limit, want all", n)
	}
}

func TestConnectionsOfOneAddressAreLimitedOnlyWhenItGetsTight(t *testing.T) {
	l := newQuota()
	l.limits.Streams = 50 // 100 connections
	n := 0
	for ; ; n++ {
		if _, err := l.connect("10.0.0.1"); err != nil {
			break
		}
	}
	if n != 75 {
		t.Errorf("%d connections from one address, want 75", n)
	}
	if _, err := l.connect("10.0.0.2"); err != nil {
		t.Errorf("another address: %v", err)
	}
}

// A stream that never says who it is ends, and says why.
func TestSilentStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(&oneClass{latest: NewLatestView(&View{})}, quiet(t), nil)
		began := time.Now()
		g := open(t, dial(t, s, nil))
		_, err := g.Recv()
		if status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "within 30s") {
			t.Errorf("ended with %v", err)
		}
		if d := time.Since(began); d < silenceLimit || d > silenceLimit+time.Second {
			t.Errorf("after %s, want %s", d, silenceLimit)
		}
	})
}

// One that has said it may be silent for ever.
func TestStreamsMayBeSilentAfterTheirFirstRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		latest := NewLatestView(&View{})
		g := open(t, dial(t, New(&oneClass{latest: latest}, quiet(t), nil), nil))
		ask(t, g, first(node(nil)))
		if _, err := g.Recv(); err != nil {
			t.Fatal(err)
		}
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL(), ResponseNonce: "1"})
		time.AfterFunc(10*silenceLimit, func() { latest.Publish((&View{}).put(NewCluster("late", nil, ""))) })
		if _, err := g.Recv(); err != nil {
			t.Error(err)
		}
	})
}

func TestRefusalsAreLoggedOnceInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		s := New(&oneClass{}, textLog(&out), nil)
		for range 3 {
			for range 100 {
				s.refusals.note(s, exhausted(reasonStreams, "too many"), "spiffe://td/ns/a/sa/b")
			}
			s.refusals.note(s, exhausted(reasonMemory, "too much"), "address 10.0.0.1")
			<-time.After(refusalPause)
		}
		if n := strings.Count(out.String(), "\n"); n != 6 {
			t.Errorf("%d lines, want 6:\n%s", n, out.String())
		}
		for _, want := range []string{"spiffe://td/ns/a/sa/b", "reason=streams", "ResourceExhausted", "too many", "more_since_last_time=99"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the log does not say %q:\n%s", want, out.String())
			}
		}
	})
}

func TestRefusedConfigurationIsLoggedAtAPace(t *testing.T) {
	var p logLimit
	now, lines := time.Unix(1e9, 0), 0
	for range 100 {
		if _, ok := p.allow(now, logLimitLines); ok {
			lines++
		}
	}
	if lines != logLimitLines {
		t.Errorf("%d lines, want %d", lines, logLimitLines)
	}
	if suppressed, ok := p.allow(now.Add(logLimitPeriod), logLimitLines); !ok || suppressed != 100-logLimitLines {
		t.Errorf("later: %v, %d suppressed", ok, suppressed)
	}
}
