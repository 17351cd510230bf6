package capture

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/agent/capture/nft"
)

// Warnings names rules of other programs that may drop captured connections or capture them too: firewalls
// that drop by default, and tables that no program in the path can read. Each is a sentence with a
// remedy.
func Warnings(o BackendOptions) (warnings []string) {
	add := func(w string) {
		if w != "" && !slices.Contains(warnings, w) {
			warnings = append(warnings, w)
		}
	}
	chains, _ := nft.OtherChains() // where they can't be read there is nothing to warn of
	for _, c := range chains {
		add(firewallWarning(c.Table, c.Name, c.Hook, c.Drops, "the nftables table "+c.Table))
	}
	for _, w := range Unreadable(o) {
		add(w)
	}
	legacy := o.programs().LegacyChains()
	for _, program := range []string{"iptables-legacy", "iptables", "ip6tables-legacy", "ip6tables"} {
		for _, c := range legacy[program] {
			add(firewallWarning(c.Table, c.Name, strings.ToLower(c.Name), c.Drops, fmt.Sprintf("the table %s of %s", c.Table, program)))
		}
	}
	return warnings
}

// Unreadable names tables in this network namespace that no program in the path can read, so that
// rules of capture in them can be neither found nor removed. Each is a sentence with a remedy.
func Unreadable(o BackendOptions) (warnings []string) {
	for _, name := range o.programs().Unreadable() {
		warnings = append(warnings, fmt.Sprintf("legacy tables of %s are in use here, and there is no %s-legacy to read them: "+
			"if they have rules of capture, run istio-iptables --cleanup-only where that program is installed", name, name))
	}
	return warnings
}

// firewallWarning returns the warning about a chain of a firewall; empty if there is none.
func firewallWarning(table, chain, hook string, drops bool, where string) string {
	dropped := map[string]string{"prerouting": "arrives", "input": "is meant for this host", "output": "leaves"}[hook]
	switch {
	case table == "firewalld":
		return "firewalld is active here: allow the proxy's ports in its zone, such as by firewall-cmd --permanent --add-port=15006/tcp --add-port=15008/tcp --add-port=15021/tcp"
	case strings.HasPrefix(chain, "ufw"):
		return "ufw is active here: allow the proxy's ports, such as by ufw allow proto tcp to any port 15006,15008,15021"
	case drops && dropped != "":
		return fmt.Sprintf("chain %s of %s drops what %s unless a rule of it allows that: allow the proxy's ports there, such as 15001, 15006, 15008 and 15021", chain, where, dropped)
	}
	return ""
}
