package config

import (
	"cmp"
	"fmt"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// trust is the trust domain that is in force: the name of every identity and of the root,
// which cannot change while they are in use.
type trust struct {
	domain string // empty while nothing is fixed
	option bool   // it was given as an option, and mesh configuration may leave it out
}

// TrustDomain is the one trust domain of a mesh: the option's (TRUST_DOMAIN), empty where
// it is not set, or that of the mesh configuration that counts among the objects, or the
// default. It fails where both are given and differ, and where there is mesh configuration
// of which it cannot be told what it gives. Objects that are not good are read for it, too.
func TrustDomain(option string, objects []object.Object) (string, error) {
	if option != "" && !isDomain(option) {
		return "", fmt.Errorf("TRUST_DOMAIN %q: want a DNS name such as cluster.local", option)
	}
	s := NewStore()
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
		if !given.told && option == "" || v.Field == "trustDomain" {
			return "", fmt.Errorf("%s: the trust domain cannot be told from the mesh configuration: %s; repair it or set TRUST_DOMAIN", place(first), v.Text)
		}
	}
	if option != "" && given.name != "" && option != given.name {
		return "", fmt.Errorf("TRUST_DOMAIN is %q and trustDomain in the mesh configuration of %s is %q: a mesh has one trust domain; give it in one place, or the same in both",
			option, place(first), given.name)
	}
	return cmp.Or(option, given.name, mesh.DefaultTrustDomain), nil
}

// place is an object and where it is written.
func place(o *object.Object) string {
	if at := o.Origin.String(); at != "" {
		return at
	}
	return o.Key.String()
}

// FixTrustDomain says which trust domain is in force from now on, and whether an option
// gives it. Mesh configuration that gives another is refused, and its last good value
// stays as a whole; MeshConfig always says this one.
func (s *Store) FixTrustDomain(domain string, option bool) {
	s.trust = trust{domain, option}
	s.moved = true
}

// check compares what mesh configuration gives with what is in force.
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
		c.fail(field, "%q is not the trust domain in force, %q, which identities and the root have; restart pilot-discovery to change it%s",
			given.name, t.domain, map[bool]string{true: ", with TRUST_DOMAIN changed or not set"}[t.option])
	case given.told && before != nil && !t.option:
		if _, had, _ := meshConfig(meshText(before)); had.name != "" {
			c.warn(field, "is no longer given; %q stays in force until pilot-discovery restarts, and %q applies then", t.domain, mesh.DefaultTrustDomain)
		}
	}
	return c.out
}
