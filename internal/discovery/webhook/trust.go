package webhook

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// Trusts reports whether the API server has a root in the bundles of all webhooks that send requests to this control
// plane, so that it accepts a certificate below it. It is true if there are no such webhooks. It may be called by every
// replica, and needs list of both kinds of configurations.
func (p *Patcher) Trusts(ctx context.Context, root *x509.Certificate) (bool, error) {
	v, err := p.client.ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("read the webhook configurations: %w", err)
	}
	m, err := p.client.MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("read the webhook configurations: %w", err)
	}
	var all []configuration
	for i := range v.Items {
		all = append(all, validatingConfiguration(&v.Items[i]))
	}
	for i := range m.Items {
		all = append(all, mutatingConfiguration(&m.Items[i]))
	}
	return p.opts.Target.trusts(all, root), nil
}

// trusts reports whether the bundles of all webhooks whose requests arrive at this control plane have a root.
func (t Target) trusts(all []configuration, root *x509.Certificate) bool {
	for _, c := range all {
		if !t.owns(c) {
			continue
		}
		for _, h := range c.hooks {
			if t.serves(h.client) && !slices.ContainsFunc(certificates(h.client), root.Equal) {
				return false
			}
		}
	}
	return true
}

// certificates are those in the bundle of a client configuration; none if it cannot be read.
func certificates(c admissionregistrationv1.WebhookClientConfig) []*x509.Certificate {
	list, err := pki.ParseBundle(c.CABundle)
	if err != nil {
		return nil
	}
	return list
}

// bundle returns what the bundle of a client configuration must be: the trusted roots, and those of its own below which a
// replica still serves although the mesh does not trust them any more.
func (t Target) bundle(c admissionregistrationv1.WebhookClientConfig) []byte {
	if len(t.Bundle) == 0 || t.Served == nil {
		return t.Bundle
	}
	trusted, err := pki.ParseBundle(t.Bundle)
	if err != nil {
		return t.Bundle
	}
	all := slices.Clone(trusted)
	for _, old := range certificates(c) {
		if !slices.ContainsFunc(trusted, old.Equal) && t.Served(pki.Fingerprint(old)) {
			all = append(all, old)
		}
	}
	if len(all) == len(trusted) {
		return t.Bundle
	}
	return pki.EncodeCerts(pki.Normalize(all)...)
}
