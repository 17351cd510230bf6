package model

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/pilothouse/pilothouse/internal/incr"
)

// Claims is the rule that says which workload of another service account a proxy claims to be,
// by an address or by the name in its node id; empty if none. Only of a proxy whose account is
// authenticated is anything known. Who joins is refused by it; one that has joined before the
// source named that workload has no services from then on.
func (m *Model) Claims() *incr.Rule[ProxyKey, string] { return m.rules.claims }

func (m *Model) claims(r *incr.Reader, k ProxyKey) string {
	if k.Account == "" {
		return ""
	}
	cluster := m.clusterOf(r, k.Location.Cluster)
	if p, ok := incr.Get(r, m.tables.pods, inCluster(k.Namespace+"/"+k.Name, cluster)); ok && !p.Spec.Done && p.account() != k.Account {
		return fmt.Sprintf("the name of Pod %s with service account %q", p.Key(), p.account())
	}
	for _, ip := range strings.Split(k.IPs, ",") {
		if other := m.atAddress(r, k, cluster, ip); other != "" {
			return "address " + ip + ", which is that of " + other
		}
	}
	return ""
}

// atAddress is a workload of the namespace in the proxy's cluster with this address, if there is one and none of them
// has the proxy's account: Pods of a host's network share its address.
func (m *Model) atAddress(r *incr.Reader, k ProxyKey, cluster, ip string) (other string) {
	for _, p := range incr.In(r, m.tables.pods, "ip:"+ip) {
		switch {
		case p.Namespace != k.Namespace || p.Cluster != cluster || p.Spec.Done: // an ended Pod's address is given to others
		case p.account() == k.Account:
			return ""
		default:
			other = cmp.Or(other, fmt.Sprintf("Pod %s with service account %q", p.Key(), p.account()))
		}
	}
	for _, e := range incr.In(r, m.tables.entries, "ip:"+ip) {
		switch account := e.Spec.ServiceAccount; {
		case e.Namespace != k.Namespace || account == "":
		case account == k.Account:
			return ""
		default:
			other = cmp.Or(other, fmt.Sprintf("WorkloadEntry %s with service account %q", e.Key(), account))
		}
	}
	return other
}

// account is the Pod's service account.
func (p *Pod) account() string { return cmp.Or(p.Spec.ServiceAccount, "default") }
