// Package clusterup runs a Kubernetes cluster on this machine and installs the charts in it, as users do.
//
// The control plane is that of package kubetest, the Node that of package node: each container of a Pod is a process with the
// Pod's namespaces and its own mounts. The charts are packed as a release has them and installed with Helm's library; nothing is
// applied besides. [Start] returns when the Node is ready; [Cluster.Close] leaves no process, namespace or file.
package clusterup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/kube/node"
	"github.com/pilothouse/pilothouse/test/kube/node/podstate"
)

// Options say what runs.
type Options struct {
	Programs meshup.Programs
	// Before is the directory with the programs of the version before, whose images have the tag TagBefore; empty for none.
	Before string
	// Images are further images than those of the charts and the sample.
	Images map[string]node.Image
	// Files are the charts and what installs them.
	Files Files
	// Dir is an existing directory for the Pods' files, the API server's configuration and a kubeconfig file. The caller removes
	// it.
	Dir string
	// Backoff says when containers that ended are started again; zero for the Node's default.
	Backoff podstate.Backoff
	// Subnet has the addresses of all Pods; the default is that of package node. Clusters that run side by side need one each.
	Subnet netip.Prefix
	// Log gets what the Node does; nil: no log.
	Log *slog.Logger
}

// Cluster is a cluster that runs, with one Node. All methods may be called from several goroutines.
type Cluster struct {
	*kubetest.Cluster
	Network *node.Network
	Node    *node.Node
	o       Options
}

// Start starts the control plane and a Node.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{o: o}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	o := c.o
	socket, egress := filepath.Join(o.Dir, "egress.sock"), filepath.Join(o.Dir, "egress.yaml")
	if err := os.WriteFile(egress, []byte(node.EgressConfig(socket)), 0o600); err != nil {
		return fmt.Errorf("configure the API server: %w", err)
	}
	var err error
	c.Cluster, err = kubetest.Launch(ctx, kubetest.Options{Scheduler: true, APIServerFlags: []string{"--egress-selector-config-file=" + egress}})
	if err != nil {
		return err
	}
	if err := c.writeKubeconfig(); err != nil {
		return err
	}
	if c.Network, err = node.NewNetwork(ctx, node.NetworkOptions{Config: c.Config, Subnet: o.Subnet, EgressSocket: socket, Log: o.Log}); err != nil {
		return err
	}
	pods := filepath.Join(o.Dir, "pods")
	if err := os.MkdirAll(pods, 0o755); err != nil {
		return fmt.Errorf("make the directory of the Pods: %w", err)
	}
	c.Node, err = node.Start(ctx, c.Network, node.Options{Images: images(o), Dir: pods, Backoff: o.Backoff, Log: o.Log})
	return err
}

// Close ends everything. It may be called more than once.
func (c *Cluster) Close() error {
	var errs []error
	if c.Node != nil {
		errs = append(errs, c.Node.Close())
	}
	if c.Network != nil {
		errs = append(errs, c.Network.Close())
	}
	if c.Cluster != nil {
		errs = append(errs, c.Stop())
	}
	return errors.Join(errs...)
}

// images are those of the charts and of the sample's workloads, as deploy/Containerfile makes them.
func images(o Options) map[string]node.Image {
	const local = "/usr/local/bin/"
	all := map[string]node.Image{
		"pilothouse/app": {Files: map[string]string{local + "app": o.Programs.App}, Entrypoint: []string{local + "app"}, User: 2000},
	}
	add := func(tag, agent, discovery string) {
		const user = 1337
		all["pilothouse/agent"+tag] = node.Image{Files: map[string]string{local + "pilot-agent": agent, local + "envoy": o.Programs.Envoy}, Entrypoint: []string{local + "pilot-agent"}, User: user}
		all["pilothouse/discovery"+tag] = node.Image{Files: map[string]string{local + "pilot-discovery": discovery}, Entrypoint: []string{local + "pilot-discovery"}, Cmd: []string{"discovery"}, User: user}
	}
	maps.Copy(all, o.Images)
	add("", o.Programs.Agent, o.Programs.Discovery)
	if o.Before != "" {
		add(":"+TagBefore, filepath.Join(o.Before, "pilot-agent"), filepath.Join(o.Before, "pilot-discovery"))
	}
	return all
}
