package inject

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// Names of the ConfigMap that configures injection. Of a revision, the name ends in "-" and the revision.
const (
	// ConfigMapName is the name of the ConfigMap of the default revision.
	ConfigMapName = "istio-sidecar-injector"
	// ConfigKey is the key of the templates and the policy.
	ConfigKey = "config"
	// ValuesKey is the key of the values that templates see.
	ValuesKey = "values"
)

// defaultRevision is what objects name the revision without a name.
const defaultRevision = "default"

// maxTemplates bounds the templates and aliases of one configuration.
const maxTemplates = 100

// Native says when the proxy is a native sidecar: an init container that is restarted and runs until the
// Pod's containers have ended.
type Native string

// The settings of ENABLE_NATIVE_SIDECARS.
const (
	// NativeAuto makes it one if all kubelets that may run the Pod have Kubernetes 1.33 or later.
	NativeAuto Native = "auto"
	// NativeOn makes it one.
	NativeOn Native = "true"
	// NativeOff makes it an ordinary container.
	NativeOff Native = "false"
)

// Options are what a Config is made from.
type Options struct {
	// Config and Values are the keys of the ConfigMap. Both may be empty: the built-in templates and
	// values apply. Those of the ConfigMap are added to them, and replace those of the same name.
	Config, Values string
	// MoreValues are over Values.
	MoreValues string
	// Mesh is the mesh configuration; nil is the default. It is copied.
	Mesh *meshv1.MeshConfig
	// Revision is that of this control plane; empty takes that of Values, else "default".
	Revision string
	// Tags are other names by which namespaces and Pods choose this revision.
	Tags []string
	// Native is NativeAuto if empty. The annotation sidecar.istio.io/nativeSidecar has priority.
	Native Native
	// Memo remembers what outputs of templates mean; nil for none. Results are the same with and without it.
	Memo Memo
}

// Memo remembers values by their keys. It may forget any of them at any time, should bound the bytes of the keys, and is
// safe for concurrent use.
type Memo interface {
	// Get returns the value that was put with a key; nil if there is none any more.
	Get(key string) any
	// Put remembers a value, which does not change.
	Put(key string, value any)
}

// Config is what decides about injection. It does not change, and is safe for concurrent use.
type Config struct {
	raw       map[string]any // values as templates see them
	values    *values
	mesh      *meshv1.MeshConfig
	revision  string
	revisions []string // its name, and its tags
	native    Native
	templates map[string]*template.Template
	texts     map[string]string // of templates that are not built in
	aliases   map[string][]string
	// defaults are the templates of Pods that name none.
	defaults            []string
	enabled             bool
	always, never       []labels.Selector
	injectedAnnotations map[string]string
	memo                Memo // nil for none
}

// file is the ConfigMap's key "config".
type file struct {
	Policy              string                 `json:"policy"`
	DefaultTemplates    []string               `json:"defaultTemplates"`
	Template            string                 `json:"template"`
	Templates           map[string]string      `json:"templates"`
	Aliases             map[string][]string    `json:"aliases"`
	AlwaysInject        []metav1.LabelSelector `json:"alwaysInjectSelector"`
	NeverInject         []metav1.LabelSelector `json:"neverInjectSelector"`
	InjectedAnnotations map[string]string      `json:"injectedAnnotations"`
}

var fileKeys = []string{"policy", "defaultTemplates", "template", "templates", "aliases", "alwaysInjectSelector", "neverInjectSelector", "injectedAnnotations"}

// New makes a Config. The error names the key of the ConfigMap, and the line and field in it.
func New(o Options) (*Config, error) {
	c := &Config{native: o.Native, memo: o.Memo, mesh: mesh.DefaultMeshConfig()}
	if o.Mesh != nil {
		c.mesh = proto.CloneOf(o.Mesh)
	}
	if c.mesh.DefaultConfig == nil {
		c.mesh.DefaultConfig = mesh.DefaultProxyConfig()
	}
	switch c.native {
	case "":
		c.native = NativeAuto
	case NativeAuto, NativeOn, NativeOff:
	default:
		return nil, fmt.Errorf("invalid setting of native sidecars %q: want auto, true or false", c.native)
	}
	var err error
	if c.raw, c.values, err = parseValues(o.Values, o.MoreValues); err != nil {
		return nil, fmt.Errorf("injection configuration: key %q: %w", ValuesKey, err)
	}
	c.revision = firstNonEmpty(o.Revision, c.values.Revision, defaultRevision)
	c.revisions = append([]string{c.revision}, o.Tags...)
	if err := c.readFile(o.Config); err != nil {
		return nil, fmt.Errorf("injection configuration: key %q: %w", ConfigKey, err)
	}
	return c, nil
}

// Revision returns the revision of the configuration.
func (c *Config) Revision() string { return c.revision }

// Templates returns the names that the annotation inject.istio.io/templates may have, sorted.
func (c *Config) Templates() []string {
	names := slices.Collect(maps.Keys(c.templates))
	for a := range c.aliases {
		if c.templates[a] == nil {
			names = append(names, a)
		}
	}
	slices.Sort(names)
	return names
}

// TemplateTexts returns the texts of all templates, by name.
func (c *Config) TemplateTexts() map[string]string {
	out := make(map[string]string, len(c.templates))
	for name := range c.templates {
		if own, ok := c.texts[name]; ok {
			out[name] = own
		} else {
			out[name] = readTemplate(name)
		}
	}
	return out
}

func (c *Config) readFile(text string) error {
	f := file{Policy: firstNonEmpty(c.values.Global.Proxy.AutoInject, "enabled")}
	tree, err := parseMapping("config", text)
	if err != nil {
		return err
	}
	if tree != nil {
		for _, e := range tree.Entries {
			if !slices.Contains(fileKeys, e.Key) {
				return fmt.Errorf("line %d: unknown field %q: want one of %s", e.Line, e.Key, strings.Join(fileKeys, ", "))
			}
		}
		if fault := yamltree.Into(tree, "", &f); fault != nil {
			return fault
		}
	}
	switch f.Policy {
	case "enabled", "disabled":
		c.enabled = f.Policy == "enabled"
	default:
		return fmt.Errorf("policy: invalid policy %q: want enabled or disabled", f.Policy)
	}
	if c.always, err = selectors("alwaysInjectSelector", f.AlwaysInject); err != nil {
		return err
	}
	if c.never, err = selectors("neverInjectSelector", f.NeverInject); err != nil {
		return err
	}
	c.injectedAnnotations, c.aliases = f.InjectedAnnotations, f.Aliases
	if err := c.readTemplates(f); err != nil {
		return err
	}
	c.defaults = f.DefaultTemplates
	if len(c.defaults) == 0 {
		c.defaults = c.values.Webhook.DefaultTemplates
	}
	if len(c.defaults) == 0 {
		c.defaults = []string{sidecarTemplate}
	}
	_, err = c.resolve(c.defaults)
	if err != nil {
		return fmt.Errorf("defaultTemplates: %w", err)
	}
	return nil
}

// readTemplates parses the built-in templates, and those of the file and of the values over them.
func (c *Config) readTemplates(f file) error {
	if n := len(f.Templates) + len(f.Aliases) + len(c.values.Webhook.Templates); n > maxTemplates {
		return fmt.Errorf("%d templates and aliases: want at most %d", n, maxTemplates)
	}
	texts := map[string]string{}
	if f.Template != "" {
		texts[sidecarTemplate] = f.Template
	}
	maps.Copy(texts, c.values.Webhook.Templates)
	maps.Copy(texts, f.Templates)
	c.templates, c.texts = maps.Clone(builtin), texts
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		t, err := parseTemplate(name, texts[name])
		if err != nil {
			return err
		}
		c.templates[name] = t
	}
	for _, alias := range slices.Sorted(maps.Keys(f.Aliases)) {
		for _, name := range f.Aliases[alias] {
			if c.templates[name] == nil {
				return fmt.Errorf("aliases: %s: template %q not found; have %s", alias, name, strings.Join(c.Templates(), ", "))
			}
		}
	}
	return nil
}

// output returns what the output of a template means. Pods of one workload have the same output.
func (c *Config) output(written []byte) (*output, error) {
	if c.memo == nil {
		return parseOutput(written)
	}
	key := string(written)
	if known, ok := c.memo.Get(key).(*output); ok {
		return known, nil
	}
	o, err := parseOutput(written)
	if err == nil {
		c.memo.Put(key, o)
	}
	return o, err
}

func selectors(field string, list []metav1.LabelSelector) ([]labels.Selector, error) {
	var out []labels.Selector
	for i := range list {
		s, err := metav1.LabelSelectorAsSelector(&list[i])
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", field, i, err)
		}
		if !s.Empty() { // an empty selector is most likely a mistake, and would match every Pod
			out = append(out, s)
		}
	}
	return out, nil
}

// selectTemplates returns the names of the templates for a Pod, in the order in which they are merged.
func (c *Config) selectTemplates(annotations map[string]string) ([]string, error) {
	text, ok := annotations[annotationTemplates]
	if !ok {
		return c.resolve(c.defaults)
	}
	names := mesh.List(text)
	if len(names) > maxTemplates {
		return nil, fmt.Errorf("annotation %s: %d templates: want at most %d", annotationTemplates, len(names), maxTemplates)
	}
	return c.resolve(names)
}

// resolve replaces aliases by the templates that they stand for.
func (c *Config) resolve(names []string) ([]string, error) {
	var out []string
	for _, name := range names {
		if list, ok := c.aliases[name]; ok {
			out = append(out, list...)
			continue
		}
		if c.templates[name] == nil {
			return nil, fmt.Errorf("requested template %q not found; have %s", name, strings.Join(c.Templates(), ", "))
		}
		out = append(out, name)
	}
	return out, nil
}

func firstNonEmpty(list ...string) string {
	for _, s := range list {
		if s != "" {
			return s
		}
	}
	return ""
}
