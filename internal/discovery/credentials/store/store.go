// Package store has the Secrets that gateways may have, and decides who gets them.
//
// A caller whose identity is verified gets a Secret of its own namespace. A [Store] may be used by several goroutines; none of its
// methods blocks.
package store

import (
	"sync"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Store has the credentials. Create one with New.
type Store struct {
	mu      sync.Mutex
	all     map[string]map[string]*credentials.Credential // by namespace and name
	changed chan struct{}                                 // closed at the next change
}

// New returns an empty Store.
func New() *Store {
	return &Store{all: map[string]map[string]*credentials.Credential{}, changed: make(chan struct{})}
}

// Put stores a Secret, which replaces that of its name. A nil c removes it.
func (s *Store) Put(namespace, name string, c *credentials.Credential) {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// Get returns what an identity that was verified may have of a name. Of a state other than Found there is no credential. [control-plane 1.9.6]
func (s *Store) Get(who mesh.Identity, n credentials.Name) (*credentials.Credential, credentials.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if who.Namespace == "" || who.Namespace != n.Namespace {
		return nil, credentials.Forbidden
	}
	c := s.all[n.Namespace][n.Secret]
	if n.CA {
		// A Secret of its own comes before the one that has the certificate, too. [control-plane 1.9.6]
		if own := s.all[n.Namespace][n.Secret+credentials.CASuffix]; own != nil && len(own.CA) > 0 {
			return own, credentials.Found
		}
		if c != nil && len(c.CA) > 0 {
			return c, credentials.Found
		}
		return nil, credentials.Missing
	}
	if c == nil || len(c.Chain) == 0 {
		return nil, credentials.Missing
	}
	return c, credentials.Found
}
