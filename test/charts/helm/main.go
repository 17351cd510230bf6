// Helm installs a chart with Helm's library, as "helm install" does, for programs of the main module.
//
//	helm install RELEASE CHART.tgz --namespace NAMESPACE [--values FILE] [--kubeconfig FILE]
//
// The namespace is made where it does not exist. It returns when the objects are stored, as Helm does without --wait.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	helmkube "helm.sh/helm/v4/pkg/kube"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 3 || args[0] != "install" {
		return errors.New("want: install RELEASE CHART.tgz [--namespace NAMESPACE] [--values FILE] [--kubeconfig FILE]")
	}
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	namespace := flags.String("namespace", "default", "namespace of the release")
	valuesFile := flags.String("values", "", "file with values, YAML")
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig file")
	if err := flags.Parse(args[3:]); err != nil {
		return err
	}
	chart, err := loader.LoadFile(args[2])
	if err != nil {
		return fmt.Errorf("load %s: %w", args[2], err)
	}
	values := map[string]any{}
	if *valuesFile != "" {
		text, err := os.ReadFile(*valuesFile)
		if err != nil {
			return fmt.Errorf("read the values: %w", err)
		}
		if err := yaml.Unmarshal(text, &values); err != nil {
			return fmt.Errorf("parse %s: %w", *valuesFile, err)
		}
	}
	getter := genericclioptions.NewConfigFlags(false).WithWrapConfigFn(func(c *rest.Config) *rest.Config {
		c.QPS = -1
		return c
	})
	getter.KubeConfig, getter.Namespace = kubeconfig, namespace
	config := action.NewConfiguration()
	if err := config.Init(getter, *namespace, "secret"); err != nil {
		return err
	}
	i := action.NewInstall(config)
	i.ReleaseName, i.Namespace, i.CreateNamespace = args[1], *namespace, true
	i.WaitStrategy, i.Timeout = helmkube.HookOnlyStrategy, 5*time.Minute
	_, err = i.RunWithContext(ctx, chart, values)
	return err
}
