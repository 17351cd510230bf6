package discovery

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Rotation says when the self-signed root is rotated by itself. [control-plane 1.2.14]
type Rotation struct {
	// Share is the share of the root's lifetime that is left when its rotation begins, 0–0.5.
	Share float64
	// Interval is how often it is checked whether a root ends.
	Interval time.Duration
	// Jitter is the longest delay of the beginning.
	Jitter time.Duration
}

// leavesInMargin is how many lifetimes of a leaf are left of a root at least when its rotation begins: one
// until it signs, one until its last leaf has ended, and one more.
const leavesInMargin = 3

// openRotation continues the rotation of the root.
func (s *Server) openRotation(ctx context.Context, domain string) (err error) {
	o := s.opts.CA
	s.rotator, err = ca.OpenRotator(ctx, s.authority, ca.RotatorOptions{
		Store: s.roots, Organization: domain, RootTTL: o.RootTTL, RootKey: o.RootKey, TTL: o.Limits.Lifetime(), MaxTTL: o.Limits.Longest(), Plugged: s.plugged.Plugged(),
		Policy:     rotation.Policy{Share: o.Rotation.Share, Margin: leavesInMargin * o.Limits.Lifetime(), Jitter: o.Rotation.Jitter},
		Interval:   o.Rotation.Interval,
		Distribute: s.distribute, Proxies: s.proxiesTrust, Serves: func() string { return s.webhooks.handover.root() }, Log: s.opts.Log.With("scope", "ca"),
	})
	if err == nil {
		s.servingAuthority = s.rotator.ServingAuthority()
	}
	return err
}

// proxiesTrust returns how many proxies are connected, and which have not acknowledged the trust bundle.
func (s *Server) proxiesTrust() (connected int, waiting []string) {
	t := s.xds.Trust()
	return t.Connected, t.Waiting
}

// trustedRoots are the roots in the trust bundle of the mesh.
type trustedRoots struct {
	mu sync.Mutex // held while they are distributed, so that the newest are distributed last
	// ca are those of the mesh's CA; nil until they are known.
	ca []*x509.Certificate
	// mesh are those of the mesh configuration. They never verify the control plane.
	mesh []*x509.Certificate
}

// distribute has the agents trust the roots of the mesh's CA, in addition to those of the mesh configuration. What is
// distributed already is not sent again.
func (s *Server) distribute(roots []*x509.Certificate) {
	s.trusted.mu.Lock()
	defer s.trusted.mu.Unlock()
	s.trusted.ca = roots
	s.setTrust()
}

// distributeMesh replaces the roots of the mesh configuration. Proxies are served only after the first call, so
// that none is sent a bundle without them.
func (s *Server) distributeMesh(roots []*x509.Certificate) {
	s.trusted.mu.Lock()
	defer s.trusted.mu.Unlock()
	s.trusted.mesh = roots
	if s.trusted.ca != nil {
		s.setTrust()
	}
}

// setTrust distributes s.trusted, whose lock the caller holds.
func (s *Server) setTrust() {
	var b xds.TrustBundle
	for _, c := range pki.Normalize(slices.Concat(s.trusted.ca, s.trusted.mesh)) {
		b.Certificates = append(b.Certificates, string(pki.EncodeCerts(c)))
	}
	for _, c := range pki.Normalize(s.trusted.ca) {
		b.CARoots = append(b.CARoots, pki.Fingerprint(c))
	}
	if err := s.xds.SetTrust(b); err != nil {
		s.opts.Log.Error("the trust bundle is not distributed", "error", err)
	}
}

// distributeRoots distributes the authority's trust bundle whenever it changes, until ctx ends.
func (s *Server) distributeRoots(ctx context.Context) error {
	for {
		state, changed := s.authority.Watch()
		s.distribute(state.Roots)
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// rootsPEM returns the trust bundle of the mesh's CA, and a channel that is closed when there is another.
func (s *Server) rootsPEM() (string, <-chan struct{}) {
	state, changed := s.authority.Watch()
	return string(state.RootsPEM()), changed
}

// warnOfTheEnd logs in each interval that the CA's certificate ends, from when a rotation should have begun on.
func (s *Server) warnOfTheEnd(ctx context.Context) error {
	tick := time.NewTicker(max(s.opts.CA.Rotation.Interval, time.Minute))
	defer tick.Stop()
	for {
		term := s.authority.State().Issuer.Validity()
		due := rotation.Policy{Share: s.opts.CA.Rotation.Share, Margin: leavesInMargin * s.opts.CA.Limits.Lifetime()}.Due(rotation.Root{NotBefore: term.NotBefore, NotAfter: term.NotAfter})
		if left := time.Until(term.NotAfter); !time.Now().Before(due.Add(s.opts.CA.Rotation.Jitter)) {
			remedy := "pilotctl ca status says what its rotation waits for"
			if s.rotator.Status().PluggedIn {
				remedy = "replace the files of the CA"
			}
			s.opts.Log.Warn("the CA's certificate ends", "until", term.NotAfter, "left", left.Round(time.Minute), "remedy", remedy)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// caStatus writes the state of the roots.
func (s *Server) caStatus(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, s.rotator.Status())
}

// jsonType is the content type of a request that changes something. A page of another origin cannot send it.
const jsonType = "application/json"

// caRotate begins a rotation of the root.
func (s *Server) caRotate(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Content-Type") != jsonType {
		http.Error(w, fmt.Sprintf("invalid Content-Type: want %s", jsonType), http.StatusUnsupportedMediaType)
		return
	}
	if err := s.rotator.Rotate(r.Context()); err != nil {
		code := http.StatusInternalServerError
		switch {
		case errors.Is(err, rotation.ErrInProgress), errors.Is(err, rotation.ErrTooMany):
			code = http.StatusConflict
		case errors.Is(err, rotation.ErrPlugged):
			code = http.StatusNotImplemented
		}
		http.Error(w, err.Error(), code)
		return
	}
	s.opts.Log.Info("rotation of the root requested", "by", r.RemoteAddr)
	writeJSON(w, s.rotator.Status())
}
