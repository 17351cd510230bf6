package capture_test

import (
	"strconv"
	"strings"
	"testing"
)

// asIptables maps texts of labPlans, in the syntax of nft, to that of iptables-save.
var asIptables = strings.NewReplacer(
	"meta skgid != 1337 counter return", "! --gid-owner 1337 -j RETURN", "meta skgid 1337 counter jump", "--gid-owner 1337 -j ISTIO_IN_REDIRECT",
	"tcp dport 15008 counter return", "--dport 15008 -j RETURN", "ip daddr 127.0.0.1 counter return", "-d 127.0.0.1/32 -j RETURN",
	"ip daddr 127.0.0.0/8 counter return", "-d 127.0.0.0/8 -j RETURN", "ip6 daddr ::1 counter return", "-d ::1/128 -j RETURN",
	"skuid 7 counter jump", "--uid-owner 7 -j ISTIO_IN_REDIRECT", "skuid != 7", "! --uid-owner 7",
)

// checkIptablesHits is checkHits for a variant of iptables, whose two versions of IP count apart.
// Rules of one chain that say the same count together.
func (l *lab) checkIptablesHits(t *testing.T, v string, never []string) {
	t.Helper()
	hits := map[string]int{}
	for _, family := range []string{"iptables-", "ip6tables-"} {
		table := ""
		for line := range strings.Lines(shell(t, l.pod, "", family+v+"-save", "-c")) {
			line = strings.TrimSpace(line)
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = name
			}
			count, rule, ok := strings.Cut(strings.TrimPrefix(line, "["), "] -A ")
			if !ok {
				continue
			}
			packets, _, _ := strings.Cut(count, ":")
			n, err := strconv.Atoi(packets)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			hits[table+" "+rule] += n
		}
	}
	for rule, n := range hits {
		// Istio has rules for the proxy's own queries that earlier rules make unreachable.
		again := strings.HasPrefix(rule, "nat ISTIO_OUTPUT_DNS -p udp") && strings.HasSuffix(rule, "-j RETURN")
		for _, part := range never {
			again = again || strings.Contains(rule, asIptables.Replace(part))
		}
		if n < 50 && !again {
			t.Errorf("%d packets met %q", n, rule)
		}
	}
	if len(hits) < 10 {
		t.Errorf("there are %d rules", len(hits))
	}
}

// TestExplainIsWhatIptablesDoes is the same for each variant of iptables on this machine.
func TestExplainIsWhatIptablesDoes(t *testing.T) {
	t.Parallel()
	for _, v := range variants() {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			explainIsTrue(t, on(v, reconcile))
		})
	}
}
