package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// maxInput bounds a file or answer that is read, in bytes.
const maxInput = yamltree.MaxBytes

func newInject(env map[string]string) *cobra.Command {
	c := &cobra.Command{
		Use:   "inject -f FILE",
		Short: "Add the proxy to the Pods of a file, as the webhook does",
		Long: `Add the proxy to the Pods of a file, as the webhook does when Pods are created.

FILE has any number of YAML documents or JSON values: Pods, and Deployments, StatefulSets,
DaemonSets, ReplicaSets, ReplicationControllers, Jobs and CronJobs, whose Pod template is
changed, and lists of these. The result goes to standard output in the form of the input.
All other documents, and those whose Pods get no proxy, stay as they are, byte by byte; an
injected document loses its comments. Injecting twice changes nothing.

Whether a Pod gets a proxy, and how, its labels and annotations say: sidecar.istio.io/inject,
proxy.istio.io/config and others (docs/injection.md). Labels of namespaces do not count:
who names a file wants it injected. Standard error says what was left alone, and what was
accepted and has no effect.

ProxyConfig objects count as in the webhook: those of FILE, and with --kubeconfig those of the
cluster.

Without files or a cluster, the built-in templates and values apply. --injectConfigFile and
--meshConfigFile take the output of kubectl get configmap -o yaml. With --kubeconfig the
ConfigMaps of a cluster are read; files have priority. The exit code is 1 if a document has a
mistake; then nothing is written to standard output.`,
		Example: "  pilotctl inject -f shop.yaml | kubectl apply -f -\n" +
			"  pilotctl inject -f shop.yaml --kubeconfig ~/.kube/config --revision canary\n" +
			"  kubectl get configmap -n istio-system istio-sidecar-injector -o yaml > injector.yaml\n" +
			"  pilotctl inject -f - --injectConfigFile injector.yaml < shop.yaml",
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), env, settings.PilotctlInject)
			o := readInject(v)
			if err := v.Err(); err != nil {
				return misuse{err}
			}
			if o.kube.Kubeconfig == "" {
				for _, name := range []string{"context", "istioNamespace"} {
					if c.Flags().Changed(name) {
						return misuse{fmt.Errorf("flag --%s: want --kubeconfig, too", name)}
					}
				}
			}
			return o.run(c.Context(), c.InOrStdin(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	cli.Add(c, settings.PilotctlInject)
	return c
}

// injectOptions are the options of pilotctl inject.
type injectOptions struct {
	file, injector, values, mesh string
	kube                         kube.Options
	istioNamespace, revision     string
	namespace                    string
	native                       inject.Native
}

// readInject reads settings.PilotctlInject.
func readInject(v *settings.Values) injectOptions {
	return injectOptions{
		file: v.Text("filename"), injector: v.Text("injectConfigFile"), values: v.Text("valuesFile"), mesh: v.Text("meshConfigFile"),
		kube:           kube.Options{Kubeconfig: v.Text("kubeconfig"), Context: v.Text("context"), UserAgent: "pilotctl/" + version},
		istioNamespace: v.Text("istioNamespace"), revision: v.TextOr("revision", ""),
		namespace: v.Text("namespace"), native: inject.Native(v.Enum("nativeSidecars")),
	}
}

func (o injectOptions) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	text, err := readInput(o.file, stdin)
	if err != nil {
		return err
	}
	options := inject.Options{Revision: o.revision, Native: o.native}
	r := inject.Request{Namespace: o.namespace}
	var objects []object.Object
	if o.kube.Kubeconfig != "" {
		if objects, err = o.fromCluster(ctx, &options, &r, stderr); err != nil {
			return err
		}
	}
	if err := o.fromFiles(&options, stderr); err != nil {
		return err
	}
	c, err := inject.New(options)
	if err != nil {
		return err
	}
	if r.ProxyConfigs, err = o.proxyConfigs(text, objects, c.Revision()); err != nil {
		return err
	}
	out, notes, err := c.Documents(text, r)
	if err != nil {
		return fmt.Errorf("%s: %w", o.name(), err)
	}
	for _, n := range notes {
		fmt.Fprintf(stderr, "%s: %s\n", o.name(), printable.Escape(n.String()))
	}
	if _, err := stdout.Write(out); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// name is the input in messages.
func (o injectOptions) name() string {
	if o.file == "-" {
		return "standard input"
	}
	return o.file
}

// readInput reads a file, or standard input if its path is "-".
func readInput(path string, stdin io.Reader) ([]byte, error) {
	if path == "-" {
		return readBounded("standard input", stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it is only read
	return readBounded(path, f)
}

func readBounded(name string, r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(text) > maxInput {
		return nil, fmt.Errorf("read %s: more than %d bytes", name, maxInput)
	}
	return text, nil
}

// fromFiles sets what the files say, over what is set.
func (o injectOptions) fromFiles(options *inject.Options, stderr io.Writer) error {
	if o.injector != "" {
		text, err := readInput(o.injector, nil)
		if err != nil {
			return err
		}
		options.Config, options.Values = string(text), ""
		if data, ok := configMap(text); ok {
			if _, ok := data[inject.ConfigKey]; !ok {
				return fmt.Errorf("%s: a ConfigMap without the key %s", o.injector, inject.ConfigKey)
			}
			options.Config, options.Values = data[inject.ConfigKey], data[inject.ValuesKey]
		}
	}
	if o.values != "" {
		text, err := readInput(o.values, nil)
		if err != nil {
			return err
		}
		options.MoreValues = string(text)
	}
	if o.mesh == "" {
		return nil
	}
	text, err := readInput(o.mesh, nil)
	if err != nil {
		return err
	}
	if data, ok := configMap(text); ok {
		if _, ok := data[config.MeshKey]; !ok {
			return fmt.Errorf("%s: a ConfigMap without the key %s", o.mesh, config.MeshKey)
		}
		text = []byte(data[config.MeshKey])
	}
	return setMesh(options, o.mesh, string(text), stderr)
}

// setMesh parses mesh configuration.
func setMesh(options *inject.Options, name, text string, stderr io.Writer) error {
	m, verdicts := config.MeshConfig(text)
	var bad []error
	for _, v := range verdicts {
		switch {
		case m == nil && v.Severity == object.Error:
			bad = append(bad, fmt.Errorf("%s: %s: %s", name, v.Field, v.Text))
		case m != nil && stderr != nil:
			fmt.Fprintf(stderr, "%s: %s: %s\n", name, printable.Escape(v.Field), printable.Escape(v.Text))
		}
	}
	options.Mesh = m
	return errors.Join(bad...)
}

// configMap returns the data of a ConfigMap in YAML or JSON; false if the text is something else.
func configMap(text []byte) (map[string]string, bool) {
	docs := yamltree.Parse(text, json.Valid(text))
	if len(docs) != 1 || docs[0].Root == nil || docs[0].Root.Get("kind").Str() != "ConfigMap" {
		return nil, false
	}
	var m struct {
		Data map[string]string `json:"data"`
	}
	if yamltree.Into(docs[0].Root, "", &m) != nil {
		return nil, false
	}
	return m.Data, true
}

// fromCluster reads the ConfigMaps of a cluster and the versions of its kubelets, and returns its ProxyConfig objects.
func (o injectOptions) fromCluster(ctx context.Context, options *inject.Options, r *inject.Request, stderr io.Writer) ([]object.Object, error) {
	cluster, err := kube.Load(o.kube)
	if err != nil {
		return nil, err
	}
	client, err := kube.NewReader(cluster)
	if err != nil {
		return nil, err
	}
	suffix := ""
	if o.revision != "" && o.revision != "default" {
		suffix = "-" + o.revision
	}
	read := func(name string) (map[string]string, error) {
		var m struct {
			Data map[string]string `json:"data"`
		}
		err := client.Get(ctx, &m, "api", "v1", "namespaces", o.istioNamespace, "configmaps", name)
		return m.Data, err
	}
	if o.injector == "" {
		data, err := read(inject.ConfigMapName + suffix)
		if err != nil {
			return nil, err
		}
		options.Config, options.Values = data[inject.ConfigKey], data[inject.ValuesKey]
	}
	if o.mesh == "" {
		data, err := read(config.MeshConfigMap + suffix)
		if err != nil {
			return nil, err
		}
		if err := setMesh(options, "ConfigMap "+config.MeshConfigMap+suffix, data[config.MeshKey], nil); err != nil {
			return nil, err
		}
	}
	var nodes struct {
		Items []struct {
			Status struct {
				NodeInfo struct {
					Kubelet string `json:"kubeletVersion"`
				} `json:"nodeInfo"`
			} `json:"status"`
		} `json:"items"`
	}
	if err := client.Get(ctx, &nodes, "api", "v1", "nodes"); err != nil {
		return nil, err
	}
	for _, n := range nodes.Items {
		r.Kubelets = append(r.Kubelets, n.Status.NodeInfo.Kubelet)
	}
	return clusterProxyConfigs(ctx, client, stderr)
}
