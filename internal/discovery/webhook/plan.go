package webhook

import (
	"bytes"
	"fmt"
	"net/url"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// FailurePolicy says what becomes of the failure policy of the webhooks that validate.
type FailurePolicy int

// The failure policies.
const (
	// Closed makes it Fail once such a webhook is known to work.
	Closed FailurePolicy = iota
	// Open makes it Ignore: objects are admitted unchecked while the control plane cannot be reached.
	Open
)

// Target says which webhook configurations are those of this control plane, and what they must contain.
type Target struct {
	// Names are those of configurations that are this control plane's own even without a label that names its
	// revision.
	Names []string
	// Revision is that of this control plane.
	Revision string
	// Namespace and Services are those of its Services; Hosts are its names and addresses in URLs.
	Namespace       string
	Services, Hosts []string
	// Bundle is the trusted roots in PEM; empty leaves caBundle as it is.
	Bundle []byte
	// Served reports whether a replica serves below a root, by its ID: it stays in the bundles that have it although Bundle
	// does not. Nil is none.
	Served func(id string) bool
	Policy FailurePolicy
}

// ConfigurationNames returns the names that a webhook configuration may have that a setting names: Istio's charts
// append the revision, the namespace, or both. [control-plane 1.2.31]
func ConfigurationNames(base, revision, namespace string) []string {
	names := []string{base, base + "-" + namespace, base + "-" + revision, base + "-" + revision + "-" + namespace}
	return slices.DeleteFunc(names, func(n string) bool { return strings.HasPrefix(n, "-") })
}

// configuration is a webhook configuration, of either kind.
type configuration struct {
	kind     string // validating or mutating
	name     string
	version  string // of the resource
	revision string // its label; empty without one
	hooks    []hook
}

type hook struct {
	name   string
	client admissionregistrationv1.WebhookClientConfig
	policy admissionregistrationv1.FailurePolicyType
}

// The kinds of configurations.
const (
	validating = "validating"
	mutating   = "mutating"
)

func validatingConfiguration(c *admissionregistrationv1.ValidatingWebhookConfiguration) configuration {
	out := header(validating, &c.ObjectMeta)
	for _, h := range c.Webhooks {
		out.hooks = append(out.hooks, newHook(h.Name, h.ClientConfig, h.FailurePolicy))
	}
	return out
}

func mutatingConfiguration(c *admissionregistrationv1.MutatingWebhookConfiguration) configuration {
	out := header(mutating, &c.ObjectMeta)
	for _, h := range c.Webhooks {
		out.hooks = append(out.hooks, newHook(h.Name, h.ClientConfig, h.FailurePolicy))
	}
	return out
}

func header(kind string, m *metav1.ObjectMeta) configuration {
	return configuration{kind: kind, name: m.Name, version: m.ResourceVersion, revision: m.Labels[mesh.RevisionLabel]}
}

func newHook(name string, c admissionregistrationv1.WebhookClientConfig, p *admissionregistrationv1.FailurePolicyType) hook {
	h := hook{name: name, client: c, policy: admissionregistrationv1.Fail}
	if p != nil {
		h.policy = *p
	}
	return h
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// plan is what to do about one configuration.
type plan struct {
	// patch makes it true; nil if it is.
	patch []operation
	// what are the changes, for the log.
	what []string
	// unproven is set if a webhook in it validates and fails open only because it is not known to work.
	unproven bool
	// keeps is set if a bundle in it has a root only because a replica serves below that.
	keeps bool
}

// owns reports whether a configuration is this control plane's own. One that names another revision is not,
// whatever its name.
func (t Target) owns(c configuration) bool {
	if c.revision != "" {
		return c.revision == t.Revision
	}
	return slices.Contains(t.Names, c.name)
}

// serves reports whether the requests of a webhook arrive at this control plane.
func (t Target) serves(c admissionregistrationv1.WebhookClientConfig) bool {
	if s := c.Service; s != nil {
		return s.Namespace == t.Namespace && slices.Contains(t.Services, s.Name) && s.Path != nil && isPath(*s.Path)
	}
	if c.URL == nil {
		return false
	}
	u, err := url.Parse(*c.URL)
	return err == nil && slices.Contains(t.Hosts, u.Hostname()) && isPath(u.Path)
}

// isPath reports whether a path is one of the webhooks'.
func isPath(p string) bool {
	return p == "/validate" || p == "/inject" || strings.HasPrefix(p, "/inject/")
}

// plan returns what to do about a configuration. works says whether the control plane has answered a request that
// came by a client configuration.
func (t Target) plan(c configuration, works func(admissionregistrationv1.WebhookClientConfig) bool) plan {
	var out plan
	if !t.owns(c) {
		return out
	}
	for i, h := range c.hooks {
		if !t.serves(h.client) {
			continue
		}
		at := fmt.Sprintf("/webhooks/%d", i)
		bundle := t.bundle(h.client)
		out.keeps = out.keeps || !bytes.Equal(bundle, t.Bundle)
		current := len(bundle) == 0 || bytes.Equal(h.client.CABundle, bundle)
		if !current {
			out.set(at+"/clientConfig/caBundle", bundle, h.name+": caBundle")
		}
		switch {
		case c.kind != validating:
		case t.Policy == Open && h.policy == admissionregistrationv1.Fail:
			out.set(at+"/failurePolicy", admissionregistrationv1.Ignore, h.name+": failurePolicy Ignore")
		case t.Policy == Open || h.policy == admissionregistrationv1.Fail:
		case current && works(h.client):
			out.set(at+"/failurePolicy", admissionregistrationv1.Fail, h.name+": failurePolicy Fail")
		default:
			out.unproven = true
		}
	}
	if out.patch != nil {
		// The places in the list are those of this version.
		out.patch = append([]operation{{"test", "/metadata/resourceVersion", c.version}}, out.patch...)
	}
	return out
}

func (p *plan) set(path string, value any, what string) {
	p.patch = append(p.patch, operation{"add", path, value})
	p.what = append(p.what, what)
}

// clientKey identifies where the requests of a client configuration go, and how they are verified.
func clientKey(c admissionregistrationv1.WebhookClientConfig) string {
	where := ""
	if s := c.Service; s != nil {
		where = s.Namespace + "/" + s.Name
		if s.Port != nil {
			where += fmt.Sprintf(":%d", *s.Port)
		}
		if s.Path != nil {
			where += *s.Path
		}
	} else if c.URL != nil {
		where = *c.URL
	}
	return where + " " + string(c.CABundle)
}

// refuser returns the name of the webhook that has refused the probe, given the API server's error. ok is false
// if the probe was not refused by this program.
func refuser(message string) (webhook string, ok bool) {
	_, rest, ok := strings.Cut(message, `admission webhook "`)
	if !ok {
		return "", false
	}
	webhook, text, ok := strings.Cut(rest, `" denied the request: `)
	return webhook, ok && strings.Contains(text, admit.Rejected)
}
