// Package store has the Secrets that gateways may have, and decides who gets them.
//
// A caller whose identity is verified gets a Secret of its own namespace, if it may read Secrets there where there are such permissions.
// By the names of the Gateway API it gets the Secrets that Gateways in its namespace name and may use, of other namespaces, too, under the same
// condition: whoever may not read the Secrets of its own namespace is no gateway.
// A [Store] may be used by several goroutines; none of its methods blocks.
package store

import (
	"maps"
	"sync"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
)

// Access decides which callers may read the Secrets of their namespaces, and reads these. Its methods do not block.
type Access interface {
	// Want says that a caller wants Secrets of its namespace, and of those that Gateways there refer to, until release is called.
	Want(who credentials.Caller) (release func())
	// May returns credentials.Found if the caller may have Secrets of its namespace and those of a namespace have been read, and
	// otherwise why not.
	May(who credentials.Caller, namespace string) (credentials.State, string)
	// Read reports whether the Secrets of a namespace have been read, so that one that is not stored does not exist.
	Read(namespace string) bool
	// Refer has the namespaces that the Gateways of each namespace refer to.
	Refer(all map[string]map[string]bool)
}

// Store has the credentials. Create one with New.
type Store struct {
	access  Access // nil if all callers may read the Secrets of their namespaces, which are put without being wanted
	mu      sync.Mutex
	all     map[string]map[string]*credentials.Credential // by namespace and name
	faults  map[string]map[string]string                  // why a Secret is not used, by namespace and name
	refs    map[credentials.Reference]bool
	changed chan struct{} // closed at the next change
}

// New returns an empty Store.
func New() *Store {
	return &Store{all: map[string]map[string]*credentials.Credential{}, faults: map[string]map[string]string{}, changed: make(chan struct{})}
}

// Restrict has access decide who may have which Secrets. Call it before the Store is used.
func (s *Store) Restrict(access Access) { s.access = access }

// Put stores a Secret, which replaces that of its name. A nil c removes it.
func (s *Store) Put(namespace, name string, c *credentials.Credential) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.faults[namespace], name)
	have := s.all[namespace][name]
	if have == nil && c == nil || have != nil && c != nil && have.Version == c.Version {
		return
	}
	if c == nil {
		delete(s.all[namespace], name)
	} else {
		if s.all[namespace] == nil {
			s.all[namespace] = map[string]*credentials.Credential{}
		}
		s.all[namespace][name] = c
	}
	s.notify()
}

// Reject notes why the Secret of a name, which replaces the stored one, is not used. The stored one stays; it returns whether there is one.
func (s *Store) Reject(namespace, name, why string) (kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults[namespace] == nil {
		s.faults[namespace] = map[string]string{}
	}
	s.faults[namespace][name] = why
	return s.all[namespace][name] != nil
}

// Names returns the names of the stored Secrets of a namespace, in no order.
func (s *Store) Names(namespace string) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.all[namespace] {
		names = append(names, name)
	}
	for name := range s.faults[namespace] {
		if s.all[namespace][name] == nil {
			names = append(names, name)
		}
	}
	return names
}

// Forget removes all that is stored of a namespace.
func (s *Store) Forget(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, namespace)
	delete(s.faults, namespace)
}

// Notify has everybody who waits ask again: what callers may have has changed.
func (s *Store) Notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify()
}

// notify tells everybody who waits. Callers hold s.mu.
func (s *Store) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Changed is closed when something has changed since the call.
func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Refer has the Secrets that Gateways of the Gateway API may use. The map must not be modified afterwards.
func (s *Store) Refer(refs map[credentials.Reference]bool) {
	if s.access != nil {
		all := map[string]map[string]bool{}
		for r := range refs {
			if all[r.From] == nil {
				all[r.From] = map[string]bool{}
			}
			all[r.From][r.Namespace] = true
		}
		s.access.Refer(all)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !maps.Equal(s.refs, refs) {
		s.refs = refs
		s.notify()
	}
}

// Want says that a caller wants Secrets, until release is called.
func (s *Store) Want(who credentials.Caller) (release func()) {
	if s.access == nil {
		return func() {}
	}
	return s.access.Want(who)
}

// outside returns why a Secret is none of those that a caller may have, whatever its permissions are; empty if it is.
func (s *Store) outside(who credentials.Caller, n credentials.Name) string {
	from := who.Identity.Namespace
	switch {
	case from == "" || n.Namespace == "":
		return "the proxy has no namespace"
	case !n.Reference && n.Namespace != from:
		return "Secrets of the proxy's own namespace only are served"
	case !n.Reference:
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.refs[credentials.Reference{From: from, Namespace: n.Namespace, Secret: n.Secret}] {
		return "no Gateway of the proxy's namespace names the Secret in certificateRefs, or no ReferenceGrant in its namespace permits it"
	}
	return ""
}

// Get returns what a caller whose identity was verified may have of a name, and wants. [control-plane 1.9.6]
func (s *Store) Get(who credentials.Caller, n credentials.Name) credentials.Answer {
	if why := s.outside(who, n); why != "" {
		return credentials.Answer{State: credentials.Forbidden, Why: why}
	}
	if s.access != nil {
		if state, why := s.access.May(who, n.Namespace); state != credentials.Found {
			return credentials.Answer{State: state, Why: why}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.all[n.Namespace][n.Secret]
	if n.CA {
		// A Secret of its own comes before the one that has the certificate, too. [control-plane 1.9.6]
		own := s.all[n.Namespace][n.Secret+credentials.CASuffix]
		if own == nil || len(own.CA) == 0 {
			own = c
		}
		switch {
		case own != nil && len(own.CA) > 0:
			return credentials.Answer{State: credentials.Found, Credential: own}
		case s.faults[n.Namespace][n.Secret+credentials.CASuffix] != "":
			return s.absent(n.Namespace, n.Secret+credentials.CASuffix, "")
		}
		return s.absent(n.Namespace, n.Secret, "neither the Secret nor the one with "+credentials.CASuffix+" after its name has ca.crt or cacert")
	}
	if c == nil || len(c.Chain) == 0 {
		return s.absent(n.Namespace, n.Secret, "the Secret has neither tls.crt nor cert")
	}
	return credentials.Answer{State: credentials.Found, Credential: c}
}

// Fault returns why a Secret cannot be the certificate of a listener; empty if it can, or that is not known.
func (s *Store) Fault(namespace, name string) string {
	if s.access != nil && !s.access.Read(namespace) {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.all[namespace][name]; c != nil && len(c.Chain) > 0 {
		return ""
	}
	return s.absent(namespace, name, "the Secret has neither tls.crt nor cert").Why
}

// absent is the answer for a Secret that cannot be used: lacks is what is wrong with one that exists. Callers hold s.mu.
func (s *Store) absent(namespace, name, lacks string) credentials.Answer {
	why := "there is no such Secret"
	switch {
	case s.faults[namespace][name] != "":
		why = s.faults[namespace][name]
	case s.all[namespace][name] != nil:
		why = lacks
	}
	return credentials.Answer{State: credentials.Missing, Why: why}
}
