package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// ReaderAccount is the ServiceAccount by which a control plane reads a remote cluster.
const ReaderAccount = "istio-reader-service-account"

// RemoteSecretOptions say what a Secret that names a remote cluster has.
type RemoteSecretOptions struct {
	// Cluster is the cluster's ID; Namespace is that of the Secret.
	Cluster, Namespace string
	// Server is the URL of the API server as the control plane reaches it, ServerName the name in its certificate if it
	// is not that of the URL, CA the roots that verify it; empty for those of the control plane's system.
	Server, ServerName string
	CA                 []byte
	Token              string
}

// RemoteSecret returns the Secret by which a control plane reads a cluster, as YAML, with a kubeconfig that Parse
// accepts.
func RemoteSecret(o RemoteSecretOptions) ([]byte, error) {
	name := "istio-remote-secret-" + o.Cluster
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return nil, fmt.Errorf("invalid name %q of a cluster: %s is no name of a Secret: want lower case letters, digits, hyphens and dots", o.Cluster, name)
	}
	c := clientcmdapi.NewConfig()
	c.Clusters[o.Cluster] = &clientcmdapi.Cluster{Server: o.Server, TLSServerName: o.ServerName, CertificateAuthorityData: o.CA}
	c.AuthInfos[o.Cluster] = &clientcmdapi.AuthInfo{Token: o.Token}
	c.Contexts[o.Cluster] = &clientcmdapi.Context{Cluster: o.Cluster, AuthInfo: o.Cluster}
	c.CurrentContext = o.Cluster
	kubeconfig, err := clientcmd.Write(*c)
	if err != nil {
		return nil, fmt.Errorf("encode the kubeconfig: %w", err)
	}
	if _, err := Parse(kubeconfig, Options{}); err != nil {
		return nil, fmt.Errorf("the control plane would refuse the kubeconfig: it %w", err)
	}
	return yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata": map[string]any{
			"name": name, "namespace": o.Namespace,
			"labels":      map[string]string{"istio/multiCluster": "true"},
			"annotations": map[string]string{"networking.istio.io/cluster": o.Cluster},
		},
		"stringData": map[string]string{o.Cluster: string(kubeconfig)},
	})
}

// ReaderOptions say whose token is read, and where.
type ReaderOptions struct {
	Config *rest.Config
	// Namespace and Account are those of the ServiceAccount. Secret is the name of the Secret with its token, which is
	// created if there is none.
	Namespace, Account, Secret string
}

// tokenWait is how long a cluster may take to write the token of a new Secret.
const tokenWait = 30 * time.Second

// ReaderToken returns a token of a ServiceAccount that is valid until its Secret is deleted.
func ReaderToken(ctx context.Context, o ReaderOptions) (string, error) {
	client, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return "", fmt.Errorf("connect to the Kubernetes API server: %w", err)
	}
	if _, err := client.CoreV1().ServiceAccounts(o.Namespace).Get(ctx, o.Account, metav1.GetOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return "", fmt.Errorf("there is no ServiceAccount %s/%s: install the chart remote, or name another one with --service-account and --istioNamespace", o.Namespace, o.Account)
		}
		return "", fmt.Errorf("read the ServiceAccount: %w", err)
	}
	secrets := client.CoreV1().Secrets(o.Namespace)
	_, err = secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: o.Secret, Annotations: map[string]string{corev1.ServiceAccountNameKey: o.Account}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("create the Secret %s/%s for the token: %w", o.Namespace, o.Secret, err)
	}
	token := ""
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, tokenWait, true, func(ctx context.Context) (bool, error) {
		s, err := secrets.Get(ctx, o.Secret, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if s.Type != corev1.SecretTypeServiceAccountToken || s.Annotations[corev1.ServiceAccountNameKey] != o.Account {
			return false, fmt.Errorf("it is not one for a token of %s: name another with --secret-name", o.Account)
		}
		token = string(s.Data[corev1.ServiceAccountTokenKey])
		return token != "", nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("the cluster has written no token for %s", tokenWait)
	}
	if err != nil {
		return "", fmt.Errorf("read the token in the Secret %s/%s: %w", o.Namespace, o.Secret, err)
	}
	return token, nil
}

// ClusterUID returns what identifies a cluster: the UID of its namespace kube-system.
func ClusterUID(ctx context.Context, config *rest.Config) (string, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", fmt.Errorf("connect to the Kubernetes API server: %w", err)
	}
	ns, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read the UID of the cluster, or give its name with --name: %w", err)
	}
	return string(ns.UID), nil
}
