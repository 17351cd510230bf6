package inject

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"
)

//go:embed templates
var templateFiles embed.FS

// sidecarTemplate is the template of Pods that name none.
const sidecarTemplate = "sidecar"

// builtin are the built-in templates. A defect in them is found by every test.
var builtin = func() map[string]*template.Template {
	common := readTemplate("common")
	all := map[string]*template.Template{}
	for _, name := range []string{sidecarTemplate, "gateway", "grpc-agent", "grpc-simple"} {
		t, err := parseTemplate(name, readTemplate(name), common)
		if err != nil {
			panic(err)
		}
		all[name] = t
	}
	return all
}()

func readTemplate(name string) string {
	text, err := templateFiles.ReadFile("templates/" + name + ".yaml")
	if err != nil {
		panic(err)
	}
	return string(text)
}

// The limits of one template and of its execution.
const (
	maxTemplateBytes = 1 << 20
	maxOutputBytes   = 1 << 20
	// maxSteps bounds how often the bodies of loops and the templates within one are executed.
	maxSteps = 100_000
)

var (
	errOutput = fmt.Errorf("the output has more than %d bytes", maxOutputBytes)
	errSteps  = fmt.Errorf("more than %d executions of loops and of templates within it", maxSteps)
)

// maxDepth bounds templates within templates.
const maxDepth = 100

// stepName is the function that counts. Templates cannot name it, since they would not be parsed then.
const stepName = "__step"

// includeName is the function that executes a template that is defined in the same text, so that its output can
// be indented.
const includeName = "include"

// stepNode is the action that counts one step.
var stepNode = template.Must(template.New("step").Funcs(template.FuncMap{stepName: func() string { return "" }}).Parse("{{" + stepName + "}}")).Root.Nodes[0]

// parseTemplate parses a template and the definitions that it may use. The error names the line.
func parseTemplate(name, text string, definitions ...string) (*template.Template, error) {
	if len(text) > maxTemplateBytes {
		return nil, fmt.Errorf("template %q: %d bytes: want at most %d", name, len(text), maxTemplateBytes)
	}
	// The functions of an execution replace these.
	none := template.FuncMap{
		stepName:    func() (string, error) { return "", nil },
		includeName: func(string, any) (string, error) { return "", nil },
	}
	t := template.New(name).Funcs(functions).Funcs(template.FuncMap{includeName: none[includeName]})
	for _, d := range definitions {
		if _, err := t.Parse(d); err != nil {
			return nil, templateError(name, err)
		}
	}
	if _, err := t.Parse(text); err != nil {
		return nil, templateError(name, err)
	}
	for _, part := range t.Templates() {
		if part.Tree != nil && part.Tree.Root != nil {
			countSteps(part.Tree.Root)
			part.Tree.Root.Nodes = append([]parse.Node{stepNode.Copy()}, part.Tree.Root.Nodes...)
		}
	}
	return t.Funcs(none), nil
}

// templateError is an error of text/template, which names the template and the line.
func templateError(name string, err error) error {
	text := strings.TrimPrefix(err.Error(), "template: ")
	if at, rest, ok := strings.Cut(text, ":"); ok && at == name {
		return fmt.Errorf("template %q: line %s", name, rest)
	}
	return fmt.Errorf("template %q: %s", name, text)
}

// countSteps lets the body of each loop count.
func countSteps(n parse.Node) {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		for _, child := range n.Nodes {
			countSteps(child)
		}
	case *parse.RangeNode:
		countSteps(n.List)
		countSteps(n.ElseList)
		n.List.Nodes = append([]parse.Node{stepNode.Copy()}, n.List.Nodes...)
	case *parse.IfNode:
		countSteps(n.List)
		countSteps(n.ElseList)
	case *parse.WithNode:
		countSteps(n.List)
		countSteps(n.ElseList)
	}
}

// execute executes a template, and returns its output. The error names the template and the line.
func (c *Config) execute(name string, data *Data) ([]byte, error) {
	own := c.templates[name] != builtin[name]
	t, err := c.templates[name].Clone()
	if err != nil {
		return nil, templateError(name, err)
	}
	steps := 0
	depth := 0
	t.Funcs(template.FuncMap{
		stepName: func() (string, error) {
			if steps++; steps > maxSteps {
				return "", errSteps
			}
			return "", nil
		},
		includeName: func(part string, data any) (string, error) {
			if depth++; depth > maxDepth {
				return "", fmt.Errorf("more than %d templates within each other", maxDepth)
			}
			defer func() { depth-- }()
			out := &boundedBuffer{}
			err := t.ExecuteTemplate(out, part, data)
			return out.b.String(), err
		},
		// Older templates of Istio decide about native sidecars by this variable.
		"env": func(variable, otherwise string) string {
			if variable == "ENABLE_NATIVE_SIDECARS" {
				return strconv.FormatBool(data.NativeSidecars)
			}
			return otherwise
		},
	})
	out := &boundedBuffer{}
	d := *data
	if own { // the built-in ones change nothing
		d.Values, d.ObjectMeta, d.Spec = cloneMap(data.Values), *data.ObjectMeta.DeepCopy(), *data.Spec.DeepCopy()
	}
	if err := t.Execute(out, &d); err != nil {
		for _, limit := range []error{errSteps, errOutput} {
			if errors.Is(err, limit) {
				return nil, fmt.Errorf("template %q: %w", name, limit)
			}
		}
		return nil, templateError(name, err)
	}
	return out.b.Bytes(), nil
}

// cloneMap copies a mapping and the mappings in it, so that functions that change one change a copy.
func cloneMap(m map[string]any) map[string]any {
	out := maps.Clone(m)
	for k, v := range out {
		if inner, ok := v.(map[string]any); ok {
			out[k] = cloneMap(inner)
		}
	}
	return out
}

// boundedBuffer takes at most maxOutputBytes.
type boundedBuffer struct{ b bytes.Buffer }

func (o *boundedBuffer) Write(p []byte) (int, error) {
	if o.b.Len()+len(p) > maxOutputBytes {
		return 0, errOutput
	}
	return o.b.Write(p)
}
