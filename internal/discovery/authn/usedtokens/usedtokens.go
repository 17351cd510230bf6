// Package usedtokens remembers which join tokens were used in a ConfigMap, for all replicas of a control plane.
//
// Each write is one of the version that was read, so that of two replicas with the same token one writes, and the other reads
// what that has written. Nothing is cached. The ConfigMap has hashes, and no credential.
package usedtokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
)

const (
	// Name is the ConfigMap's name; it is in the control plane's namespace.
	Name = "pilothouse-join-tokens"
	// key has the ledger.
	key = "used"
	// requestTimeout bounds one use.
	requestTimeout = 10 * time.Second
	// maxConflicts is how often a use is tried again because another replica has written.
	maxConflicts = 50
	// conflictPause is the greatest pause before that.
	conflictPause = 50 * time.Millisecond
)

// Store is an authn.Used in a ConfigMap. Create one with New. It is safe for concurrent use.
type Store struct {
	maps typed.ConfigMapInterface
	// writing serialises the goroutines of this process, which would be in each other's way.
	writing *semaphore.Weighted
}

// New returns the Store of a namespace. It sends no request.
func New(config *rest.Config, namespace string) (*Store, error) {
	c := rest.CopyConfig(config)
	c.Timeout = requestTimeout
	core, err := typed.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return &Store{maps: core.ConfigMaps(namespace), writing: semaphore.NewWeighted(1)}, nil
}

// Use implements authn.Used.
func (s *Store) Use(ctx context.Context, u authn.Use, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := s.writing.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for other join tokens: %w", err)
	}
	defer s.writing.Release(1)
	var err error
	for range maxConflicts {
		if err = s.try(ctx, u, now); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("write the ConfigMap %s: %w", Name, err)
		case <-time.After(rand.N(conflictPause)):
		}
	}
	return fmt.Errorf("write the ConfigMap %s: other replicas write it all the time: %w", Name, err)
}

// try reads the ledger and writes it with the use. A conflict with another replica is an error of the API server.
func (s *Store) try(ctx context.Context, u authn.Use, now time.Time) error {
	m, err := s.maps.Get(ctx, Name, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("read the ConfigMap %s: %w", Name, err)
	}
	var ledger authn.Ledger
	if !missing {
		if ledger, err = authn.DecodeLedger([]byte(m.Data[key])); err != nil {
			return fmt.Errorf("ConfigMap %s: %w: delete it, which lets tokens be used again that have not ended", Name, err)
		}
	}
	next, changed, err := ledger.Use(u, now)
	if err != nil || !changed {
		return err
	}
	text, err := next.Encode()
	if err != nil {
		return err
	}
	data := map[string]string{key: string(text)}
	if missing {
		_, err = s.maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: Name}, Data: data}, metav1.CreateOptions{})
		return err
	}
	if m.ResourceVersion == "" {
		return errors.New("the ConfigMap has no version")
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]string{"resourceVersion": m.ResourceVersion}, "data": data})
	if err != nil {
		return err
	}
	_, err = s.maps.Patch(ctx, Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		err = apierrors.NewConflict(corev1.Resource("configmaps"), Name, err) // it was deleted since then
	}
	return err
}
