package capture

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Foreign names what others have in this network namespace that may keep captured connections from
// the proxy, or capture too: firewalls that drop what they don't allow, and tables that no program
// at hand can read. Each is a sentence with a remedy; capture itself is not hindered.
func Foreign(o BackendOptions) []string {
	warnings := append(foreignTables(), Unreadable(o)...)
	s := newShelf(o)
	for _, ipv6 := range []bool{false, true} {
		for _, p := range s.variants(ipv6) {
			if p.variant != "legacy" || !hasLegacy(ipv6) {
				continue
			}
			if rules, err := p.save(); err == nil {
				warnings = append(warnings, rules.foreign(p.name)...)
			}
		}
	}
	return warnings
}

// Unreadable names tables in this network namespace that no program at hand can read, so that rules
// of capture in them can be neither found nor taken back.
func Unreadable(o BackendOptions) (warnings []string) {
	s := newShelf(o)
	for _, ipv6 := range []bool{false, true} {
		if hasLegacy(ipv6) && !slices.ContainsFunc(s.variants(ipv6), func(p program) bool { return p.variant == "legacy" }) {
			warnings = append(warnings, fmt.Sprintf("legacy tables of %s are in use here, and there is no %s-legacy to read them: "+
				"if they capture too, clean them where it is, by istio-iptables --cleanup-only", family(ipv6), family(ipv6)))
		}
	}
	return warnings
}

// foreignTables looks at nftables, those of iptables' nft variant too.
func foreignTables() (warnings []string) {
	c, err := connect()
	if err != nil {
		return nil
	}
	defer c.CloseLasting()
	done := make(chan struct{})
	go func() { // for flush's reason
		defer close(done)
		chains, err := c.ListChains()
		if err != nil {
			return // a kernel without nf_tables has none
		}
		for _, ch := range chains {
			if slices.Contains(ourTables, ch.Table.Name) {
				continue
			}
			if w := foreignChain(ch); w != "" && !slices.Contains(warnings, w) {
				warnings = append(warnings, w)
			}
		}
	}()
	<-done
	return warnings
}

func foreignChain(ch *nftables.Chain) string {
	switch {
	case ch.Table.Name == "firewalld":
		return firewalldAdvice
	case strings.HasPrefix(ch.Name, "ufw"):
		return ufwAdvice
	case ch.Hooknum == nil || ch.Policy == nil || *ch.Policy != nftables.ChainPolicyDrop:
		return ""
	}
	hooks := map[nftables.ChainHook]string{
		*nftables.ChainHookPrerouting: "arrives", *nftables.ChainHookInput: "is meant for this host", *nftables.ChainHookOutput: "leaves",
	}
	if what := hooks[*ch.Hooknum]; what != "" {
		return dropAdvice(fmt.Sprintf("chain %s of the nftables table %s", ch.Name, ch.Table.Name), what)
	}
	return ""
}

const (
	firewalldAdvice = "firewalld is at work here: allow the proxy's ports in its zone, such as by firewall-cmd --permanent --add-port=15006/tcp --add-port=15008/tcp --add-port=15021/tcp"
	ufwAdvice       = "ufw is at work here: allow the proxy's ports, such as by ufw allow proto tcp to any port 15006,15008,15021"
)

func dropAdvice(chain, what string) string {
	return fmt.Sprintf("%s drops what %s unless a rule of it allows that: allow the proxy's ports there, such as 15001, 15006, 15008 and 15021", chain, what)
}
