package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/join"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// maxRootsFile bounds the file of root certificates, in bytes.
const maxRootsFile = 1 << 20

func newVM(env map[string]string) *cobra.Command {
	c := &cobra.Command{
		Use:     "vm",
		Short:   "Let virtual machines join the mesh",
		Example: "  pilotctl vm join-token shop/legacy --stateDir /var/lib/pilothouse --address mesh.example.com:15012",
		Args:    usage(cobra.NoArgs),
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(inOneForm("a string for pilot-agent join", newJoinToken(env, "join-token", "vm join-token")))
	return c
}

// newJoinToken returns the command that makes join tokens, which is in two places: beside the other tokens, and with what
// is about virtual machines. full is its name with that of its parent.
func newJoinToken(env map[string]string, name, full string) *cobra.Command {
	c := &cobra.Command{
		Use:   name + " NAMESPACE/ACCOUNT",
		Short: "Print the string with which a machine joins the mesh",
		Long: `Print the string with which a machine joins the mesh as a service account: pilot-agent join, on the
machine, takes it. It has pilot-discovery's address, the root certificates of the mesh, a token, and what
the proxy says of itself.

The CA accepts the token from one machine (--uses), within an hour (--ttl), for its first certificate.
Keep the string secret until then: who uses it first gets the identity. Standard error says until when it
is valid and what is in it. pilotctl token join and pilotctl vm join-token are the same command.`,
		Example: `  pilotctl ` + full + ` shop/legacy --stateDir /var/lib/pilothouse --address mesh.example.com:15012
  pilotctl ` + full + ` shop/legacy -f workloadgroup.yaml --stateDir state --address 192.0.2.10:15012 | ssh vm pilot-agent join -`,
		Args: usage(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			v := cli.Read(c.Flags(), env, settings.PilotctlVMJoinToken)
			o := readJoinToken(v, env)
			if err := v.Err(); err != nil {
				return misuse{err}
			}
			if err := o.account(args[0]); err != nil {
				return misuse{err}
			}
			for _, name := range []string{"kubeconfig", "context"} {
				if o.stateDir != "" && c.Flags().Changed(name) {
					return misuse{fmt.Errorf("flag --%s: want it without --stateDir: the roots and the token are of the state folder or of a cluster", name)}
				}
			}
			b, err := o.bundle(c, time.Now())
			if err != nil {
				return err
			}
			text, err := join.Encode(b)
			if err != nil {
				return err
			}
			describe(c.ErrOrStderr(), b, o.uses)
			_, err = fmt.Fprintln(c.OutOrStdout(), text)
			return err
		},
	}
	cli.Add(c, settings.PilotctlVMJoinToken)
	return c
}

// joinTokenOptions are the options of a join token.
type joinTokenOptions struct {
	stateDir, file, meshFile string
	// kube is how to connect to the cluster, without stateDir; istio is the control plane's namespace.
	kube  kube.Options
	istio string
	// b has what is given.
	b      join.Bundle
	labels []string
	ttl    time.Duration
	uses   int
}

// readJoinToken reads settings.PilotctlVMJoinToken.
func readJoinToken(v *settings.Values, env map[string]string) joinTokenOptions {
	o := joinTokenOptions{
		kube:     kube.Options{Kubeconfig: kubeconfigOr(v.TextOr("kubeconfig", ""), env["HOME"]), Context: v.Text("context"), QPS: -1, UserAgent: "pilotctl/" + version},
		istio:    v.Text("istioNamespace"),
		stateDir: v.Text("stateDir"), file: v.Text("filename"), meshFile: v.Text("meshConfigFile"), labels: v.List("labels"), ttl: v.Duration("ttl"), uses: v.Int("uses"),
		b: join.Bundle{
			Discovery: v.Text("address"), ServerName: v.TextOr("serverName", ""), Group: v.Text("group"), TrustDomain: v.TextOr("trustDomain", ""),
			Cluster: v.Text("clusterID"), Network: v.TextOr("network", ""), Revision: v.Text("revision"),
		},
	}
	if _, given := v.Given("serverName"); !given {
		o.b.ServerName = "istiod" + revisionSuffix(o.b.Revision) + "." + o.istio + ".svc"
	}
	return o
}

// revisionSuffix is what the names of a revision's objects end with.
func revisionSuffix(revision string) string {
	if revision == "" || revision == "default" {
		return ""
	}
	return "-" + revision
}

// account reads NAMESPACE/ACCOUNT.
func (o *joinTokenOptions) account(text string) (err error) {
	o.b.Namespace, o.b.ServiceAccount, err = parseAccount(text)
	return err
}

// bundle makes the bundle, with a token that is valid from now.
func (o *joinTokenOptions) bundle(c *cobra.Command, now time.Time) (*join.Bundle, error) {
	b := o.b
	b.Labels = map[string]string{}
	proxy := map[string]any{}
	var from *joinCluster
	if o.stateDir == "" {
		var err error
		if from, err = o.openCluster(); err != nil {
			return nil, err
		}
	}
	name, text, err := o.meshConfig(c.Context(), from)
	if err != nil {
		return nil, err
	}
	if err := fromMesh(&b, proxy, name, text, c.ErrOrStderr()); err != nil {
		return nil, err
	}
	if name, text, err = o.group(c, from); err != nil {
		return nil, err
	}
	if text != nil {
		if err := fromGroup(&b, proxy, name, text); err != nil {
			return nil, err
		}
	}
	for _, l := range o.labels {
		name, value, ok := strings.Cut(l, "=")
		if !ok {
			return nil, misuse{fmt.Errorf("flag --labels: invalid label %q: want name=value", l)}
		}
		b.Labels[name] = value
	}
	if len(b.Labels) == 0 {
		b.Labels = nil
	}
	if len(proxy) > 0 {
		text, err := yaml.Marshal(proxy)
		if err != nil {
			return nil, err
		}
		b.ProxyConfig = string(text)
	}
	if from != nil {
		return &b, from.credentials(c.Context(), o, &b)
	}
	return &b, o.credentials(&b, now)
}

// credentials sets the roots and the token.
func (o *joinTokenOptions) credentials(b *join.Bundle, now time.Time) error {
	text, err := statefile.ReadOwn(filepath.Join(o.stateDir, "root-cert.pem"), maxRootsFile)
	if err != nil {
		return fmt.Errorf("read the root certificates, which pilot-discovery writes when it starts: %w", err)
	}
	if err := setRoots(b, text, o.stateDir); err != nil {
		return err
	}
	issuer, err := authn.FindIssuer(o.stateDir)
	if err != nil {
		return err
	}
	b.Token, b.Expires, err = issuer.IssueJoin(b.Namespace, b.ServiceAccount, o.uses, o.ttl, now)
	b.Expires = b.Expires.UTC().Truncate(time.Second)
	return err
}

// setRoots sets the roots, which are from somewhere.
func setRoots(b *join.Bundle, text []byte, from string) error {
	roots, err := pki.ParseBundle(text)
	if err != nil {
		return fmt.Errorf("read the root certificates in %s: %w", from, err)
	}
	for _, r := range roots {
		b.Roots = append(b.Roots, r.Raw)
	}
	return nil
}

// meshConfig returns the mesh configuration, of the file or the cluster, and where it is from; nil if there is none.
func (o *joinTokenOptions) meshConfig(ctx context.Context, from *joinCluster) (string, []byte, error) {
	if o.meshFile == "" {
		if from == nil {
			return "", nil, nil
		}
		name := config.MeshConfigMap + revisionSuffix(o.b.Revision)
		data, err := from.configMap(ctx, o.istio, name)
		return "ConfigMap " + o.istio + "/" + name, []byte(data[config.MeshKey]), err
	}
	text, err := readInput(o.meshFile, nil)
	if data, ok := configMap(text); ok && err == nil {
		text = []byte(data[config.MeshKey])
	}
	return o.meshFile, text, err
}

// fromMesh takes the trust domain and the default ProxyConfig of the mesh configuration.
func fromMesh(b *join.Bundle, proxy map[string]any, name string, text []byte, warnings io.Writer) error {
	if text == nil {
		b.TrustDomain = cmp.Or(b.TrustDomain, mesh.DefaultTrustDomain)
		return nil
	}
	var parsed inject.Options
	if err := setMesh(&parsed, name, string(text), warnings); err != nil {
		return err
	}
	b.TrustDomain = cmp.Or(b.TrustDomain, parsed.Mesh.GetTrustDomain(), mesh.DefaultTrustDomain)
	var m struct {
		DefaultConfig map[string]any `json:"defaultConfig"`
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	maps.Copy(proxy, m.DefaultConfig)
	delete(proxy, "discoveryAddress") // the machine's is that of --address
	return nil
}

// group returns the text with the WorkloadGroup and where it is from; nil if there is none.
func (o *joinTokenOptions) group(c *cobra.Command, from *joinCluster) (string, []byte, error) {
	switch {
	case o.file != "":
		text, err := readInput(o.file, c.InOrStdin())
		return o.file, text, err
	case o.b.Group == "" || from == nil:
		return "", nil, nil
	}
	text, err := from.workloadGroup(c.Context(), o.b.Namespace, o.b.Group)
	return "the cluster", text, err
}

// fromGroup takes the fields of the WorkloadGroup in a file.
func fromGroup(b *join.Bundle, proxy map[string]any, file string, text []byte) error {
	result := decode.Documents(file, text)
	for _, p := range result.Problems {
		if p.Severity == object.Error {
			return fmt.Errorf("%s: %w", file, p)
		}
	}
	var group *networking.WorkloadGroup
	var name, namespace string
	for _, o := range result.Objects {
		spec, ok := o.Spec.(*networking.WorkloadGroup)
		if !ok || b.Group != "" && b.Group != o.Name {
			continue
		}
		if group != nil {
			return misuse{fmt.Errorf("%s has the WorkloadGroups %s and %s: choose one by --group", file, name, o.Name)}
		}
		group, name, namespace = spec, o.Name, o.Namespace
	}
	switch account := group.GetTemplate().GetServiceAccount(); {
	case group == nil && b.Group != "":
		return fmt.Errorf("%s has no WorkloadGroup %s", file, b.Group)
	case group == nil:
		return fmt.Errorf("%s has no WorkloadGroup", file)
	case namespace != b.Namespace:
		return fmt.Errorf("the WorkloadGroup %s is in the namespace %s, and the machine's is %s", name, namespace, b.Namespace)
	case account != "" && account != b.ServiceAccount:
		return fmt.Errorf("the WorkloadGroup %s is of the service account %s, and the machine's is %s", name, account, b.ServiceAccount)
	}
	b.Group = name
	maps.Copy(b.Labels, group.GetMetadata().GetLabels())
	maps.Copy(b.Labels, group.GetTemplate().GetLabels())
	b.Network = cmp.Or(b.Network, group.GetTemplate().GetNetwork())
	if probe := group.GetProbe(); probe != nil && proxy["readinessProbe"] == nil {
		text, err := protojson.Marshal(probe)
		if err != nil {
			return err
		}
		var value any
		if err := json.Unmarshal(text, &value); err != nil {
			return err
		}
		proxy["readinessProbe"] = value
	}
	return nil
}

// describe says what is in the string, on standard error: standard output is often a pipe.
func describe(w io.Writer, b *join.Bundle, uses int) {
	fmt.Fprintf(w, "%s, %s until %s, at %s", b.Identity(), number(uses, "machine"), b.Expires.Format(time.RFC3339), b.Discovery)
	if host, _, err := net.SplitHostPort(b.Discovery); err == nil && b.ServerName != "" && b.ServerName != host {
		fmt.Fprintf(w, " (as %s)", b.ServerName)
	}
	if b.Group != "" {
		fmt.Fprintf(w, ", WorkloadGroup %s", b.Group)
	}
	fmt.Fprintln(w, ". Keep it secret. On the machine, as root: pilot-agent join -")
}

// number is n things in words.
func number(n int, what string) string {
	if n == 1 {
		return "one " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
