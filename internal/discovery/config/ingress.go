package config

import (
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/object"
)

// ingress checks what the API server does, so that files cannot have an Ingress that a cluster could not. Whether one is served depends on its class; package
// analyze reports what has no effect in those that are. [control-plane 1.11.11]
func (c *check) ingress(s *object.IngressSpec) {
	if s.Default == nil && len(s.Rules) == 0 {
		c.fail("spec", "want defaultBackend or rules")
	}
	if s.Default != nil {
		c.ingressBackend("spec.defaultBackend", *s.Default)
	}
	for i, t := range s.TLS {
		for j, h := range t.Hosts {
			c.hostname(item(item("spec.tls", i)+".hosts", j), h)
		}
	}
	for i, r := range s.Rules {
		at := item("spec.rules", i)
		if r.Host != "" {
			c.hostname(at+".host", r.Host)
		}
		if len(r.Paths) == 0 && !r.NoHTTP {
			c.fail(at+".http.paths", "is missing")
		}
		for j, p := range r.Paths {
			at := item(at+".http.paths", j)
			switch {
			case p.Type != "" && !slices.Contains([]string{"Exact", "Prefix", "ImplementationSpecific"}, p.Type):
				c.fail(at+".pathType", "invalid type %.100q: want Exact, Prefix or ImplementationSpecific", p.Type)
			case !strings.HasPrefix(p.Path, "/") && (p.Path != "" || p.Type == "Exact" || p.Type == "Prefix"):
				c.fail(at+".path", "invalid path %.100q: want one that begins with /", p.Path)
			}
			c.ingressBackend(at+".backend", p.Backend)
		}
	}
}

// ingressBackend checks that a backend is either a Service with a port or a resource.
func (c *check) ingressBackend(at string, b object.IngressBackend) {
	switch {
	case b.Resource != "":
		if b.Service != "" {
			c.fail(at, "has both a service and a resource; remove one of the two")
		}
	case b.Service == "":
		c.fail(at+".service.name", "is missing")
	case (b.Port != 0) == (b.PortName != ""):
		c.fail(at+".service.port", "want either number or name")
	case b.Port > 65535:
		c.fail(at+".service.port.number", "invalid port: want 1–65535")
	}
}
