package decode

import (
	"bytes"
	"regexp"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// policyKinds are the kinds of security policies, supported or not.
var policyKinds = func() (out []object.Kind) {
	for _, k := range meshKinds {
		if k.enforces {
			out = append(out, k.kind)
		}
	}
	return out
}()

// policyOf returns which policy a document is, the zero value if it is none. It is called before the
// document is validated.
func policyOf(t *yamltree.Tree) object.Policy {
	kind, version := t.Get("kind").Str(), t.Get("apiVersion").Str()
	if t.Kind != yamltree.Mapping || kind == "" || version == "" {
		return policyIn(t.JSON())
	}
	group, _, _ := strings.Cut(version, "/")
	if group != securityGroup {
		return object.Policy{}
	}
	p := object.Policy{Broken: true, Key: object.Key{Kind: object.Kind(kind)}}
	m := t.Get("metadata")
	switch ns := m.Get("namespace"); {
	case ns.IsNull() && (m.IsNull() || m.Kind == yamltree.Mapping):
		p.Key.Namespace = "default"
	case badName(ns.Str(), false) == "":
		p.Key.Namespace = ns.Str()
	}
	if name := m.Get("name").Str(); badName(name, true) == "" {
		p.Key.Name = name
	}
	spec := t.Get("spec")
	return object.BrokenPolicy(p.Key, !spec.Get("selector").IsNull(), selected(spec.Get("selector")), targets(spec))
}

// targets returns the targets of a policy. What cannot be parsed is a target of unknown kind.
func targets(spec *yamltree.Tree) (out []object.Target) {
	one := func(t *yamltree.Tree) {
		out = append(out, object.Target{Group: t.Get("group").Str(), Kind: t.Get("kind").Str(), Name: t.Get("name").Str(), Namespace: t.Get("namespace").Str()})
	}
	if t := spec.Get("targetRef"); !t.IsNull() {
		one(t)
	}
	switch t := spec.Get("targetRefs"); {
	case t.IsNull():
	case t.Kind != yamltree.Sequence:
		out = append(out, object.Target{})
	default:
		for _, item := range t.Items {
			one(item)
		}
	}
	return out
}

// selected returns a selector's labels, "" if a part of it cannot be parsed, so that the policy counts
// as one for the whole namespace.
func selected(t *yamltree.Tree) string {
	if t == nil || t.Kind != yamltree.Mapping {
		return ""
	}
	labels := map[string]string{}
	for _, e := range t.Entries {
		if e.Key != "matchLabels" || e.Value.Kind != yamltree.Mapping {
			return ""
		}
		for _, l := range e.Value.Entries {
			if l.Value.Kind != yamltree.String {
				return ""
			}
			labels[l.Key] = l.Value.Text
		}
	}
	return object.LabelText(labels)
}

// Fields of a text that cannot be parsed, in YAML's block and flow styles and in JSON.
var (
	kindField      = regexp.MustCompile(`(?m)(?:^|[\s{,"'-])(kind["']?[ \t]*:[ \t]*["']?([A-Za-z]+))`)
	versionField   = regexp.MustCompile(`(?m)(?:^|[\s{,"'-])apiVersion["']?[ \t]*:[ \t]*["']?` + regexp.QuoteMeta(securityGroup) + `\b`)
	namespaceField = regexp.MustCompile(`(?m)(?:^|[\s{,"'])namespace["']?[ \t]*:[ \t]*["']?([^\s"',{}]*)`)
	nameField      = regexp.MustCompile(`(?m)(?:^|[\s{,"'])name["']?[ \t]*:[ \t]*["']?([^\s"',{}]*)`)
)

// policyIn returns which policy a text that cannot be parsed may contain. A kind, namespace or name is
// unknown if it is not found, or if there are several different ones.
func policyIn(text []byte) object.Policy {
	kinds := topKinds(text)
	p := object.Policy{Broken: versionField.Match(text)}
	for _, k := range policyKinds {
		switch {
		case slices.Contains(kinds, k):
			p.Broken = true
			if p.Key.Kind = k; len(kinds) > 1 {
				p.Key.Kind = "" // there are several documents
			}
		case len(kinds) == 0 && bytes.Contains(text, []byte(k)):
			p.Broken = true
		}
	}
	if !p.Broken && (len(kinds) > 0 || !bytes.Contains(text, []byte(securityGroup+"/v"))) {
		return object.Policy{}
	}
	p.Broken = true
	p.Key.Namespace = only(namespaceField, text, false)
	if len(kinds) == 1 {
		if i := bytes.Index(text, []byte("metadata")); i >= 0 {
			if m := nameField.FindSubmatch(text[i:]); m != nil && badName(string(m[1]), true) == "" {
				p.Key.Name = string(m[1])
			}
		}
	}
	return p
}

// topKinds returns the kinds in a text with the least indentation: those of the documents, not those
// of fields in them. For a List it returns all kinds.
func topKinds(text []byte) []object.Kind {
	least := -1
	var out, all []object.Kind
	list := false
	for _, m := range kindField.FindAllSubmatchIndex(text, -1) {
		kind := object.Kind(text[m[4]:m[5]])
		if kind == "List" {
			list = true
			continue
		}
		all = append(all, kind)
		column := m[2] - (bytes.LastIndexByte(text[:m[2]], '\n') + 1)
		if least < 0 || column < least {
			least, out = column, nil
		}
		if column == least {
			out = append(out, kind)
		}
	}
	if list {
		return all
	}
	return out
}

// only returns the value of a field if it is the same valid name everywhere in the text, otherwise "".
func only(field *regexp.Regexp, text []byte, dots bool) string {
	value := ""
	for _, m := range field.FindAllSubmatch(text, -1) {
		v := string(m[1])
		if v == "" || badName(v, dots) != "" || value != "" && v != value {
			return ""
		}
		value = v
	}
	return value
}
