package discovery

import (
	"context"
	"crypto/x509"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/pki"
)

const (
	// handoverLook is how often it is looked whether the API server trusts a root that is to come.
	handoverLook = 500 * time.Millisecond
	// handoverSettle is how long a root has been in the bundles of all webhooks before it signs the certificate of the
	// HTTPS port: each API server gets to know of the bundles by a watch of its own.
	handoverSettle = 2 * time.Second
	// handoverStart is how long a replica that starts waits at most for the API server to trust it. Without a leader nobody
	// changes the bundles, and a replica that is never ready would keep others from being replaced.
	handoverStart = 30 * time.Second
	// handoverEnd is how long before the end of the old certificate authority another one signs in any case.
	handoverEnd = time.Minute
)

// handover has the certificate of the HTTPS port follow the CA, one step behind the bundles of the webhooks: another
// root signs it when the API server is known to trust that root. Decision 47.
type handover struct {
	authority *ca.Authority // what signs the certificate of the HTTPS port
	serves    atomic.Pointer[string]
	pending   atomic.Bool // it has not been found out yet whether the API server trusts this replica
}

// openHandover begins with what the CA signs with now.
func (s *Server) openHandover() (*handover, error) {
	authority, err := ca.NewAuthority(s.servingAuthority.State().Issuer)
	if err != nil {
		return nil, err
	}
	h := &handover{authority: authority}
	h.pending.Store(s.cluster != nil)
	h.note()
	return h, nil
}

// note notes which root signs.
func (h *handover) note() {
	id := pki.Fingerprint(h.authority.State().Issuer.Root())
	h.serves.Store(&id)
}

// root returns the ID of the root below which the HTTPS port serves; empty if it has no certificate of the CA.
func (h *handover) root() string {
	if h == nil {
		return ""
	}
	return *h.serves.Load()
}

// notReady returns why requests of the API server would fail, "" if they do not.
func (h *handover) notReady() string {
	if h == nil || !h.pending.Load() {
		return ""
	}
	return "the API server does not trust the certificate of the webhooks yet"
}

// trustFacts is what is known about the root that is to sign next, or about the one that signs.
type trustFacts struct {
	now, started time.Time
	same         bool      // it signs already, and nothing has been found out since the start
	trusted      bool      // the bundles of all webhooks have it
	refused      bool      // that must not be found out
	err          error     // why it could not be found out
	since        time.Time // since when it is known to be trusted; zero if it is not
	end          time.Time // of what signs now
}

// settled reports whether there is nothing to wait for.
func (f trustFacts) settled() bool {
	switch {
	case f.refused:
		return true
	case f.same:
		// An API server that cannot be reached sends no requests.
		return f.trusted || f.err != nil || f.now.Sub(f.started) >= handoverStart
	case !f.now.Before(f.end.Add(-handoverEnd)):
		return true
	}
	return f.trusted && f.now.Sub(f.since) >= handoverSettle
}

// handOver follows the CA until ctx ends.
func (s *Server) handOver(ctx context.Context) error {
	h := s.webhooks.handover
	if h == nil {
		return nil
	}
	f := trustFacts{started: time.Now()}
	var about *x509.Certificate // the root of f.since
	for {
		state, changed := s.servingAuthority.Watch()
		next, signs := state.Issuer, h.authority.State().Issuer
		f.same, f.end = next.Root().Equal(signs.Root()), signs.Validity().NotAfter
		settled := f.same && !h.pending.Load() || s.webhooks.patcher == nil
		if !settled {
			f.trusted, f.err = s.webhooks.patcher.Trusts(ctx, next.Root())
			f.now = time.Now()
			if !f.trusted || about == nil || !about.Equal(next.Root()) {
				f.since, about = f.now, next.Root()
			}
			if apierrors.IsForbidden(f.err) && !f.refused {
				f.refused = true
				s.opts.Log.Warn("it cannot be found out whether the API server trusts a new root: the webhooks' certificate follows the CA at once", "error", f.err)
			}
			if settled = f.settled(); settled && !f.trusted && ctx.Err() == nil {
				s.opts.Log.Warn("the API server is not known to trust the webhooks' certificate; if it does not, requests fail until the bundles of the webhook configurations have its root", "root", pki.Fingerprint(next.Root())[:16])
			}
		}
		var look <-chan time.Time
		if !settled {
			look = time.After(handoverLook)
		} else if err := s.handedOver(next); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-look:
		case <-ctx.Done():
			return nil
		}
	}
}

// handedOver has an issuer sign the certificate of the HTTPS port.
func (s *Server) handedOver(next *policy.Issuer) error {
	h := s.webhooks.handover
	h.pending.Store(false)
	before := h.root()
	if err := h.authority.Replace(next, nil); err != nil {
		return err
	}
	if h.note(); h.root() != before {
		s.rotator.Wake() // the leader removes the old root when no replica serves below it
		s.opts.Log.Info("another root signs the webhooks' certificate", "root", h.root()[:16])
	}
	return nil
}
