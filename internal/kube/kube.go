// Package kube connects to the API server of a Kubernetes cluster.
//
// Load finds the server's address and the credentials: in a kubeconfig file if one is named, else in the
// Pod that the program runs in. It opens no connection. The configuration that it returns is not shared,
// so that callers may change it.
package kube

import (
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options say which API server is meant, and how often it may be asked.
type Options struct {
	// Kubeconfig is the path of a kubeconfig file; empty for the cluster of this Pod. Several paths, separated as in
	// PATH, are read as kubectl reads those of KUBECONFIG: the first to set a value counts, and a missing file is
	// empty.
	Kubeconfig string
	// Context is the context in Kubeconfig that is used; empty for its current one.
	Context string
	// QPS is how many requests per second may be sent, Burst how many at once. If QPS is 0, the
	// defaults of client-go apply; if it is negative there is no limit.
	QPS   float32
	Burst int
	// UserAgent names the program, such as pilot-discovery/1.2.3.
	UserAgent string
}

// Load returns how to connect to the API server. The error names the kubeconfig file, or says that this is
// not a Pod.
func Load(o Options) (*rest.Config, error) {
	c, err := load(o)
	if err != nil {
		return nil, err
	}
	c.QPS, c.Burst, c.UserAgent = o.QPS, o.Burst, o.UserAgent
	return c, nil
}

func load(o Options) (*rest.Config, error) {
	if o.Kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("find the Kubernetes API server: not in a Pod (KUBERNETES_SERVICE_HOST is not set): name a kubeconfig file")
		}
		if err != nil {
			return nil, fmt.Errorf("find the Kubernetes API server of this Pod: %w", err)
		}
		return c, nil
	}
	c, err := o.client().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", o.Kubeconfig, err)
	}
	return c, nil
}

// Namespace returns the namespace of the context in Kubeconfig, default if it names none.
func Namespace(o Options) (string, error) {
	name, _, err := o.client().Namespace()
	if err != nil {
		return "", fmt.Errorf("read kubeconfig %s: %w", o.Kubeconfig, err)
	}
	return name, nil
}

func (o Options) client() clientcmd.ClientConfig {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: o.Kubeconfig}
	if files := filepath.SplitList(o.Kubeconfig); len(files) > 1 {
		rules = &clientcmd.ClientConfigLoadingRules{Precedence: files}
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context})
}
