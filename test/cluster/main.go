// Cluster runs a Kubernetes control plane for tests of other modules: it writes an administrator's kubeconfig file, and runs until its standard input ends.
//
// The file's path is the first argument, all others are flags of the API server. When the control plane is ready, the
// program prints "ready".
package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	kubetest "github.com/pilothouse/pilothouse/test/kube"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("want the path of the kubeconfig file to write, and flags of the API server")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // however it ends
		cancel()
	}()
	c, err := kubetest.Launch(ctx, kubetest.Options{APIServerFlags: args[1:]})
	if err != nil {
		return err
	}
	if err := os.WriteFile(args[0], kubeconfig(c), 0o600); err != nil {
		return errors.Join(err, c.Stop())
	}
	fmt.Println("ready")
	<-ctx.Done()
	return c.Stop()
}

// kubeconfig is that of the cluster's administrator.
func kubeconfig(c *kubetest.Cluster) []byte {
	encode := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: admin, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
`, c.Config.Host, encode(c.Config.CAData), encode(c.Config.CertData), encode(c.Config.KeyData))
}
