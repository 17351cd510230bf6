package secret

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// keep runs a keeper in a synctest bubble, and f at the same time. before changes the CA
// before the first request.
func keep(t *testing.T, o Options, f func(t *testing.T, k *Keeper, ca *fakeCA), before ...func(*fakeCA)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ca := newFakeCA(t)
		for _, b := range before {
			b(ca)
		}
		o.Identity = alice
		k := NewKeeper(NewValue(), o, ca, quiet)
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
		if n := len(ca.calls()); n < 3 || n > 5 {
			t.Errorf("%d attempts in the first second, want about 4", n)
		}
		pass(time.Minute)
		if n := len(ca.calls()); n < 12 || n > 25 {
			t.Errorf("%d attempts in a minute", n)
		}
	}, func(ca *fakeCA) { ca.setFail(errDown) })
}

func TestShortLifetimeDoesNotLoop(t *testing.T) {
	keep(t, Options{Ratio: 1, TTL: 20 * time.Second}, func(t *testing.T, k *Keeper, ca *fakeCA) {
		pass(10 * time.Second)
		if n := len(ca.calls()); n > 11 {
			t.Errorf("%d calls in 10 s", n)
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
