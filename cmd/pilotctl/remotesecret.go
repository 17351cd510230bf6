package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

func newRemoteSecret(f *flags) *cobra.Command {
	c := &cobra.Command{
		Use:   "remote-secret",
		Short: "Print the Secret by which a control plane elsewhere reads a cluster",
		Long: `Print the Secret by which a control plane elsewhere reads a cluster.

It has a kubeconfig for the cluster with a token of the service account that the chart
remote makes, which is valid until the Secret with it there is deleted. Apply it in the
control plane's namespace of its own cluster. Keep it secret.`,
		Example: "  pilotctl remote-secret --context two --name two | kubectl apply --context one -f -",
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			o, err := f.readRemoteSecret(cli.Read(c.Flags(), f.env, settings.PilotctlRemoteSecret))
			if err != nil {
				return err
			}
			text, err := o.print(c)
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(text)
			return err
		},
	}
	cli.Add(c, settings.PilotctlRemoteSecret)
	return c
}

// remoteSecretOptions are the options of a Secret for a remote cluster.
type remoteSecretOptions struct {
	kube kube.Options
	// istio is the namespace of the account, namespace that of the Secret; in is the Secret with the token.
	istio, namespace, name, server, serverName, account, in string
}

// readRemoteSecret reads settings.PilotctlRemoteSecret.
func (f *flags) readRemoteSecret(v *settings.Values) (remoteSecretOptions, error) {
	o := remoteSecretOptions{
		kube:  kube.Options{Kubeconfig: kubeconfigOr(v.TextOr("kubeconfig", ""), f.env["HOME"]), Context: v.Text("context"), QPS: -1, UserAgent: "pilotctl/" + version},
		istio: v.Text("istioNamespace"), namespace: v.TextOr("namespace", ""), name: v.TextOr("name", ""), server: v.TextOr("server", ""),
		serverName: v.TextOr("tls-server-name", ""), account: v.Text("service-account"), in: v.TextOr("secret-name", ""),
	}
	if err := v.Err(); err != nil {
		return o, misuse{err}
	}
	if o.kube.Kubeconfig == "" {
		return o, misuse{errors.New("want a cluster: --kubeconfig, KUBECONFIG or ~/.kube/config")}
	}
	return o, nil
}

// print returns the Secret.
func (o remoteSecretOptions) print(c *cobra.Command) ([]byte, error) {
	ctx := c.Context()
	config, err := kube.Load(o.kube)
	if err == nil && config.Insecure {
		err = errors.New("the kubeconfig skips the verification of the API server, which the control plane refuses: want certificate-authority-data")
	}
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}
	if err != nil {
		return nil, err
	}
	if o.name == "" {
		if o.name, err = kube.ClusterUID(ctx, config); err != nil {
			return nil, err
		}
	}
	token, err := kube.ReaderToken(ctx, kube.ReaderOptions{
		Config: config, Namespace: o.istio, Account: o.account, Secret: cmp.Or(o.in, o.account+"-istio-remote-secret-token"),
	})
	if err != nil {
		return nil, err
	}
	text, err := kube.RemoteSecret(kube.RemoteSecretOptions{
		Cluster: o.name, Namespace: cmp.Or(o.namespace, o.istio), Server: cmp.Or(o.server, config.Host),
		ServerName: cmp.Or(o.serverName, config.ServerName), CA: config.CAData, Token: token,
	})
	if err != nil {
		return nil, err
	}
	return append([]byte(fmt.Sprintf("# The cluster %s, for the control plane's namespace in its own cluster. It has a token: keep it secret.\n", o.name)), text...), nil
}
