package faults_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// One kind cannot be read when both replicas start anew: they are not ready and say why, no proxy is connected, and Envoys go on
// with what they have. When it can be read they serve, and a proxy has missed nothing.
func TestNothingIsServedBeforeEverythingIsRead(t *testing.T) {
	s := start(t)
	l := s.load(t)
	all := s.two(t)
	allow := s.forbid(t, "serviceentries")
	for _, r := range all {
		before := r.pid()
		r.kill(t)
		until(t, r.name+" says that it is not ready", func(ctx context.Context) error {
			status, text, err := r.get(ctx, 8080, "/ready")
			if err != nil || r.pid() == before || status == http.StatusOK {
				return errors.Join(err, fmt.Errorf("status %d: %s", status, text))
			}
			return nil
		})
	}
	for _, r := range all {
		until(t, r.name+" says what it cannot read", func(ctx context.Context) error {
			_, text, err := r.get(ctx, 8080, "/debug/objectz")
			if err == nil && !strings.Contains(text, "serviceentries") {
				err = errors.New(text)
			}
			return err
		})
		if n, err := r.metric(t.Context(), "pilothouse_ready"); err != nil || n != 0 {
			t.Errorf("pilothouse_ready of %s is %v, error %v", r.name, n, err)
		}
		if n, err := r.metric(t.Context(), "pilot_xds"); err != nil || n != 0 {
			t.Errorf("pilot_xds of %s is %v, error %v", r.name, n, err)
		}
	}
	until(t, "the Service has no endpoint", func(ctx context.Context) error { return s.areReadyExactly(ctx, 0) })
	allow()
	s.settled(t)
	s.arrives(t)
	l.stop(t)
}

// areReadyExactly returns an error if not so many replicas are ready for their readiness probes.
func (s site) areReadyExactly(ctx context.Context, want int) error {
	pods, err := s.pods(ctx, system, "istiod")
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !ready(&p) })
	if err == nil && len(pods) != want {
		err = fmt.Errorf("%d are", len(pods))
	}
	return err
}

// forbid takes a resource away from what pilot-discovery may read, until the function that it returns is called.
func (s site) forbid(t *testing.T, resource string) (allow func()) {
	t.Helper()
	roles, err := s.Client.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{LabelSelector: "app=istiod"})
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range roles.Items {
		for i, rule := range role.Rules {
			at := slices.Index(rule.Resources, resource)
			if at < 0 || !slices.Contains(rule.Verbs, "list") {
				continue
			}
			set := func(ctx context.Context, resources []string) error {
				now, err := s.Client.RbacV1().ClusterRoles().Get(ctx, role.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				now.Rules = slices.Clone(now.Rules)
				now.Rules[i] = rbacv1.PolicyRule{APIGroups: rule.APIGroups, Verbs: rule.Verbs, Resources: resources}
				_, err = s.Client.RbacV1().ClusterRoles().Update(ctx, now, metav1.UpdateOptions{})
				return err
			}
			if err := set(t.Context(), slices.Delete(slices.Clone(rule.Resources), at, at+1)); err != nil {
				t.Fatal(err)
			}
			allow = func() {
				if err := set(context.WithoutCancel(t.Context()), rule.Resources); err != nil {
					t.Error(err)
				}
			}
			t.Cleanup(allow)
			return allow
		}
	}
	t.Fatalf("no ClusterRole of pilot-discovery allows %s", resource)
	return nil
}
