package capture_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// under is the backend that world.apply uses.
var under = capture.BackendOptions{Native: true}

// using sets the backend for the rest of the test.
func using(t *testing.T, o capture.BackendOptions) {
	former := under
	under = o
	t.Cleanup(func() { under = former })
}

// TestSameConnectionsOnIptables repeats on each variant of iptables what other tests check with
// nftables: every connection arrives at the same listener.
func TestSameConnectionsOnIptables(t *testing.T) {
	for _, v := range variants() {
		t.Run(v, func(t *testing.T) {
			using(t, on(v, reconcile))
			for name, test := range map[string]func(*testing.T){
				"captured": TestCapturedConnectionsArriveAtTheProxyAndOthersDoNot, "exclusions": TestExclusionsAndLists,
				"groups": TestOwnerGroups, "IPv6": TestIPv6IsNotTouchedUnlessAskedFor, "self": TestSelfCallThroughAService,
				"established": TestEstablishedConnectionSurvivesReplacement, "TPROXY": TestTPROXYKeepsAddresses,
				"TPROXY answers": TestTPROXYAnswersFindTheProxy, "TPROXY alone": TestTPROXYDropsWithoutListener,
			} {
				t.Run(name, test)
			}
		})
	}
}

// While rules are replaced and the backend changes repeatedly, no connection bypasses them.
func TestChangeOfBackendsLeavesNoGap(t *testing.T) {
	if len(variants()) == 0 {
		return // there is nothing to change to
	}
	w := newWorld(t)
	w.listen(t, 80)
	backends := []capture.BackendOptions{{Native: true, Path: capture.DefaultPath}}
	for _, v := range variants() {
		backends = append(backends, on(v, reconcile, reapply))
	}
	plans := []plan.Ruleset{planIn(t, w.pod, injector()), planIn(t, w.pod, injector())}
	other := injector()
	other.DNS.Capture, other.DropInvalid = true, true // several tables: traffic is guarded
	plans[1] = planIn(t, w.pod, other)
	if err := applyOn(w.pod, backends[0], plans[0]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		for i := range 20 {
			if err := applyOn(w.pod, backends[i%len(backends)], plans[i/2%2]); err != nil {
				ended <- fmt.Errorf("change %d: %w", i, err)
				return
			}
		}
		ended <- nil
	}()
	dials := 0
	for ; ctx.Err() == nil; dials++ {
		c, err := w.other.Dial(t.Context(), "tcp", "10.99.0.2:80")
		if err != nil {
			t.Error(err)
			break
		}
		told, err := io.ReadAll(c)
		c.Close()
		if string(told) != "inbound for 10.99.0.2:80" {
			t.Errorf("arrived at %q, %v", told, err)
			break
		}
	}
	if err := <-ended; err != nil || dials < 2 {
		t.Errorf("%d connections: %v", dials, err)
	}
	if s := state(t, w.pod); strings.Contains(s, "ISTIO_GUARD") {
		t.Errorf("the guard is still there:\n%s", s)
	}
}

// The modes capture inbound connections in different tables. While the mode changes, a connection may
// wait, but none bypasses the rules.
func TestChangeOfModesIsGuarded(t *testing.T) {
	for _, v := range variants() {
		t.Run(v, func(t *testing.T) {
			w := newWorld(t)
			w.listenTransparent(t, 80)
			modes := []plan.Ruleset{planIn(t, w.pod, tproxy()), planIn(t, w.pod, injector())}
			if err := applyOn(w.pod, on(v), modes[1]); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				for i := range 30 {
					if err := applyOn(w.pod, on(v, reconcile), modes[i%2]); err != nil {
						ended <- fmt.Errorf("change %d: %w", i, err)
						return
					}
				}
				ended <- nil
			}()
			for dials := 0; ; dials++ {
				select {
				case err := <-ended:
					if err != nil || dials < 10 {
						t.Errorf("%d connections: %v", dials, err)
					}
					return
				default:
				}
				c, err := w.other.Dial(t.Context(), "tcp", "10.99.0.2:80")
				if err != nil {
					t.Error(err)
					continue
				}
				told, err := io.ReadAll(c)
				c.Close()
				if !strings.HasPrefix(string(told), "inbound ") {
					t.Errorf("connection %d arrived at %q, %v", dials, told, err)
				}
			}
		})
	}
}
