// Package check decides whether a control plane can be installed in a cluster, and whether an installed one works.
//
// [Facts] is what somebody has found out about the cluster, the control plane, and this machine. [Checks] is the table of
// the checks: each decides about the facts, and says what to do if it fails. [Run] applies those of one situation.
// A fact that could not be found out is never a success. Nothing here asks anybody or reads a clock.
package check

import (
	"fmt"
	"strings"

	"github.com/pilothouse/pilothouse/internal/finding"
)

type (
	// Result is that of a check.
	Result = finding.Result
	// Finding is what a check has found.
	Finding = finding.Finding
	// Row is a check with its finding.
	Row = finding.Row
)

// The results, from the best.
const (
	OK      = finding.OK
	Warning = finding.Warning
	Unknown = finding.Unknown
	Failed  = finding.Failed
)

// Situation is when a check makes sense. Several can be joined.
type Situation int

// The situations.
const (
	// Before is a cluster in which the control plane is to be installed, or upgraded.
	Before Situation = 1 << iota
	// After is a cluster in which it is installed.
	After
	// Address is a control plane of which only the address is known.
	Address
)

// Check is one check.
type Check struct {
	// Name is what is checked, Why why it matters.
	Name, Why string
	// When are the situations in which it is made.
	When   Situation
	Decide func(*Facts) Finding
}

// Run makes the checks of a situation, in the order of the table.
func Run(f *Facts, s Situation) []Row {
	var rows []Row
	for _, c := range Checks {
		if c.When&s != 0 {
			rows = append(rows, Row{Name: c.Name, Why: c.Why, Finding: c.Decide(f)})
		}
	}
	return rows
}

// Checks are all checks.
var Checks = []Check{
	{"API server", "the chart and the control plane use APIs that older servers do not have", Before | After, server},
	{"clock of the API server", "tokens and certificates are valid by clock", Before | After, func(f *Facts) Finding { return clock(f.ServerClock, "API server") }},
	{"namespace", "the control plane is installed into it", Before, namespace},
	{"permissions to install", "the chart makes objects of these kinds, and grants the control plane no more than its installer has", Before, permissions},
	{"Istio's resources", "the control plane reads objects of these kinds", Before | After, resources},
	{"other control planes", "two that inject the same namespaces exclude each other", Before | After, planes},
	{"Deployment", "proxies are served by replicas that are ready", After, deployment},
	{"Service", "proxies and the API server reach the control plane by its Service", After, service},
	{"permissions of the control plane", "it cannot read, sign or inject without the rules of its chart", After, account},
	{"replicas", "every replica serves proxies", After | Address, replicas},
	{"clock of the control plane", "it decides by clock which certificates and tokens are valid", After | Address, discoveryClock},
	{"versions", "all parts of a mesh should have the same version, except during an upgrade", After | Address, versions},
	{"root", "no certificate of the mesh is valid after its root", After | Address, roots},
	{"root in namespaces", "sidecars verify the control plane by the ConfigMap istio-ca-root-cert of their namespace", After, rootConfigMaps},
	{"certificate of port 15012", "proxies connect only to a control plane with a valid certificate", After, servingCertificate},
	{"certificate of the webhooks", "the API server calls only webhooks with a valid certificate", After, webhookCertificate},
	{"webhook configurations", "the API server finds the webhooks, and knows their root, by them", After, bundles},
	{"injection", "Pods get their proxy from the webhook", After, injection},
	{"validation", "invalid objects are refused when they are written", After, validation},
	{"issuer", "no certificate of a workload is valid after its issuer", After | Address, issuer},
	{"ports", "proxies, the API server and collectors of metrics connect to them", After | Address, ports},
	{"proxies", "the mesh is what its proxies have applied", After | Address, proxies},
	{"Pods with a proxy", "a Pod that others expect to have a proxy gets traffic that it cannot decrypt without one", After | Address, missingProxies},
	{"addresses of proxies", "a proxy whose address no workload has gets no traffic of the mesh", After | Address, unknownAddresses},
	{"certificates of workloads", "a workload whose certificate has ended is refused by others", After | Address, workloadCertificates},
	{"capture", "traffic that is not captured passes the proxy by, and so mutual TLS and policies", After | Address, captureDrift},
}

func ok(format string, args ...any) Finding { return finding.Pass(format, args...) }

func warning(remedy, format string, args ...any) Finding {
	return finding.Warn(remedy, format, args...)
}

func failed(remedy, format string, args ...any) Finding { return finding.Fail(remedy, format, args...) }

// unknown is the finding about a fact that is not known; why says why.
func unknown(why string) Finding {
	remedy := "run pilotctl check where the API server and the control plane can be reached"
	if strings.Contains(strings.ToLower(why), "forbidden") {
		remedy = "run pilotctl check as a user who may do this"
	}
	return finding.NotKnown(remedy, why)
}

// shown are the first of many names.
func shown(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
}
