package cluster

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/discovery/credentials/store"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// site is a cluster of which the test says what it answers and has.
type site struct {
	mu       sync.Mutex
	now      time.Time
	allowed  map[string]bool // by namespace/account
	err      error
	asked    int
	events   map[string]Events // of the namespaces that are read
	followed int               // how often reading has begun
	reader   *Reader
	store    *store.Store
	log      *wait.Output
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{now: time.Unix(1e9, 0), allowed: map[string]bool{}, events: map[string]Events{}, store: store.New(), log: &wait.Output{}}
	s.reader = New(Options{
		Cluster: "east", Store: s.store, Log: slog.New(slog.NewTextHandler(s.log, nil)),
		Now: func() time.Time {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.now
		},
		Allowed: func(_ context.Context, namespace, account string) (bool, string, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked++
			return s.allowed[namespace+"/"+account], "", s.err
		},
		Follow: func(ctx context.Context, namespace string, to Events) error {
			s.mu.Lock()
			s.followed++
			s.events[namespace] = to
			s.mu.Unlock()
			<-ctx.Done()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.events, namespace)
			return nil
		},
	})
	s.store.Restrict(s.reader)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.reader.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// set changes what the cluster answers.
func (s *site) set(allowed string, yes bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allowed[allowed], s.err = yes, err
}

// pass lets time pass.
func (s *site) pass(d time.Duration) {
	s.mu.Lock()
	s.now = s.now.Add(d)
	s.mu.Unlock()
	s.reader.mu.Lock()
	defer s.reader.mu.Unlock()
	s.reader.notify()
}

// of waits until the Secrets of a namespace are read.
func (s *site) of(t *testing.T, namespace string) (e Events) {
	t.Helper()
	wait.Until(t, "the Secrets of "+namespace+" are read", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		e = s.events[namespace]
		return e != nil
	})
	return e
}

func (s *site) reads(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events[namespace] != nil
}

func (s *site) await(t *testing.T, who credentials.Caller, want credentials.State) credentials.Answer {
	t.Helper()
	var got credentials.Answer
	wait.Until(t, "the answer", func() bool {
		got = s.store.Get(who, credentials.Name{Namespace: who.Identity.Namespace, Secret: "ca", CA: true})
		return got.State == want
	})
	return got
}

func caller(namespace, account, cluster string) credentials.Caller {
	return credentials.Caller{Identity: mesh.Identity{TrustDomain: "td", Namespace: namespace, ServiceAccount: account}, Cluster: cluster}
}

// ca is a self-signed certificate in PEM.
func ca(t *testing.T) []byte {
	t.Helper()
	key, err := pki.GenerateKey("")
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// Secrets are read while somebody may have them, who gets them; a permission holds for a minute.
func TestSecretsAreReadForThoseThatMayHaveThem(t *testing.T) {
	s := newSite(t)
	gateway, other := caller("edge", "gateway", "east"), caller("edge", "other", "")
	s.set("edge/gateway", true, nil)
	if got := s.store.Get(gateway, credentials.Name{Namespace: "edge", Secret: "ca", CA: true}); got.State != credentials.Pending {
		t.Errorf("before anything is known: %+v", got)
	}
	releaseOther := s.store.Want(other)
	if got := s.await(t, other, credentials.Forbidden); !strings.Contains(got.Why, "the ServiceAccount other of the proxy may not list the Secrets of the namespace edge") {
		t.Errorf("without permission: %+v", got)
	}
	if s.reads("edge") {
		t.Error("Secrets are read that nobody may have")
	}
	release := s.store.Want(gateway)
	e := s.of(t, "edge")
	if got := s.store.Get(gateway, credentials.Name{Namespace: "edge", Secret: "ca", CA: true}); got.State != credentials.Pending {
		t.Errorf("before they are read: %+v", got)
	}
	e.Failed(errors.New("forbidden"))
	if got := s.await(t, gateway, credentials.Missing); !strings.Contains(got.Why, "cannot be read: forbidden") {
		t.Errorf("while they cannot be read: %+v", got)
	}
	cert := ca(t)
	e.Replace(map[string]map[string][]byte{"ca": {"ca.crt": cert}, "other": {"password": []byte("x")}})
	s.await(t, gateway, credentials.Found)
	s.await(t, other, credentials.Forbidden)
	if got := s.store.Get(gateway, credentials.Name{Namespace: "edge", Secret: "other"}); got.State != credentials.Missing || !strings.Contains(got.Why, "none of the keys") {
		t.Errorf("a Secret that is not for TLS: %+v", got)
	}
	e.Put("ca", map[string][]byte{"ca.crt": []byte("broken")})
	s.await(t, gateway, credentials.Found)
	if !strings.Contains(s.log.String(), "gateways keep the last good one") || strings.Contains(s.log.String(), "broken") {
		t.Errorf("the log about a broken Secret: %s", s.log)
	}
	e.Remove("ca")
	s.await(t, gateway, credentials.Missing)
	e.Put("ca", map[string][]byte{"ca.crt": cert})
	s.await(t, gateway, credentials.Found)

	// Nobody is left: a minute later nothing is in memory.
	release()
	releaseOther()
	wait.Until(t, "the Secrets are forgotten", func() bool {
		s.pass(idle)
		return !s.reads("edge") && len(s.store.Names("edge")) == 0
	})
	e.Put("ca", map[string][]byte{"ca.crt": cert})
	if len(s.store.Names("edge")) > 0 {
		t.Error("what has ended still stores Secrets")
	}
}

// Secrets of other namespaces that Gateways refer to are read for those that may read their own.
func TestSecretsOfReferencesAreRead(t *testing.T) {
	s := newSite(t)
	gateway, other := caller("edge", "gateway", "east"), caller("edge", "other", "east")
	s.set("edge/gateway", true, nil)
	defer s.store.Want(gateway)()
	defer s.store.Want(other)()
	s.of(t, "edge")
	if s.reads("shop") {
		t.Error("a namespace is read to which nothing refers")
	}
	s.store.Refer(map[credentials.Reference]bool{{From: "edge", Namespace: "shop", Secret: "ca"}: true, {From: "else", Namespace: "far", Secret: "ca"}: true})
	s.of(t, "shop").Replace(map[string]map[string][]byte{"ca": {"ca.crt": ca(t)}})
	name := credentials.Name{Namespace: "shop", Secret: "ca", CA: true, Reference: true}
	wait.Until(t, "the Secret", func() bool { return s.store.Get(gateway, name).State == credentials.Found })
	wait.Until(t, "the refusal of another account", func() bool { return s.store.Get(other, name).State == credentials.Forbidden })
	if s.reads("far") {
		t.Error("a namespace is read to which nobody's Gateways refer")
	}
	s.store.Refer(nil)
	if got := s.store.Get(gateway, name); got.State != credentials.Forbidden {
		t.Errorf("without the reference: %+v", got)
	}
	wait.Until(t, "its Secrets are forgotten", func() bool {
		s.pass(idle)
		return !s.reads("shop")
	})
}

// A permission is asked for again before it ends. Without an answer it ends; what is refused is asked for again, too.
func TestPermissionsEnd(t *testing.T) {
	s := newSite(t)
	gateway := caller("edge", "gateway", "east")
	s.set("edge/gateway", true, nil)
	defer s.store.Want(gateway)()
	s.of(t, "edge").Replace(map[string]map[string][]byte{"ca": {"ca.crt": ca(t)}})
	s.await(t, gateway, credentials.Found)

	s.set("edge/gateway", false, errors.New("away"))
	s.pass(againAfter)
	s.await(t, gateway, credentials.Found) // the last answer still holds
	s.pass(allowedFor - againAfter)
	if got := s.await(t, gateway, credentials.Forbidden); !strings.Contains(got.Why, "it is not known") || !strings.Contains(got.Why, "away") {
		t.Errorf("without an answer: %+v", got)
	}
	if !strings.Contains(s.log.String(), "gateways get no further Secrets") {
		t.Errorf("the log: %s", s.log)
	}
	s.set("edge/gateway", true, nil)
	s.pass(lastPause)
	s.await(t, gateway, credentials.Found)
	s.set("edge/gateway", false, nil)
	s.pass(againAfter)
	if got := s.await(t, gateway, credentials.Forbidden); !strings.Contains(got.Why, "may not list") {
		t.Errorf("a permission that was taken away: %+v", got)
	}
	s.set("edge/gateway", true, nil)
	s.pass(lastPause)
	s.await(t, gateway, credentials.Found)
	if s.followed != 1 {
		t.Errorf("reading has begun %d times, want once: it goes on for a minute", s.followed)
	}
}

// Nothing is asked for callers of other namespaces and clusters, and for names that could be those of others.
func TestCallersThatCannotHaveSecretsAskForNothing(t *testing.T) {
	s := newSite(t)
	for _, tc := range []struct {
		who       credentials.Caller
		namespace string
	}{
		{caller("edge", "gateway", "west"), "edge"}, {caller("", "gateway", ""), ""},
		{caller("edge", "a:b", ""), "edge"}, {caller("a/../b", "gateway", ""), "a/../b"}, {caller("edge:x", "y", ""), "edge:x"}, {caller("edge", "", ""), "edge"},
	} {
		release := s.store.Want(tc.who)
		if got := s.store.Get(tc.who, credentials.Name{Namespace: tc.namespace, Secret: "a"}); got.State != credentials.Forbidden || got.Why == "" {
			t.Errorf("%+v asks in %q: %+v", tc.who, tc.namespace, got)
		}
		release()
	}
	s.reader.mu.Lock()
	defer s.reader.mu.Unlock()
	if len(s.reader.wishes) > 0 || s.asked > 0 {
		t.Errorf("%d wishes, %d questions", len(s.reader.wishes), s.asked)
	}
}
