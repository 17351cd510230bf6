package secret

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// keep runs a keeper in a synctest bubble, and f at the same time. before changes the CA
// before the first request.
func keep(t *testing.T, o Options, f func(t *testing.T, k *Keeper, ca *fakeCA), before ...func(*fakeCA)) {
	t.Helper()
	keepWith(t, o, func(*Keeper) {}, f, before...)
}

// keepWith is keep, and changes the keeper before it runs.
func keepWith(t *testing.T, o Options, change func(*Keeper), f func(t *testing.T, k *Keeper, ca *fakeCA), before ...func(*fakeCA)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ca := newFakeCA(t)
		for _, b := range before {
			b(ca)
		}
		o.Identity = alice
		k := NewKeeper(NewValue(), o, ca, quiet)
		change(k)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- k.Run(ctx) }()
		f(t, k, ca)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestRenewalAtHalfOfTheLifetime(t *testing.T) {
	keep(t, Options{Ratio: 0.5}, func(t *testing.T, k *Keeper, ca *fakeCA) {
		synctest.Wait()
		first, changed := k.Current()
		if first == nil {
			t.Fatal("no secret at once")
		}
		pass(12*time.Hour - time.Second)
		if s, _ := k.Current(); s != first {
			t.Error("renewed before its time")
		}
		pass(2 * time.Second)
		second, _ := k.Current()
		if second == first || second.Version == first.Version || !second.NotAfter.After(first.NotAfter) {
			t.Errorf("not renewed at half of its life: until %s", second.NotAfter)
		}
		select {
		case <-changed:
		default:
			t.Error("the channel of changes is not closed")
		}
		if n := len(ca.calls()); n != 2 {
			t.Errorf("%d calls, want 2", n)
		}
	})
}

func TestJitterVariesTheRenewal(t *testing.T) {
	keep(t, Options{Ratio: 0.5, Jitter: 0.1, TTL: 10 * time.Hour}, func(t *testing.T, k *Keeper, ca *fakeCA) {
		pass(100 * time.Hour)
		calls := ca.calls()
		distinct := map[time.Duration]bool{}
		for i := 1; i < len(calls); i++ {
			gap := calls[i].Sub(calls[i-1])
			distinct[gap] = true
			if gap < 4*time.Hour-time.Second || gap > 6*time.Hour+time.Second {
				t.Errorf("renewal %d after %s, want 4 h to 6 h", i, gap)
			}
		}
		if len(distinct) < 2 {
			t.Errorf("no jitter in %v", distinct)
		}
	})
}

func TestLeafIsServedUntilItsSuccessorExists(t *testing.T) {
	keep(t, Options{Ratio: 0.5, TTL: time.Hour}, func(t *testing.T, k *Keeper, ca *fakeCA) {
		synctest.Wait()
		first, _ := k.Current()
		ca.setFail(errDown)
		pass(59 * time.Minute)
		if s, _ := k.Current(); s != first {
			t.Fatal("the leaf was dropped while the CA was down")
		}
		if err := k.Problem(); err == nil || !strings.Contains(err.Error(), "the CA is down") {
			t.Errorf("Problem() = %v", err)
		}
		if k.ClientCertificate() == nil {
			t.Error("no client certificate although the leaf is valid")
		}
		calls := ca.calls()
		if last := calls[len(calls)-1].Sub(calls[len(calls)-2]); last > 30*time.Second {
			t.Errorf("a minute before the end it still waits %s", last)
		}
		pass(2 * time.Minute)
		if k.ClientCertificate() != nil {
			t.Error("an expired certificate is presented")
		}
		ca.setFail(nil)
		pass(6 * time.Second)
		if s, _ := k.Current(); s == first || k.Problem() != nil {
			t.Errorf("not renewed when the CA was back: %v", k.Problem())
		}
	})
}

func TestRetriesBackOff(t *testing.T) {
	keep(t, Options{Ratio: 0.5}, func(t *testing.T, k *Keeper, ca *fakeCA) {
		pass(time.Second)
		if n := len(ca.calls()); n < 3 || n > 15 {
			t.Errorf("%d attempts in the first second, want about 6", n)
		}
		pass(10 * time.Minute)
		if n := len(ca.calls()); n < 100 || n > 500 {
			t.Errorf("%d attempts in ten minutes, want one every 2.5 s or so", n)
		}
		st := k.State()
		if n := len(ca.calls()); st.Requests != n || st.Failed != n || st.Retries != n-1 || st.Failures != n || !st.Next.After(time.Now().Add(-time.Second)) {
			t.Errorf("%d attempts: state %+v", n, st)
		}
	}, func(ca *fakeCA) { ca.setFail(errDown) })
}

func TestARenewalThatIsDueAtOnceDoesNotLoop(t *testing.T) {
	for _, tt := range []struct{ life, span time.Duration }{{20 * time.Second, 10 * time.Second}, {24 * time.Hour, 24 * time.Hour}} {
		keep(t, Options{Ratio: 1, TTL: tt.life}, func(t *testing.T, k *Keeper, ca *fakeCA) {
			pass(tt.span)
			if n := len(ca.calls()); n > 21 {
				t.Errorf("%d requests in %s for a lifetime of %s, want at most 21", n, tt.span, tt.life)
			}
		})
	}
}

// Each certificate ends with the root, so the lifetimes become shorter and shorter.
func TestARootNearItsEndCausesNoStormAndAnAlarm(t *testing.T) {
	var log lines
	keepWith(t, Options{Ratio: 0.5}, func(k *Keeper) { k.log = log.logger() }, func(t *testing.T, k *Keeper, ca *fakeCA) {
		pass(61 * time.Minute)
		n := len(ca.calls())
		if n < 5 || n > 200 {
			t.Errorf("%d requests in the last hour of the root", n)
		}
		if s, _ := k.Current(); s == nil || !s.EndsWithIssuer() || !s.NotAfter.Equal(ca.root.NotAfter) {
			t.Errorf("%v does not end with its root", s)
		}
		if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), "certificate that signed it ends") {
			t.Errorf("no alarm: %s", log.String())
		}
	}, func(ca *fakeCA) { ca.renewRoot(t, time.Hour) })
}

// jumping replaces the clock of a keeper by one whose wall clock can be set.
func jumping(k *Keeper) (jump func(time.Duration)) {
	var by atomic.Int64
	clock := k.clock
	k.clock = func() reading {
		r := clock()
		r.wall = r.wall.Add(time.Duration(by.Load()))
		return r
	}
	return func(d time.Duration) { by.Add(int64(d)) }
}

// A wall clock that is wrong for an hour costs no certificate and causes no storm.
func TestClockJumps(t *testing.T) {
	for _, by := range []time.Duration{48 * time.Hour, -48 * time.Hour, time.Hour, -time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			var jump func(time.Duration)
			keepWith(t, Options{Ratio: 0.5}, func(k *Keeper) { jump = jumping(k) }, func(t *testing.T, k *Keeper, ca *fakeCA) {
				pass(3 * time.Hour)
				first, _ := k.Current()
				jump(by)
				pass(time.Hour)
				if s, _ := k.Current(); s == nil || s != first && !s.NotAfter.After(first.NotAfter) {
					t.Error("no certificate while the clock is wrong")
				}
				// A failed retry every 2.5 s if all certificates seem to have expired.
				if n := len(ca.calls()); n > 1+3600*20 {
					t.Errorf("%d requests while the clock is wrong", n)
				}
				jump(-by)
				before := len(ca.calls())
				pass(2 * time.Minute)
				if s, _ := k.Current(); !s.NotAfter.After(time.Now()) || s.NotBefore.After(time.Now()) {
					t.Errorf("not valid when the clock is right again: %s to %s", s.NotBefore, s.NotAfter)
				}
				if n := len(ca.calls()) - before; n > 60 {
					t.Errorf("%d requests in two minutes after the clock was put right", n)
				}
				now := len(ca.calls())
				pass(72 * time.Hour)
				if n := len(ca.calls()) - now; n < 5 || n > 8 {
					t.Errorf("%d renewals in 72 h, want one every 12 h", n)
				}
			})
		})
	}
}

// A machine whose clock is behind that of the CA gets a certificate all the same.
func TestACertificateThatIsNotValidYetIsUsed(t *testing.T) {
	var log lines
	keepWith(t, Options{Ratio: 0.5}, func(k *Keeper) { k.log = log.logger(); jumping(k)(-time.Hour) }, func(t *testing.T, k *Keeper, ca *fakeCA) {
		pass(time.Minute)
		if s, _ := k.Current(); s == nil || len(ca.calls()) != 1 || !strings.Contains(log.String(), "set the clocks") {
			t.Errorf("certificate %v after %d requests, %v; log: %s", s, len(ca.calls()), k.Problem(), log.String())
		}
	})
}

// The renewal is due by the wall clock at most a minute after it jumped, not when a timer of 12 hours ends.
func TestJumpToTheRenewalIsNoticed(t *testing.T) {
	var jump func(time.Duration)
	keepWith(t, Options{Ratio: 0.5}, func(k *Keeper) { jump = jumping(k) }, func(t *testing.T, k *Keeper, ca *fakeCA) {
		pass(3 * time.Hour)
		jump(11 * time.Hour)
		pass(time.Minute)
		if n := len(ca.calls()); n != 2 {
			t.Errorf("%d requests a minute after the jump, want 2", n)
		}
	})
}

type wrongKey struct{ *fakeCA }

func (w wrongKey) Sign(ctx context.Context, _ []byte, ttl time.Duration) (chain, roots []byte, err error) {
	key, _ := pki.GenerateKey("")
	csr, _ := pki.MakeCSR(key, alice)
	return w.fakeCA.Sign(ctx, csr, ttl)
}

func TestCertificateForAnotherKeyIsRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		k := NewKeeper(NewValue(), Options{Identity: alice}, wrongKey{newFakeCA(t)}, quiet)
		done := make(chan error)
		go func() { done <- k.Run(ctx) }()
		synctest.Wait()
		if s, _ := k.Current(); s != nil || k.Problem() == nil {
			t.Errorf("a certificate for another key was accepted")
		}
		cancel()
		<-done
	})
}
