package kubetest

import (
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
)

// Names of the programs, which are also those of their log files.
const (
	etcdName        = "etcd"
	apiServerName   = "kube-apiserver"
	controllersName = "kube-controller-manager"
	schedulerName   = "kube-scheduler"
)

// Issuer is the issuer of ServiceAccounts' tokens, and the audience of those for the API server.
const Issuer = "https://kubernetes.default.svc.cluster.local"

// Controllers are the controllers of the controller manager that a mesh meets: what makes Pods of workloads,
// endpoints of Services, and ServiceAccounts and the root certificate in namespaces, and what removes them again.
var Controllers = []string{
	"clusterrole-aggregation-controller", "cronjob-controller", "daemonset-controller", "deployment-controller", "disruption-controller",
	"endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller", "garbage-collector-controller",
	"job-controller", "namespace-controller", "pod-garbage-collector-controller", "replicaset-controller",
	"root-ca-certificate-publisher-controller", "service-cidr-controller", "serviceaccount-controller",
	"serviceaccount-token-controller", "statefulset-controller", "ttl-after-finished-controller",
}

// ServiceCIDRs are the ranges of ClusterIPs: Services may be dual-stack.
var ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}

// serverHosts are the names and addresses at which clients in Pods know the API server.
func serverHosts() []string {
	return []string{
		"kubernetes.default.svc", "kubernetes", "kubernetes.default", "kubernetes.default.svc.cluster.local", "localhost",
		"127.0.0.1", "::1", ServiceCIDRs[0].Addr().Next().String(), ServiceCIDRs[1].Addr().Next().String(),
	}
}

func etcdArgs(dir string) []string {
	return []string{"-data-dir", filepath.Join(dir, "etcd"), "-socket", filepath.Join(dir, "etcd.sock")}
}

func apiServerArgs(dir string, port int, o Options) []string {
	at := func(name string) string { return filepath.Join(dir, name) }
	cidrs := make([]string, 0, len(ServiceCIDRs))
	for _, c := range ServiceCIDRs {
		cidrs = append(cidrs, c.String())
	}
	args := []string{
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // endpoints may not be loopback addresses
		"--etcd-servers=unix://" + at("etcd.sock"),
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + at("apiserver.crt"), "--tls-private-key-file=" + at("apiserver.key"), "--client-ca-file=" + at("ca.crt"),
		"--kubelet-client-certificate=" + at("kubelet-client.crt"), "--kubelet-client-key=" + at("kubelet-client.key"),
		"--service-account-issuer=" + Issuer, "--service-account-signing-key-file=" + at("sa.key"), "--service-account-key-file=" + at("sa.pub"),
		"--service-cluster-ip-range=" + strings.Join(cidrs, ","),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		// It would taint each new Node until the controller of nodes has removed that, which is not among Controllers.
		"--disable-admission-plugins=TaintNodesByCondition",
		"--allow-privileged=true", // capture needs NET_ADMIN
		"--profiling=false",
		"--shutdown-watch-termination-grace-period=2s", // else SIGTERM waits for the end of watches, for a minute
	}
	return append(args, o.APIServerFlags...)
}

func controllersArgs(dir string, o Options) []string {
	controllers := Controllers
	if o.Controllers != nil {
		controllers = o.Controllers
	}
	return []string{
		"--kubeconfig=" + filepath.Join(dir, controllersName+".kubeconfig"),
		"--controllers=" + strings.Join(controllers, ","),
		"--root-ca-file=" + filepath.Join(dir, "ca.crt"),
		"--service-account-private-key-file=" + filepath.Join(dir, "sa.key"),
		"--use-service-account-credentials=false", "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=300", "--kube-api-burst=600",
	}
}

func schedulerArgs(dir string) []string {
	return []string{
		"--kubeconfig=" + filepath.Join(dir, schedulerName+".kubeconfig"),
		"--leader-elect=false", "--secure-port=0", "--kube-api-qps=300", "--kube-api-burst=600",
	}
}
