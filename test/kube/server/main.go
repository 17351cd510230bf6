// Command server is the programs of a small Kubernetes control plane in one binary, for tests.
//
// The first argument chooses the program: kube-apiserver, kube-controller-manager or kube-scheduler, with
// the flags of the original, or etcd, with two flags of its own. It is a module of its own, so that its
// several hundred dependencies stay out of the product's go.mod; hack/kube.sh builds it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	_ "time/tzdata" // time zones of CronJobs, on machines without a database of them

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of client-go
	_ "k8s.io/component-base/metrics/prometheus/version"  // the metric with the version
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// commands run a program with os.Args and return its exit code.
var commands = map[string]func() int{
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(controllers.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
}

func main() {
	name := ""
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	if name == "etcd" {
		if err := etcd(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "etcd:", err)
			os.Exit(1)
		}
		return
	}
	command, known := commands[name]
	if !known {
		fmt.Fprintln(os.Stderr, "usage: server etcd|kube-apiserver|kube-controller-manager|kube-scheduler [flags]")
		os.Exit(2)
	}
	os.Args = os.Args[1:]
	os.Exit(command())
}

// etcd runs an etcd of one member until SIGTERM or SIGINT.
func etcd(args []string) error {
	flags := flag.NewFlagSet("etcd", flag.ContinueOnError)
	dir := flags.String("data-dir", "", "directory of the data")
	socket := flags.String("socket", "", "absolute path of the Unix socket for clients")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" || !filepath.IsAbs(*socket) {
		return errors.New("want -data-dir, and -socket with an absolute path")
	}
	client := url.URL{Scheme: "unix", Path: *socket}
	// What is advertised needs a host and a port; nobody connects to it. The peers' URL is also listened at: it is a socket of
	// this name in the working directory.
	advertised, peer := url.URL{Scheme: "unix", Host: "localhost:2379"}, url.URL{Scheme: "unix", Host: "localhost:2380"}
	c := embed.NewConfig()
	c.Dir = *dir
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{advertised}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.Name + "=" + peer.String()
	c.UnsafeNoFsync = true // the data ends with the test
	c.LogLevel = "error"

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	server, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer server.Close()
	select {
	case <-stop:
		return nil
	case err := <-server.Err():
		return err
	}
}
