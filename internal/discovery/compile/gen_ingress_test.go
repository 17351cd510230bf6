package compile_test

import "github.com/pilothouse/pilothouse/internal/object"

// ingress makes an Ingress of class istio, three times of four. Its Services and their ports may not exist.
func (d *dice) ingress() *object.IngressSpec {
	s := &object.IngressSpec{ClassName: pick(d, "istio", "istio", "istio", "")}
	if d.oneIn(3) {
		b := d.ingressBackend()
		s.Default = &b
	}
	if d.oneIn(2) {
		s.TLS = []object.IngressTLS{{Hosts: pick(d, nil, []string{"out.example.com"}, []string{"*.example.com", "a.example.com"}), Secret: pick(d, names...)}}
	}
	for range d.roll(3) {
		r := object.IngressRule{Host: pick(d, "", "out.example.com", "*.example.com", "a.example.com"), NoHTTP: d.oneIn(5)}
		for range d.roll(3) {
			if !r.NoHTTP {
				r.Paths = append(r.Paths, object.IngressPath{
					Path: pick(d, "/", "/a", "/a/", "/a/b", "/c.*", "/c/*", "/d?e"), Type: pick(d, "Prefix", "Exact", "ImplementationSpecific", ""), Backend: d.ingressBackend(),
				})
			}
		}
		s.Rules = append(s.Rules, r)
	}
	return s
}

func (d *dice) ingressBackend() object.IngressBackend {
	b := object.IngressBackend{Service: pick(d, names...)}
	switch {
	case d.oneIn(6):
		return object.IngressBackend{Resource: "Bucket a"}
	case d.oneIn(3):
		b.PortName = pick(d, "http", "none")
	default:
		b.Port = uint32(pick(d, 80, 90))
	}
	return b
}
