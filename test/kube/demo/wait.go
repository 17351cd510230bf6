package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// awaitEndpoints waits until every sidecar has an endpoint for every service of the shop: a Pod may be ready some
// milliseconds before others have been told. Gateways have the endpoints of their routes only.
func (c *cluster) awaitEndpoints(ctx context.Context) error {
	c.site.Line("  waiting until every Envoy has the endpoints of every service")
	for _, p := range c.pods {
		if !p.Proxied || p.Workload == "ingress" || p.Workload == "egress" {
			continue
		}
		err := meshup.Await(ctx, startBound, "the Envoy of "+p.Name+" has all endpoints", func(ctx context.Context) error {
			text, err := p.Admin(ctx, "/clusters?format=json")
			if err != nil {
				return err
			}
			return hasEndpoints(text)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// hasEndpoints reads Envoy's page of clusters. It returns an error if one of the shop's is missing, or has no endpoint.
func hasEndpoints(page []byte) error {
	var clusters struct {
		ClusterStatuses []struct {
			Name         string `json:"name"`
			HostStatuses []any  `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal(page, &clusters); err != nil {
		return fmt.Errorf("read Envoy's clusters: %w", err)
	}
	hosts := map[string]int{}
	for _, s := range clusters.ClusterStatuses {
		hosts[s.Name] = len(s.HostStatuses)
	}
	for _, name := range []string{
		"outbound|9080||productpage", "outbound|9080|v1|reviews", "outbound|9080|v2|reviews", "outbound|9080||ratings", "outbound|5432||db",
	} {
		if name += "." + shop + ".svc." + meshup.Domain; hosts[name] == 0 {
			return fmt.Errorf("%s has no endpoint", name)
		}
	}
	return nil
}

// explainLines is the number of lines of each log in an error.
const explainLines = 15

// explain adds the ends of the logs of Pods that are not ready to the error of a start.
func (c *cluster) explain(err error) error {
	var b strings.Builder
	_ = c.eachLog(explainLines, func(p *corev1.Pod, container string, text []byte) error {
		if !ready(p) && len(text) > 0 {
			fmt.Fprintf(&b, "\n  the end of the log of %s of %s:\n  | %s", container, p.Name, strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n  | "))
		}
		return nil
	})
	return fmt.Errorf("%w%s", err, b.String())
}

// writeLogs writes the log of every container to the working directory.
func (c *cluster) writeLogs() error {
	dir := filepath.Join(c.site.WorkDir, "log")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the log folder: %w", err)
	}
	return c.eachLog(-1, func(p *corev1.Pod, container string, text []byte) error {
		return os.WriteFile(filepath.Join(dir, p.Name+"."+p.Namespace+"."+container+".log"), text, 0o644)
	})
}

// logBound is the longest time to read all logs. The run may have been interrupted.
const logBound = 10 * time.Second

// eachLog gives the logs of all containers that have been started, their last lines only if lines is not negative.
func (c *cluster) eachLog(lines int64, give func(p *corev1.Pod, container string, text []byte) error) error {
	if c.Client == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), logBound)
	defer cancel()
	pods, err := c.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("read the logs: %w", err)
	}
	for _, p := range pods.Items {
		for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for _, s := range list {
				if s.ContainerID == "" {
					continue
				}
				o := &corev1.PodLogOptions{Container: s.Name}
				if lines >= 0 {
					o.TailLines = &lines
				}
				text, err := c.Client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, o).DoRaw(ctx)
				if err != nil {
					// The Pod may have gone meanwhile. The other logs say more than an end of the demo.
					text = fmt.Appendf(nil, "this log could not be read: %v\n", err)
				}
				if err := give(&p, s.Name, text); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
