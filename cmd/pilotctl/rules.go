package main

import (
	"strings"

	"github.com/pilothouse/pilothouse/internal/object"
)

// rule is one kind of what validate finds: scripts and code hosts count, filter and silence findings by it.
type rule struct {
	id    string
	level object.Severity
	// short says what is wrong, help what follows from it and what to do.
	short, help string
}

// rules are all rules; ids must not change.
var rules = []rule{
	{"unreadable-file", object.Error, "A file cannot be read.",
		"Nothing of the file is validated. Check its path and its permissions."},
	{"invalid-document", object.Error, "A document is no object.",
		"The text does not parse as YAML or JSON, or it has no apiVersion, kind or name. The control plane does not read it."},
	{"invalid-object", object.Error, "An object is rejected.",
		"A field has a value that the control plane rejects. The last good version of the object stays in force, if there is one; in a cluster the webhook refuses it."},
	{"policy-not-enforced", object.Error, "A security policy is rejected, and what it may have been meant to deny is denied.",
		"A policy with an error cannot be enforced as it is meant. Until it is mended, its last good version is in force; without one, proxies are not served, or requests that it may have been meant to deny are denied."},
	{"duplicate-object", object.Error, "Two documents are the same object.",
		"Two documents have the same kind, namespace and name. Only one can be in force: remove one of them."},
	{"unknown-kind", object.Warning, "An object is of a kind or version that does not exist.",
		"No program reads the object, so that it has no effect. Check kind and apiVersion."},
	{"unknown-field", object.Warning, "A field does not exist.",
		"A field that the kind does not have has no effect; most often it is misspelled."},
	{"no-effect", object.Warning, "A part of an object has no effect, or not the expected one.",
		"The object is in force, but a part of it is not applied, or does something else than its author may expect. Remove the part, or write it as the message says."},
	{"unknown-host", object.Warning, "A host belongs to no Service or ServiceEntry.",
		"Requests to a host that nothing has fail. Check the spelling and the namespace, or add the Service or ServiceEntry."},
	{"unknown-port", object.Warning, "A port is none of the service's.",
		"Requests to a port that the service does not have fail. Use one of its ports, or add the port to it."},
	{"unknown-subset", object.Warning, "A subset is in no DestinationRule.",
		"Requests to a subset that no DestinationRule of the host defines get status 503. Add the subset, or use one that exists."},
	{"unknown-gateway", object.Warning, "A Gateway does not exist.",
		"What is bound to a Gateway that does not exist is served nowhere. Check its name and namespace."},
	{"unknown-namespace", object.Warning, "A namespace has nothing in it.",
		"Nothing is in a namespace of this name. Most often it is misspelled."},
	{"unknown-account", object.Warning, "A service account is of no workload.",
		"A rule names a service account that no workload runs as, so that it never matches. Check its name and namespace."},
	{"unknown-secret", object.Warning, "A Secret does not exist.",
		"Without the Secret there is no certificate, and its hosts are not served with TLS. Add it in the namespace of the gateway."},
	{"unknown-provider", object.Warning, "A provider of the mesh configuration cannot be used.",
		"The mesh configuration has no such provider in extensionProviders, or one that does something else, or its service does not exist. Nothing is logged, counted or traced by it; a CUSTOM policy denies."},
	{"no-workload", object.Warning, "A selector or labels select nothing.",
		"No workload has the labels, so that the object, or the subset, has no effect. Check the labels of the Pods."},
}

// The ways in which validate finds something.
type foundBy int

const (
	byRead foundBy = iota
	byDocument
	byTwice
	byReference
)

// ruleOf is the id of the rule by which something was found.
func ruleOf(by foundBy, p object.Problem) string {
	field := p.Field[strings.LastIndexByte(p.Field, '.')+1:]
	field, _, _ = strings.Cut(field, "[")
	switch {
	case by == byRead:
		return "unreadable-file"
	case by == byTwice:
		return "duplicate-object"
	case by == byReference:
		return referenceRule(p, field)
	case p.Severity == object.Error && p.Policy.Broken:
		return "policy-not-enforced"
	case strings.HasPrefix(p.Text, "unknown field"):
		return "unknown-field"
	case p.Severity == object.Error && p.Key == (object.Key{}):
		return "invalid-document"
	case p.Severity == object.Error:
		return "invalid-object"
	case p.Field == "kind" || p.Field == "apiVersion":
		return "unknown-kind"
	}
	return "no-effect"
}

// referenceRule is the rule of what package analyze found, by the last name of the field's path.
func referenceRule(p object.Problem, field string) string {
	for _, text := range []string{"not applied", "not served", "not written"} {
		if strings.HasPrefix(p.Text, text) {
			return "no-effect"
		}
	}
	switch {
	case strings.HasPrefix(p.Text, "there is nothing in a namespace"):
		return "unknown-namespace"
	case strings.HasPrefix(p.Text, "no Service or ServiceEntry has the host") && !strings.Contains(p.Field, "roviders"):
		return "unknown-host"
	case strings.Contains(p.Field, "roviders") || strings.Contains(p.Field, ".provider."):
		return "unknown-provider"
	}
	switch field {
	case "number", "targetPort", "port":
		return "unknown-port"
	case "name":
		if strings.HasSuffix(p.Field, ".port.name") {
			return "unknown-port"
		}
	case "subset":
		return "unknown-subset"
	case "gateways", "targetRef", "targetRefs":
		return "unknown-gateway"
	case "serviceAccounts":
		return "unknown-account"
	case "principals":
		if strings.HasPrefix(p.Text, "no workload runs as") {
			return "unknown-account"
		}
	case "secretName":
		return "unknown-secret"
	case "selector", "matchLabels", "labels", "workloadSelector":
		return "no-workload"
	}
	return "no-effect"
}
