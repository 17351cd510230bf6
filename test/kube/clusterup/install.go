package clusterup

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pilothouse/pilothouse/test/require"
)

// Files are the paths of the packed charts, and of the program that installs them.
type Files struct{ Control, Gateway, Remote, Helm string }

// chartVersion is the version of the packed charts.
const chartVersion = "0.0.0-local"

// Tag is that of the images of the packed charts.
const Tag = "v" + chartVersion

// The version of the charts that hack/before.sh packs, and the tag of their images.
const (
	versionBefore = "0.0.0-before"
	TagBefore     = "v" + versionBefore
)

// Build packs the charts into dir, as a release does, and builds the program of the module test/charts that installs
// them. It needs the Go command and the sources.
func Build(ctx context.Context, dir string) (Files, error) {
	root, err := require.Repository()
	if err != nil {
		return Files{}, err
	}
	dist := filepath.Join(dir, "charts")
	f := Files{
		Control: filepath.Join(dist, "pilothouse-"+chartVersion+".tgz"), Gateway: filepath.Join(dist, "gateway-"+chartVersion+".tgz"),
		Remote: filepath.Join(dist, "remote-"+chartVersion+".tgz"),
		// Here, where it is linked again only if it has changed.
		Helm: filepath.Join(root, "bin", "helm"),
	}
	for _, line := range [][]string{
		{"run", "./hack/release", "-charts", "-version", Tag, "-epoch", "1700000000", "-o", dist},
		{"build", "-C", "test/charts", "-o", f.Helm, "./helm"},
	} {
		if err := runIn(ctx, root, "go", line...); err != nil {
			return f, err
		}
	}
	return f, nil
}

// Install installs a packed chart with values in YAML, which may be empty, as "helm install" does.
func (c *Cluster) Install(ctx context.Context, release, namespace, chart, values string) error {
	return c.helm(ctx, "install", release, namespace, chart, values)
}

// Upgrade gives a release another chart or other values, as "helm upgrade" does; those that it had are not used.
func (c *Cluster) Upgrade(ctx context.Context, release, namespace, chart, values string) error {
	return c.helm(ctx, "upgrade", release, namespace, chart, values)
}

// Rollback gives a release the chart and the values that it had before the last change, as "helm rollback" does.
func (c *Cluster) Rollback(ctx context.Context, release, namespace string) error {
	return runIn(ctx, c.o.Dir, c.o.Files.Helm, "rollback", release, "--namespace", namespace, "--kubeconfig", c.Kubeconfig())
}

func (c *Cluster) helm(ctx context.Context, command, release, namespace, chart, values string) error {
	file := filepath.Join(c.o.Dir, release+"-values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		return fmt.Errorf("write the values: %w", err)
	}
	return runIn(ctx, c.o.Dir, c.o.Files.Helm, command, release, chart, "--namespace", namespace, "--values", file, "--kubeconfig", c.Kubeconfig())
}

// Control is the path of the packed chart pilothouse.
func (c *Cluster) Control() string { return c.o.Files.Control }

// ControlBefore is the path of the packed chart pilothouse of the version before.
func (c *Cluster) ControlBefore() string {
	return filepath.Join(c.o.Before, "charts", "pilothouse-"+versionBefore+".tgz")
}

// Gateway is the path of the packed chart gateway.
func (c *Cluster) Gateway() string { return c.o.Files.Gateway }

// runIn runs a program; the error has what it printed.
func runIn(ctx context.Context, dir, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(program), args[0], err, bytes.TrimSpace(out))
	}
	return nil
}

// Kubeconfig is the path of the administrator's kubeconfig file.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.o.Dir, "kubeconfig") }

func (c *Cluster) writeKubeconfig() error {
	encode := base64.StdEncoding.EncodeToString
	text := fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: cluster, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: admin, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: admin, context: {cluster: cluster, user: admin}}]
current-context: admin
`, c.Config.Host, encode(c.Config.CAData), encode(c.Config.CertData), encode(c.Config.KeyData))
	if err := os.WriteFile(c.Kubeconfig(), text, 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig file: %w", err)
	}
	return nil
}
