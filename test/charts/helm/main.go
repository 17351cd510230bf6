// Helm installs, upgrades and rolls back charts with Helm's library, for programs of the main module.
//
//	helm install RELEASE CHART.tgz --namespace NAMESPACE [--values FILE] [--kubeconfig FILE]
//	helm upgrade RELEASE CHART.tgz --namespace NAMESPACE [--values FILE] [--kubeconfig FILE]
//	helm rollback RELEASE --namespace NAMESPACE [--kubeconfig FILE]
//
// An installation makes the namespace where it does not exist. An upgrade uses no values of the release before. A
// rollback goes back to the revision before the last one. All return when the objects are stored, as "helm" does without --wait.
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
	named := map[string]int{"install": 2, "upgrade": 2, "rollback": 1}
	if len(args) == 0 || named[args[0]] == 0 || len(args) <= named[args[0]] {
		return errors.New("want: install|upgrade RELEASE CHART.tgz [--namespace NAMESPACE] [--values FILE] [--kubeconfig FILE], or rollback RELEASE [--namespace NAMESPACE] [--kubeconfig FILE]")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	namespace := flags.String("namespace", "default", "namespace of the release")
	valuesFile := flags.String("values", "", "file with values, YAML")
	kubeconfig := flags.String("kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig file")
	if err := flags.Parse(args[1+named[args[0]]:]); err != nil {
		return err
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
	const most = 5 * time.Minute
	if args[0] == "rollback" {
		r := action.NewRollback(config)
		r.WaitStrategy, r.Timeout = helmkube.HookOnlyStrategy, most
		return r.Run(args[1])
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
	if args[0] == "upgrade" {
		u := action.NewUpgrade(config)
		u.Namespace, u.ResetValues = *namespace, true
		u.WaitStrategy, u.Timeout = helmkube.HookOnlyStrategy, most
		_, err = u.RunWithContext(ctx, args[1], chart, values)
		return err
	}
	i := action.NewInstall(config)
	i.ReleaseName, i.Namespace, i.CreateNamespace = args[1], *namespace, true
	i.WaitStrategy, i.Timeout = helmkube.HookOnlyStrategy, most
	_, err = i.RunWithContext(ctx, chart, values)
	return err
}
