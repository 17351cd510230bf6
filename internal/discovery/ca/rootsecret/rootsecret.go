// Package rootsecret keeps the self-signed roots of the mesh and the state of their rotation in a Secret.
//
// Of a CA that is plugged in, it keeps the certificates of the roots.
//
// All instances of the control plane that use the same Secret have the same roots: each write is one of the
// version that was read, so that of two instances one writes, and the other reads what that has written.
// The root that signs has the names that it has in Istio's istio-ca-secret, so that either control plane
// goes on with the root of the other. What each instance distributes is in a ConfigMap next to it.
package rootsecret

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/printable"
)

const (
	// DefaultSecret is the Secret's name, as in Istio.
	DefaultSecret = "istio-ca-secret"
	// Instances is the ConfigMap with the reports of the instances.
	Instances = "pilothouse-ca-instances"
	// secretType is the type of a Secret that is created, as in Istio.
	secretType corev1.SecretType = "istio.io/ca-root"
	// maxConflicts is how often a change is tried again because another instance has changed the Secret.
	maxConflicts = 50
	// requestTimeout bounds one request.
	requestTimeout = 10 * time.Second
)

// firstWait is how long First waits for an API server that does not answer, or does not know the permissions yet,
// and retryFirst the pause between two requests.
const (
	firstWait  = 30 * time.Second
	retryFirst = time.Second
)

// Options say where the Secret is.
type Options struct {
	// Config is how to connect to the API server. It is not changed.
	Config *rest.Config
	// Namespace is that of the control plane, Secret the Secret's name; empty for DefaultSecret.
	Namespace, Secret string
	// Instance names this process among the instances, such as its Pod; it may be empty, and need not be unique.
	Instance string
	Log      *slog.Logger
}

// Store is a ca.Store in a Secret. Create one with New.
type Store struct {
	core      typed.CoreV1Interface
	namespace string
	secret    string
	log       *slog.Logger

	reporter
	// changing serialises the goroutines of this process, which would be in each other's way.
	changing *semaphore.Weighted
}

// New returns the Store of a Secret, which need not exist. It sends no request.
func New(o Options) (*Store, error) {
	config := rest.CopyConfig(o.Config)
	config.Timeout = requestTimeout
	core, err := typed.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return newStore(core, o), nil
}

func newStore(core typed.CoreV1Interface, o Options) *Store {
	if o.Secret == "" {
		o.Secret = DefaultSecret
	}
	s := &Store{core: core, namespace: o.Namespace, secret: o.Secret, log: o.Log, changing: semaphore.NewWeighted(1)}
	s.reporter = reporter{maps: core.ConfigMaps(o.Namespace), name: Instances, instance: instanceName(o.Instance), seen: map[string]seen{}}
	return s
}

// instanceName returns a unique name that may be a key of a ConfigMap.
func instanceName(of string) string {
	clean := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' {
			return c
		}
		return -1
	}, of)
	return strings.TrimLeft(clean[:min(len(clean), 100)]+"-"+strings.ToLower(rand.Text()[:10]), "-")
}

// String names the Secret.
func (s *Store) String() string { return "Secret " + s.namespace + "/" + s.secret }

// First implements ca.Store. It waits up to 30 s for an API server that does not answer, or refuses.
func (s *Store) First(ctx context.Context, create func() (ca.StoredRoot, error)) (ca.StoredRoot, error) {
	ctx, cancel := context.WithTimeout(ctx, firstWait)
	defer cancel()
	var told string
	for {
		root, err := s.first(ctx, create)
		switch {
		case err == nil:
			return root, nil
		case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
			continue // another instance was faster
		case errors.Is(err, errContents):
			return ca.StoredRoot{}, err
		}
		if text := printable.Reason(err); text != told && ctx.Err() == nil {
			told = text
			s.log.Warn("the root cannot be read from Kubernetes: trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return ca.StoredRoot{}, err
		case <-time.After(retryFirst):
		}
	}
}

// errContents is the error of what the Secret has, which does not change by itself.
var errContents = errors.New("the Secret cannot be used")

// first is First without repetition.
func (s *Store) first(ctx context.Context, create func() (ca.StoredRoot, error)) (ca.StoredRoot, error) {
	secrets := s.core.Secrets(s.namespace)
	secret, err := secrets.Get(ctx, s.secret, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return ca.StoredRoot{}, fmt.Errorf("read the root: get %s: %w", s, err)
	}
	if missing {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: s.secret, Namespace: s.namespace}, Type: secretType}
	}
	has, err := parse(secret.Data, s.String())
	if err != nil {
		return ca.StoredRoot{}, fmt.Errorf("%w: %w", errContents, err)
	}
	root, err := has.first(s.String(), time.Now())
	if err != nil {
		return ca.StoredRoot{}, fmt.Errorf("%w: %w", errContents, err)
	}
	if len(root.Cert) > 0 || create == nil {
		return root, nil
	}
	made, err := create()
	if err != nil {
		return ca.StoredRoot{}, fmt.Errorf("%w: %w", errContents, err)
	}
	secret.Data = withFirst(secret.Data, made)
	if missing {
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err != nil {
		return ca.StoredRoot{}, fmt.Errorf("store the root that was made: write %s: %w", s, err)
	}
	s.log.Info("a self-signed root was made", "in", s.String())
	has, err = parse(secret.Data, s.String())
	return has.signer, err
}

// Root implements ca.Store.
func (s *Store) Root(ctx context.Context, root rotation.Root) (ca.StoredRoot, error) {
	_, has, err := s.get(ctx)
	if err != nil {
		return ca.StoredRoot{}, err
	}
	stored, err := has.root(root.ID, s.String())
	if root.Plugged {
		stored.Key = nil
	}
	return stored, err
}

// removedError says that the Secret does not exist.
type removedError struct{ secret string }

func (e removedError) Error() string {
	return e.secret + " has been removed: restore it; if all instances restart without it, a new root is made, which no workload trusts yet"
}

// get reads the Secret, which must exist.
func (s *Store) get(ctx context.Context) (*corev1.Secret, contents, error) {
	secret, err := s.core.Secrets(s.namespace).Get(ctx, s.secret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, contents{}, removedError{s.String()}
	}
	if err != nil {
		return nil, contents{}, fmt.Errorf("get %s: %w", s, err)
	}
	has, err := parse(secret.Data, s.String())
	return secret, has, err
}

// Change implements ca.Store. The Secret must exist, except at the start with a CA that is plugged in.
func (s *Store) Change(ctx context.Context, f func(old rotation.State, found bool) (*ca.StoreChange, error)) error {
	if err := s.changing.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("change %s: %w", s, err)
	}
	defer s.changing.Release(1)
	var err error
	for range maxConflicts {
		if err = s.change(ctx, f); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return err
}

// change is Change without repetition.
func (s *Store) change(ctx context.Context, f func(old rotation.State, found bool) (*ca.StoreChange, error)) error {
	secret, has, err := s.get(ctx)
	var removed removedError
	missing := errors.As(err, &removed)
	if err != nil && !missing {
		return err
	}
	next, err := f(has.state, has.found)
	switch {
	case missing && (errors.Is(err, ca.ErrNotStored) || err == nil && !(next != nil && next.State.HasPlugged())):
		return removed
	case err != nil:
		return err
	case missing:
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: s.secret, Namespace: s.namespace}, Type: secretType}
	}
	if next == nil {
		if !has.found {
			return nil
		}
		next = &ca.StoreChange{State: has.state} // roots that are not trusted any more are removed
	}
	data, err := has.render(secret.Data, *next, s.String())
	if err != nil || same(data, secret.Data) {
		return err
	}
	secret.Data = data
	if missing {
		_, err = s.core.Secrets(s.namespace).Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = s.core.Secrets(s.namespace).Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", s, err)
	}
	return nil
}
