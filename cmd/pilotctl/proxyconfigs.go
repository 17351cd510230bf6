package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// proxyConfigKind is the kind in an API server's objects.
const proxyConfigKind, proxyConfigVersion = "ProxyConfig", "networking.istio.io/v1beta1"

// proxyConfigs returns the ProxyConfig objects that are to apply: those of a text over those of a cluster. A mistake in
// one of the text is an error. The control plane would reject one of the cluster that is invalid, so that it is
func (o injectOptions) proxyConfigs(text []byte, ofCluster []object.Object, revision string) (*inject.ProxyConfigs, error) {
	ofText, err := o.proxyConfigsIn(text)
	if err != nil {
		return nil, err
	}
	used := func(all []object.Object) (out []inject.ProxyConfig) {
		for i := range all {
			if rev, labelled := all[i].Meta.Labels[mesh.RevisionLabel]; !labelled || rev == revision {
				out = append(out, inject.ProxyConfigOf(&all[i]))
			}
		}
		return out
	}
	return inject.NewProxyConfigs(used(ofCluster)).With(used(ofText)), nil
}

// proxyConfigsIn returns the objects of a text; those without a namespace are in that of the options.
func (o injectOptions) proxyConfigsIn(text []byte) ([]object.Object, error) {
	if !bytes.Contains(text, []byte(proxyConfigKind)) {
		return nil, nil
	}
	name, isJSON := "input.yaml", false
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' {
		var first json.RawMessage
		if isJSON = json.NewDecoder(bytes.NewReader(trimmed)).Decode(&first) == nil; isJSON {
			name = "input.json"
		}
	}
	found := admit.Documents(name, text)
	var bad []error
	for _, p := range found.Problems {
		if p.Key.Kind == object.ProxyConfig && p.Severity == object.Error {
			bad = append(bad, fmt.Errorf("%s: line %d: %s: %s: %s", o.name(), p.Origin.Line, p.Key, p.Field, p.Text))
		}
	}
	if len(bad) > 0 {
		return nil, errors.Join(bad...)
	}
	var nowhere map[int]bool // the lines of objects without a namespace
	var out []object.Object
	for _, p := range found.Objects {
		if p.Kind != object.ProxyConfig {
			continue
		}
		if nowhere == nil {
			nowhere = map[int]bool{}
			for _, d := range yamltree.Parse(text, isJSON) {
				withoutNamespace(d.Root, nowhere)
			}
		}
		if nowhere[p.Origin.Line] {
			p.Namespace = o.namespace
		}
		out = append(out, p)
	}
	return out, nil
}

// withoutNamespace adds the lines of the objects of a document that name no namespace.
func withoutNamespace(t *yamltree.Tree, lines map[int]bool) {
	if t == nil {
		return
	}
	if items := t.Get("items"); items != nil && t.Get("kind").Str() == "List" {
		for _, i := range items.Items {
			withoutNamespace(i, lines)
		}
		return
	}
	lines[t.Line] = t.Get("metadata").Get("namespace").Str() == ""
}

// clusterProxyConfigs reads the ProxyConfig objects of a cluster. It has none if it does not know the kind. The control
// plane would reject one that is invalid, so that it is left out, with a line on stderr.
func clusterProxyConfigs(ctx context.Context, client *kube.Reader, stderr io.Writer) ([]object.Object, error) {
	var list struct {
		Items []map[string]json.RawMessage `json:"items"`
	}
	err := client.Get(ctx, &list, "apis", "networking.istio.io", "v1beta1", "proxyconfigs")
	if errors.Is(err, kube.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []object.Object
	for _, item := range list.Items {
		item["apiVersion"], item["kind"] = json.RawMessage(`"`+proxyConfigVersion+`"`), json.RawMessage(`"`+proxyConfigKind+`"`)
		text, err := json.Marshal(item)
		if err != nil {
			return nil, fmt.Errorf("read ProxyConfig objects: %w", err)
		}
		o, problems := decode.Served(object.ProxyConfig, text)
		if len(problems) == 0 { // else only the key may be used
			problems = slices.DeleteFunc(config.Validate(o), func(v config.Verdict) bool { return v.Severity != object.Error })
		}
		if len(problems) > 0 {
			fmt.Fprintf(stderr, "%s: not used: %s\n", o.Key, printable.Escape(problems[0].Field+": "+problems[0].Text))
			continue
		}
		out = append(out, o)
	}
	return out, nil
}
