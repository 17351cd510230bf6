package config

import "fmt"

// extension reports an object that adds a filter to proxies, of which none gets any. What one in the phases AUTHN and AUTHZ forbids would be
// allowed, so that it is an error. [control-plane 1.11.5] [control-plane 1.11.6]
func (c *check) extension(phase fmt.Stringer) {
	if p := phase.String(); p == "AUTHN" || p == "AUTHZ" {
		c.fail("spec.phase", "not applied: objects of this kind are not supported; it is NOT enforced, and what it forbids is allowed; use an AuthorizationPolicy or a RequestAuthentication, or remove it")
		return
	}
	c.warn("", "not applied: objects of this kind are not supported; remove it, or use a supported kind")
}
