package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pilothouse/pilothouse/internal/join"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The ConfigMap with the roots, which is in every namespace.
const (
	rootsConfigMap = "istio-ca-root-cert"
	rootsKey       = "root-cert.pem"
)

// leastTTL is the least life of a token that Kubernetes makes.
const leastTTL = 10 * time.Minute

// joinCluster is the cluster of the control plane.
type joinCluster struct {
	client kubernetes.Interface
	reader *kube.Reader
}

// openCluster connects to the cluster of the kubeconfig. It sends no request.
func (o *joinTokenOptions) openCluster() (*joinCluster, error) {
	if o.kube.Kubeconfig == "" {
		return nil, misuse{errors.New("want --stateDir, the state folder of a pilot-discovery with --configDir, or a cluster: --kubeconfig, KUBECONFIG or ~/.kube/config")}
	}
	if o.uses != 1 {
		return nil, misuse{errors.New("flag --uses: a token of Kubernetes is good for one machine")}
	}
	if o.ttl < leastTTL {
		return nil, misuse{fmt.Errorf("flag --ttl: %s: a token of Kubernetes is valid for at least %s", o.ttl, leastTTL)}
	}
	config, err := kube.Load(o.kube)
	if err != nil {
		return nil, err
	}
	c := &joinCluster{}
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API server: %w", err)
	}
	c.reader, err = kube.NewReader(config)
	return c, err
}

// configMap returns the data of a ConfigMap; nil if there is none.
func (c *joinCluster) configMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	m, err := c.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the ConfigMap %s/%s: %w", namespace, name, err)
	}
	return m.Data, nil
}

// workloadGroup returns a WorkloadGroup as JSON.
func (c *joinCluster) workloadGroup(ctx context.Context, namespace, name string) ([]byte, error) {
	var text json.RawMessage
	err := c.reader.Get(ctx, &text, "apis", "networking.istio.io", "v1", "namespaces", namespace, "workloadgroups", name)
	if err != nil {
		return nil, fmt.Errorf("read the WorkloadGroup: %w", err)
	}
	return text, nil
}

// credentials sets the roots and the token, which the cluster makes.
func (c *joinCluster) credentials(ctx context.Context, o *joinTokenOptions, b *join.Bundle) error {
	data, err := c.configMap(ctx, o.istio, rootsConfigMap)
	if err != nil {
		return err
	}
	from := "the ConfigMap " + o.istio + "/" + rootsConfigMap
	if data[rootsKey] == "" {
		return fmt.Errorf("%s has no %s: pilot-discovery writes it when it leads; is -i right?", from, rootsKey)
	}
	if err := setRoots(b, []byte(data[rootsKey]), from); err != nil {
		return err
	}
	seconds := int64(o.ttl / time.Second)
	r, err := c.client.CoreV1().ServiceAccounts(b.Namespace).CreateToken(ctx, b.ServiceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{mesh.JoinAudience}, ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("request a token of the ServiceAccount %s/%s: %w", b.Namespace, b.ServiceAccount, err)
	}
	b.Token, b.Expires = r.Status.Token, r.Status.ExpirationTimestamp.UTC()
	return nil
}
