package faults_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/kube/clusterup"
)

// The chart is upgraded to another version of its images, with other values, and back again. The Deployment replaces both
// replicas, no request fails, proxies that stay where they are get what the new replicas have, new Pods get the new image, and
// the streams spread over the replicas.
func TestUpgrade(t *testing.T) {
	s := start(t)
	l := s.load(t)
	stopEdits := s.edit(t)
	for _, tag := range []string{"v2.0.0", ""} {
		old := s.two(t)
		more := ""
		if tag != "" {
			more = fmt.Sprintf("global: {tag: %s, logging: {level: \"default:debug\"}}\n", tag)
		}
		if err := s.Upgrade(t.Context(), "mesh", system, s.Control(), values+more); err != nil {
			t.Fatal(err)
		}
		want := ":" + tag
		if tag == "" {
			want = ":" + clusterup.Tag
		}
		took := s.replaced(t, old, want)
		t.Logf("the upgrade to %s took %v", want, took)
		until(t, "a new Pod gets the new image", func(ctx context.Context) error {
			image, err := s.injectedBy(ctx)
			if err == nil && !strings.HasSuffix(image, want) {
				err = errors.New("it gets " + image)
			}
			return err
		})
		took = until(t, "both replicas have streams", func(ctx context.Context) error { return s.connected(ctx, 1) })
		t.Logf("proxies had spread after %v", took)
	}
	s.have(t, stopEdits()...)
	l.stop(t)
}

// replaced waits until both replicas are others than before, of an image that ends in tag, and ready. It returns how long that took.
func (s site) replaced(t *testing.T, before [2]pod, tag string) time.Duration {
	t.Helper()
	return until(t, "both replicas are new ones", func(ctx context.Context) error {
		pods, err := s.pods(ctx, system, "istiod")
		if err != nil {
			return err
		}
		for _, p := range pods {
			if p.Name == before[0].name || p.Name == before[1].name || !strings.HasSuffix(p.Spec.Containers[0].Image, tag) {
				return fmt.Errorf("there is %s with image %s", p.Name, p.Spec.Containers[0].Image)
			}
		}
		return s.bothReady(ctx)
	})
}
