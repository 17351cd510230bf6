package config

import (
	"cmp"
	"fmt"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// trust is the trust domain in force. All identities and the root have its name, so it does not
// change while the control plane runs.
type trust struct {
	domain string // empty until FixTrustDomain is called
	option bool   // it is set as an option, and mesh configuration may leave it out
}

// TrustDomain returns the trust domain of a mesh: option (TRUST_DOMAIN, "" if it is not set), or that
// of the mesh configuration in objects that a control plane uses, whose ConfigMap has the key own, or the default.
// It returns an error if both are set and differ, and if the mesh configuration cannot be parsed and there
// is no option. Objects do not have to be valid.
func TrustDomain(option string, own object.Key, objects []object.Object) (string, error) {
	if option != "" && !isDomain(option) {
		return "", fmt.Errorf("invalid TRUST_DOMAIN %q: want a DNS name such as cluster.local", option)
	}
	s := NewStore()
	s.SetMeshConfig(own)
	for _, o := range objects {
		s.good[o.Key] = &o
	}
	first := s.firstMesh()
	if first == nil {
		return cmp.Or(option, mesh.DefaultTrustDomain), nil
	}
	_, given, verdicts := meshConfig(meshText(first))
	for _, v := range verdicts {
		if v.Severity != object.Error {
			continue
		}
		if !given.known && option == "" || v.Field == "trustDomain" {
			return "", fmt.Errorf("%s: read the trust domain from the mesh configuration: %s; fix it or set TRUST_DOMAIN", location(first), v.Text)
		}
	}
	if option != "" && given.name != "" && option != given.name {
		return "", fmt.Errorf("TRUST_DOMAIN is %q and trustDomain in the mesh configuration of %s is %q: a mesh has one trust domain; set it in one of the two, or the same in both",
			option, location(first), given.name)
	}
	return cmp.Or(option, given.name, mesh.DefaultTrustDomain), nil
}

// MeshOf returns the mesh configuration in objects that a control plane uses, whose ConfigMap has the key own, or the default.
// It returns the default, too, if that cannot be used.
func MeshOf(own object.Key, objects []object.Object) *meshv1.MeshConfig {
	s := NewStore()
	s.SetMeshConfig(own)
	for _, o := range objects {
		s.good[o.Key] = &o
	}
	if first := s.firstMesh(); first != nil {
		if m, _ := MeshConfig(meshText(first)); m != nil {
			return m
		}
	}
	return mesh.DefaultMeshConfig()
}

// location returns the file and line of an object, or its key if they are unknown.
func location(o *object.Object) string {
	if at := o.Origin.String(); at != "" {
		return at
	}
	return o.Key.String()
}

// FixTrustDomain sets the trust domain in force; option is whether it is set as an option. Mesh
// configuration with another trust domain is then rejected as a whole, and MeshConfig always returns
// this one.
func (s *Store) FixTrustDomain(domain string, option bool) {
	s.trust = trust{domain, option}
	s.meshChanged = true
}

// check compares the trust domain in mesh configuration with the one in force.
func (t trust) check(before, o *object.Object) []Verdict {
	text := meshText(o)
	if t.domain == "" || text == "" {
		return nil
	}
	c := &check{key: o.Key, origin: o.Origin}
	field := "data." + MeshKey + ".trustDomain"
	_, given, _ := meshConfig(text)
	switch {
	case given.name == t.domain:
	case given.name != "":
		c.fail(field, "%q differs from the trust domain in force, %q, which is part of all identities and of the root; restart pilot-discovery to change it%s",
			given.name, t.domain, map[bool]string{true: ", with TRUST_DOMAIN changed or not set"}[t.option])
	case given.known && before != nil && !t.option:
		if _, had, _ := meshConfig(meshText(before)); had.name != "" {
			c.warn(field, "is no longer set; %q stays in force until pilot-discovery restarts, then it is %q", t.domain, mesh.DefaultTrustDomain)
		}
	}
	return c.out
}
