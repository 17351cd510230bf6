package mesh

import "strings"

// HostName is a host as configuration compares it: host names are the same whatever the
// case of their letters, and a final dot only says that nothing is to be completed.
func HostName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// FullHost is the host that a rule in a namespace means, as a HostName: a name without
// dots is a Service beside the rule, in a cluster whose DNS suffix is domain. Wildcards,
// names with dots and IP addresses are taken as they are. Every host of every rule goes through it, so that
// no two places disagree on what a name means. [control-plane 1.7.1]
func FullHost(host, namespace, domain string) string {
	if host == "" || strings.ContainsAny(host, ".*:") {
		return HostName(host)
	}
	return HostName(host + "." + namespace + ".svc." + domain)
}
