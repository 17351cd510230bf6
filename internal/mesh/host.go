package mesh

import "strings"

// HostName returns the host in the form in which configuration compares hosts: in lower case
// and without a final dot.
func HostName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

// FullHost returns the fully qualified HostName of a host in a rule of the given namespace. A
// name without dots is a Service in that namespace, in a cluster whose DNS suffix is domain.
// Wildcards, names with dots and IP addresses are not expanded. [control-plane 1.7.1]
func FullHost(host, namespace, domain string) string {
	if host == "" || strings.ContainsAny(host, ".*:") {
		return HostName(host)
	}
	return HostName(host + "." + namespace + ".svc." + domain)
}
