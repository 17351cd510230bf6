package secret

import (
	"crypto/tls"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// Value is the workload's current secret. One goroutine publishes it, any may read it. Make
// one with NewValue.
type Value struct {
	now     atomic.Pointer[version]
	problem atomic.Pointer[error]
	tried   chan struct{}
	once    sync.Once
}

// version is one value of the secret.
type version struct {
	secret *pki.Secret
	tls    *tls.Certificate
	next   chan struct{} // closed when there is a newer version
}

// NewValue makes a value without a secret.
func NewValue() *Value {
	v := &Value{tried: make(chan struct{})}
	v.now.Store(&version{next: make(chan struct{})})
	return v
}

// Current returns the current secret, nil before the first, and a
// channel that is closed when there is a newer one.
func (v *Value) Current() (*pki.Secret, <-chan struct{}) {
	now := v.now.Load()
	return now.secret, now.next
}

// Tried returns a channel that is closed when there is a secret, or the first attempt to obtain one has failed.
func (v *Value) Tried() <-chan struct{} { return v.tried }

// Problem returns why the last attempt to obtain a secret failed; nil after a success.
func (v *Value) Problem() error {
	if p := v.problem.Load(); p != nil {
		return *p
	}
	return nil
}

// ClientCertificate returns the certificate that the agent presents to its control plane: nil if there is no
// certificate, or it has expired. [agent S8]
func (v *Value) ClientCertificate() *tls.Certificate {
	now := v.now.Load()
	if now.tls == nil || !time.Now().Before(now.secret.NotAfter) {
		return nil
	}
	return now.tls
}

// publish makes s the current secret, unless the current one has the same version.
func (v *Value) publish(s *pki.Secret) {
	v.problem.Store(nil)
	old := v.now.Load()
	if old.secret != nil && old.secret.Version == s.Version {
		return
	}
	next := &version{secret: s, next: make(chan struct{})}
	if pair, err := tls.X509KeyPair(s.Chain, s.Key); err == nil { // NewSecret has made the same checks
		next.tls = &pair
	}
	v.now.Store(next)
	close(old.next)
	v.once.Do(func() { close(v.tried) })
}

func (v *Value) fail(err error) {
	v.problem.Store(&err)
	v.once.Do(func() { close(v.tried) })
}

// left returns the validity that remains at the time now: negative if it has expired, 0 if
// there is no secret.
func (v *Value) left(now time.Time) time.Duration {
	if s := v.now.Load().secret; s != nil {
		return s.NotAfter.Sub(now)
	}
	return 0
}
