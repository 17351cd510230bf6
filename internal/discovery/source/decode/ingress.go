package decode

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/pilothouse/pilothouse/internal/object"
)

func ingressClass(c *networkingv1.IngressClass) *object.IngressClassSpec {
	out := &object.IngressClassSpec{Controller: c.Spec.Controller}
	if p := c.Spec.Parameters; p != nil {
		out.Parameters = p.Kind + " " + p.Name
	}
	return out
}

func ingress(i *networkingv1.Ingress) *object.IngressSpec {
	out := &object.IngressSpec{ClassName: text(i.Spec.IngressClassName)}
	if b := i.Spec.DefaultBackend; b != nil {
		one := ingressBackend(b)
		out.Default = &one
	}
	for _, r := range i.Spec.Rules {
		rule := object.IngressRule{Host: r.Host, NoHTTP: r.HTTP == nil}
		if r.HTTP != nil {
			for _, p := range r.HTTP.Paths {
				path := object.IngressPath{Path: p.Path, Backend: ingressBackend(&p.Backend)}
				if p.PathType != nil {
					path.Type = string(*p.PathType)
				}
				rule.Paths = append(rule.Paths, path)
			}
		}
		out.Rules = append(out.Rules, rule)
	}
	for _, t := range i.Spec.TLS {
		out.TLS = append(out.TLS, object.IngressTLS{Hosts: t.Hosts, Secret: t.SecretName})
	}
	return out
}

func ingressBackend(b *networkingv1.IngressBackend) (out object.IngressBackend) {
	if s := b.Service; s != nil {
		out.Service, out.Port, out.PortName = s.Name, port(s.Port.Number), s.Port.Name
	}
	if r := b.Resource; r != nil {
		out.Resource = resourceText(r)
	}
	return out
}

func resourceText(r *corev1.TypedLocalObjectReference) string { return r.Kind + " " + r.Name }
