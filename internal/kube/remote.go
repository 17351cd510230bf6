package kube

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// InsecureOptions are what a kubeconfig of a Secret may have only if it is allowed
// (PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS): programs that are run, and files that are read, where the control
// plane runs, and connections without verification of the server.
var InsecureOptions = []string{"exec", "authProvider", "tokenFile", "clientCertificate", "clientKey", "certificateAuthority", "insecureSkipTLSVerify"}

// Parse returns how to connect with the current context of a kubeconfig that is not the control plane's own. It refuses
// what InsecureOptions has and allowed has not, and servers that are not reached by TLS. Errors have nothing of the
// kubeconfig but names of fields.
func Parse(kubeconfig []byte, o Options, allowed ...string) (*rest.Config, error) {
	file, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, errors.New("is not a kubeconfig: want one as kubectl config view --flatten --minify --raw prints it") // the error may quote it
	}
	current := file.Contexts[file.CurrentContext]
	if current == nil {
		return nil, errors.New("has no current context: set current-context to one of its contexts")
	}
	cluster, user := file.Clusters[current.Cluster], file.AuthInfos[current.AuthInfo]
	switch {
	case cluster == nil:
		return nil, errors.New("has no cluster for its current context")
	case user == nil:
		return nil, errors.New("has no user for its current context")
	}
	if u, err := url.Parse(cluster.Server); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("invalid server: want a URL that begins with https://")
	}
	for _, name := range InsecureOptions {
		if has(name, cluster, user) && !slices.Contains(allowed, name) {
			return nil, fmt.Errorf("uses %s, which is not allowed: %s, or allow it with PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS=%s", name, remedies[name], name)
		}
	}
	c, err := clientcmd.NewNonInteractiveClientConfig(*file, file.CurrentContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, errors.New("cannot be used: " + reasonOf(err))
	}
	c.QPS, c.Burst, c.UserAgent = o.QPS, o.Burst, o.UserAgent
	if _, err := rest.HTTPClientFor(c); err != nil {
		return nil, errors.New("has credentials or certificates that cannot be used: want PEM in base64")
	}
	return c, nil
}

// remedies say what to have instead of each insecure option.
var remedies = map[string]string{
	"exec": "give the user a token", "authProvider": "give the user a token", "tokenFile": "put the token into the kubeconfig",
	"clientCertificate": "put client-certificate-data into the kubeconfig", "clientKey": "put client-key-data into the kubeconfig",
	"certificateAuthority": "put certificate-authority-data into the kubeconfig", "insecureSkipTLSVerify": "put certificate-authority-data into the kubeconfig",
}

func has(name string, c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) bool {
	switch name {
	case "exec":
		return u.Exec != nil
	case "authProvider":
		return u.AuthProvider != nil
	case "tokenFile":
		return u.TokenFile != ""
	case "clientCertificate":
		return u.ClientCertificate != ""
	case "clientKey":
		return u.ClientKey != ""
	case "certificateAuthority":
		return c.CertificateAuthority != ""
	case "insecureSkipTLSVerify":
		return c.InsecureSkipTLSVerify
	}
	panic("kube: unknown option " + name)
}

// reasonOf is the first line of an error of clientcmd, which names what is missing and not what is there.
func reasonOf(err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}
