package capture_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
	"github.com/pilothouse/pilothouse/test/wait"
)

func (w world) validate(t *testing.T, o plan.Options, timeout time.Duration) (good int, skipped []string, err error) {
	t.Helper()
	_, facts := w.plan(t, o)
	probes, err := plan.Probes(o, facts, 15002)
	if err != nil {
		t.Fatal(err)
	}
	do(t, w.pod, func() error {
		good, skipped, err = capture.Validation{Probes: probes, Timeout: timeout}.Run(t.Context())
		return nil
	})
	return good, skipped, err
}

// Every plan that captures anything is validated by connections, in each family and both
// directions; without its rules, validation fails.
func TestValidationSendsThroughTheRules(t *testing.T) {
	w := newWorld(t)
	for name, o := range everything() {
		want := 4
		switch name {
		case "none":
			want = 0
		case "one family":
			want = 2
		}
		w.apply(t, o)
		good, skipped, err := w.validate(t, o, wait.Bound)
		if err != nil || good != want {
			t.Errorf("%s: %d of %d probes, skipped %v: %v", name, good, want, skipped, err)
		}
		if err := w.pod.Do(capture.Nftables{}.Clean); err != nil {
			t.Fatal(err)
		}
		good, _, err = w.validate(t, o, 100*time.Millisecond)
		if good != 0 || (err == nil) != (want == 0) {
			t.Errorf("%s: without rules %d probes arrived: %v", name, good, err)
		}
	}
}

// If one chain is missing, validation fails in its direction.
func TestValidationNoticesOneMissingChain(t *testing.T) {
	w := newWorld(t)
	for chain, want := range map[string]string{"istio-redirect": "192.0.2.1:15002", "istio-in-redirect": "127.0.0.6:15002"} {
		w.apply(t, injector())
		do(t, w.pod, func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			table := &nftables.Table{Name: "istio-proxy-nat", Family: nftables.TableFamilyINet}
			c.FlushChain(&nftables.Chain{Name: chain, Table: table})
			return c.Flush()
		})
		// Those of the missing chain never arrive, the others in time.
		good, _, err := w.validate(t, injector(), time.Second)
		for timeout := 4 * time.Second; good < 2 && timeout < wait.Bound; timeout *= 4 {
			good, _, err = w.validate(t, injector(), timeout)
		}
		if good != 2 || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d probes arrived, %v", chain, good, err)
		}
		if err := w.pod.Do(capture.Nftables{}.Clean); err != nil {
			t.Fatal(err)
		}
	}
}
