// Package objectstatus decides what the status of one of Istio's objects, of the Gateway API's, or of an Ingress says, and when it is written.
//
// A status has two conditions: Reconciled says whether all proxies that use the object have applied its newest
// version, PassedAnalysis what is wrong with it. Those of the Gateway API have its conditions, that of an Ingress has addresses. What others have written to the same status stays as it is. The package
// is pure: stored statuses, observations and the time are arguments. A Pacer is not safe for concurrent use.
package objectstatus

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// The types of the conditions. The names are Istio's.
const (
	Reconciled     = "Reconciled"
	PassedAnalysis = "PassedAnalysis"
)

// The reasons of the condition Reconciled.
const (
	reasonUpToDate         = "UpToDate"
	reasonNotUsed          = "NotUsed"
	reasonStillPropagating = "StillPropagating"
	reasonRefused          = "RefusedByProxies"
	reasonRejected         = "Rejected"
)

// The reasons of the condition PassedAnalysis.
const (
	reasonNothingFound  = "NothingFound"
	reasonErrorsFound   = "ErrorsFound"
	reasonWarningsFound = "WarningsFound"
)

// Bounds of a status.
const (
	// maxTexts is how many findings the condition PassedAnalysis describes.
	maxTexts = 10
	// maxText is how many bytes of one finding it has.
	maxText = 500
)

// Writes reports whether the leader of a revision writes the status of an object, by its labels. That of an object of one
// revision is written by the leader of this one, that of an object of all revisions by the one that leads them all: other
// revisions say nothing, so that none undoes what another one says.
func Writes(labels map[string]string, revision string, leadsAll bool) bool {
	if of, labelled := labels[mesh.RevisionLabel]; labelled {
		return of == revision
	}
	return leadsAll
}

// Code identifies the type of a finding.
type Code string

// The codes. They begin with codePrefix, so that they are told from those of others.
const (
	CodeRejected   Code = "PHS0001" // the version is not in force
	CodeNotApplied Code = "PHS0002" // something of it has no effect, or not the expected one
	CodeRefused    Code = "PHS0003" // proxies have refused what was made from it
)

const codePrefix = "PHS"

// names are the names of the codes.
var names = map[Code]string{CodeRejected: "Rejected", CodeNotApplied: "NotApplied", CodeRefused: "RefusedByProxies"}

// Finding is something wrong with an object.
type Finding struct {
	Code Code
	Text string
}

// level is the severity in a validation message.
func (f Finding) level() string {
	if f.Code == CodeNotApplied {
		return "WARNING"
	}
	return "ERROR"
}

// FindingOf returns the finding that a problem is; false for information.
func FindingOf(p object.Problem) (Finding, bool) {
	f := Finding{Code: CodeNotApplied, Text: p.Text}
	if p.Field != "" {
		f.Text = p.Field + ": " + p.Text
	}
	if p.Severity == object.Error {
		f.Code = CodeRejected
	}
	return f, p.Severity != object.Info
}

// Counts are numbers of connected proxies: those that use an object, those of them that have its newest change, and
// those that have refused something of it.
type Counts struct{ Proxies, Applied, Refused int }

// Observation is what a replica knows of one object.
type Observation struct {
	// Generation is the newest metadata.generation of the object that was validated, InForce that of the version in
	// force; 0 if there is none.
	Generation, InForce int64
	// Findings are those of the newest version, without those of proxies; Refusals are the latter.
	Findings, Refusals []Finding
	// Addresses are those that are allocated for the hosts of a ServiceEntry; nil for none.
	Addresses []object.HostAddress
	// GatewayAPI is set for an object of the Gateway API and for an Ingress, and Gateway is what its status says; nil if it has none of this control plane.
	GatewayAPI bool
	Gateway    *object.GatewayStatus
	Counts
}

// Report is what a replica tells others of one object.
type Report struct {
	// InForce is the generation that the counts are of.
	InForce  int64
	Refusals []Finding
	Counts
}

// Report returns what others have to know of an observation.
func (o *Observation) Report() Report {
	return Report{InForce: o.InForce, Refusals: o.Refusals, Counts: o.Counts}
}

// Same reports whether two observations are equal.
func (o *Observation) Same(other *Observation) bool {
	return o.Generation == other.Generation && o.InForce == other.InForce && o.Counts == other.Counts &&
		sameFindings(o.Findings, other.Findings) && sameFindings(o.Refusals, other.Refusals) &&
		slices.Equal(o.Addresses, other.Addresses) && o.GatewayAPI == other.GatewayAPI && reflect.DeepEqual(o.Gateway, other.Gateway)
}

// Join adds what other replicas report of the same object. A replica that has another version in force has not
// applied this one.
func (o Observation) Join(reports ...Report) Observation {
	refusals := map[Finding]bool{}
	for _, f := range o.Refusals {
		refusals[f] = true
	}
	for _, r := range reports {
		o.Proxies += r.Proxies
		if r.InForce != o.InForce {
			continue
		}
		o.Applied, o.Refused = o.Applied+r.Applied, o.Refused+r.Refused
		for _, f := range r.Refusals {
			if !refusals[f] {
				refusals[f] = true
				o.Refusals = append(o.Refusals[:len(o.Refusals):len(o.Refusals)], f)
			}
		}
	}
	return o
}

// Condition is a condition that the control plane writes.
type Condition struct{ Type, Status, Reason, Message string }

// Status is what the control plane has to say about one version of an object.
type Status struct {
	Generation int64
	Conditions []Condition
	Findings   []Finding
	// Addresses are the allocated ones; nil leaves those that the status has.
	Addresses []object.HostAddress
	// Gateway is set for an object of the Gateway API and for an Ingress, and stands for all of the above but Generation.
	Gateway *object.GatewayStatus
	// Written is set if something in the stored status of an Ingress is what this control plane has written.
	Written bool
	// Proxies is how many use the object.
	Proxies int
}

// Decide returns what the status of an object shall say, whose newest generation is newest. unknown is how many
// replicas have not reported on the object. It returns false while the observation is of another generation: then
// there is nothing to be said yet.
func Decide(newest int64, o *Observation, unknown int) (Status, bool) {
	if o.Generation != newest || o.GatewayAPI && o.Gateway == nil {
		return Status{}, false
	}
	if o.GatewayAPI {
		return Status{Generation: newest, Gateway: decideGateway(o)}, true
	}
	findings := append(o.Findings[:len(o.Findings):len(o.Findings)], o.Refusals...)
	return Status{
		Generation: newest, Findings: findings, Proxies: o.Proxies, Addresses: o.Addresses,
		Conditions: []Condition{reconciled(o, unknown), analysis(findings)},
	}, true
}

// reconciled returns the condition Reconciled.
func reconciled(o *Observation, unknown int) Condition {
	out := Condition{Type: Reconciled, Status: "False"}
	progress := fmt.Sprintf("%d/%d proxies up to date to latest generation %d", o.Applied, o.Proxies, o.InForce)
	switch {
	case hasCode(o.Findings, CodeRejected):
		out.Reason, out.Message = reasonRejected, fmt.Sprintf("generation %d is rejected; no version of the object is in force", o.Generation)
		if o.InForce != 0 {
			out.Message = fmt.Sprintf("generation %d is rejected; generation %d stays in force", o.Generation, o.InForce)
		}
	case o.Refused > 0:
		out.Reason, out.Message = reasonRefused, fmt.Sprintf("%s; %d have refused it", progress, o.Refused)
	case unknown > 0:
		out.Reason, out.Message = reasonStillPropagating, fmt.Sprintf("%s; %d more replicas of the control plane have not reported", progress, unknown)
	case o.Applied < o.Proxies:
		out.Reason, out.Message = reasonStillPropagating, progress
	case o.Proxies == 0:
		out.Status, out.Reason, out.Message = "True", reasonNotUsed, progress
	default:
		out.Status, out.Reason, out.Message = "True", reasonUpToDate, progress
	}
	return out
}

// analysis returns the condition PassedAnalysis.
func analysis(findings []Finding) Condition {
	out := Condition{Type: PassedAnalysis, Status: "True", Reason: reasonNothingFound}
	if len(findings) == 0 {
		return out
	}
	out.Status, out.Reason = "False", reasonWarningsFound
	var texts []string
	for i, f := range findings {
		if f.level() == "ERROR" {
			out.Reason = reasonErrorsFound
		}
		if i < maxTexts {
			text := f.Text
			if len(text) > maxText {
				text = strings.ToValidUTF8(text[:maxText], "") + "…"
			}
			texts = append(texts, text)
		}
	}
	if more := len(findings) - maxTexts; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	out.Message = strings.Join(texts, "\n")
	return out
}

func hasCode(findings []Finding, c Code) bool {
	for _, f := range findings {
		if f.Code == c {
			return true
		}
	}
	return false
}

func sameFindings(a, b []Finding) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
