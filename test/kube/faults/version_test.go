package faults_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pilothouse/pilothouse/test/kube/clusterup"
)

// The chart and the programs of the version before are exchanged for those of this one and back, by "helm upgrade" and by "helm
// rollback", under load and changes, with proxies of either version. No request fails, all changes arrive, and what is injected is of
// the version that runs.
func TestVersions(t *testing.T) {
	s := start(t)
	const before, now = ":" + clusterup.TagBefore, ":" + clusterup.Tag
	upgrade := func(chart string) func(context.Context) error {
		return func(ctx context.Context) error { return s.Upgrade(ctx, "mesh", system, chart, values) }
	}
	rollback := func(ctx context.Context) error { return s.Rollback(ctx, "mesh", system) }
	move := func(what, tag string, helm func(context.Context) error) {
		t.Helper()
		old := s.two(t)
		if err := helm(t.Context()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		took := s.replaced(t, old, tag)
		until(t, "a new Pod gets the image "+tag, func(ctx context.Context) error {
			image, err := s.injectedBy(ctx)
			if err == nil && !strings.HasSuffix(image, tag) {
				err = fmt.Errorf("it gets %s", image)
			}
			return err
		})
		until(t, "every proxy is connected", func(ctx context.Context) error { return s.connected(ctx, 0) })
		t.Logf("%s took %v", what, took)
	}

	// Proxies of this version.
	s.sidecars(t, now)
	l := s.load(t)
	stopEdits := s.edit(t)
	move("the downgrade", before, upgrade(s.ControlBefore()))
	move("the rollback to this version", now, rollback)
	move("the rollback to the version before", before, rollback)
	s.have(t, stopEdits()...)
	l.answered(t)

	// Proxies of the version before.
	s.restart(t)
	s.sidecars(t, before)
	l = s.load(t)
	stopEdits = s.edit(t)
	move("the upgrade", now, upgrade(s.Control()))
	move("the rollback to the version before", before, rollback)
	move("the upgrade again", now, upgrade(s.Control()))
	s.have(t, stopEdits()...)
	l.answered(t)

	s.restart(t)
	s.sidecars(t, now)
}

// restart replaces the Pods of all workloads, and waits until only new ones exist.
func (s site) restart(t *testing.T) {
	t.Helper()
	var old []string
	for _, p := range s.envoys(t) {
		old = append(old, p.name)
	}
	for _, name := range []string{"web", "shopper"} {
		patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"restarted":"after %s"}}}}}`, strings.Join(old, ", "))
		if _, err := s.Client.AppsV1().Deployments(shop).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "no Pod of before exists", func(ctx context.Context) error {
		all, err := s.Client.CoreV1().Pods(shop).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range all.Items {
			if slices.Contains(old, p.Name) {
				return fmt.Errorf("%s exists", p.Name)
			}
		}
		return nil
	})
	s.settled(t)
}

// sidecars checks that the proxies of all workloads have an image that ends in tag.
func (s site) sidecars(t *testing.T, tag string) {
	t.Helper()
	for _, app := range []string{"web", "shopper"} {
		pods, err := s.pods(t.Context(), shop, app)
		if err != nil || len(pods) != 2 {
			t.Fatalf("%d Pods of %s, error %v", len(pods), app, err)
		}
		for _, p := range pods {
			for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
				if c.Name == "istio-proxy" && !strings.HasSuffix(c.Image, tag) {
					t.Fatalf("the proxy of %s has the image %s, want one with %s", p.Name, c.Image, tag)
				}
			}
		}
	}
}
