package secret

import (
	"crypto/tls"
	"sync/atomic"
	"time"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// Value is the workload's secret as it stands. One goroutine publishes it, any may read it. Make
// one with NewValue.
type Value struct {
	now     atomic.Pointer[version]
	problem atomic.Pointer[error]
}

// version is one value of the secret.
type version struct {
	secret *pki.Secret
	tls    *tls.Certificate
	next   chan struct{} // closed when this is superseded
}

// NewValue makes a value that there is nothing in yet.
func NewValue() *Value {
	v := &Value{}
	v.now.Store(&version{next: make(chan struct{})})
	return v
}

// Current is the value that stands now, nil where none has been obtained yet, and a
// channel that is closed when another one stands.
func (v *Value) Current() (*pki.Secret, <-chan struct{}) {
	now := v.now.Load()
	return now.secret, now.next
}

// Problem is why the last attempt to obtain a value failed; nil after one that did not.
func (v *Value) Problem() error {
	if p := v.problem.Load(); p != nil {
		return *p
	}
	return nil
}

// ClientCertificate is what the agent presents to its control plane: nil while there is no
// certificate, or after its end. [agent S8]
func (v *Value) ClientCertificate() *tls.Certificate {
	now := v.now.Load()
	if now.tls == nil || !time.Now().Before(now.secret.NotAfter) {
		return nil
	}
	return now.tls
}

// publish makes s the current value, unless its content already is.
func (v *Value) publish(s *pki.Secret) {
	v.problem.Store(nil)
	old := v.now.Load()
	if old.secret != nil && old.secret.Version == s.Version {
		return
	}
	next := &version{secret: s, next: make(chan struct{})}
	if pair, err := tls.X509KeyPair(s.Chain, s.Key); err == nil { // NewSecret checked what it checks
		next.tls = &pair
	}
	v.now.Store(next)
	close(old.next)
}

func (v *Value) fail(err error) { v.problem.Store(&err) }

// left is the validity that remains at the time now; negative where it is over, 0 where
// there is nothing.
func (v *Value) left(now time.Time) time.Duration {
	if s := v.now.Load().secret; s != nil {
		return s.NotAfter.Sub(now)
	}
	return 0
}
