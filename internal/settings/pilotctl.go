package settings

import (
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Pilotctl are the flags that every command of pilotctl takes.
var Pilotctl = Table{
	{Flag: "discovery", Env: []string{"PILOTCTL_DISCOVERY"}, Kind: Text, Otherwise: "the cluster of the kubeconfig; without one, http://127.0.0.1:8080", Unit: "URL", Used: "cmd/pilotctl/replicas.go",
		Help: "`URL` of pilot-discovery's debug port; commands that do not ask it refuse the flag"},
	{Flag: "output", Short: "o", Kind: Enum, Default: "table", Values: []string{"table", "wide", "json", "yaml"}, Unit: "form", Used: "cmd/pilotctl/output.go",
		Help: "`form` of the result; on a terminal, it is fitted to the width, unless it is wide"},
}

// PilotctlCluster are the flags of the commands that ask pilot-discovery: where it is in a cluster.
var PilotctlCluster = Table{
	{Flag: "kubeconfig", Env: []string{"KUBECONFIG"}, Kind: Text, Otherwise: "~/.kube/config, if there is one", Unit: "file", Used: "internal/kube",
		Help: "kubeconfig `file` of the cluster that pilot-discovery runs in"},
	{Flag: "context", Kind: Text, Unit: "name", Used: "internal/kube",
		Help: "`context` in the kubeconfig file; empty is the current one"},
	{Flag: "istioNamespace", Short: "i", Kind: Text, Default: mesh.DefaultRootNamespace, Required: true, Unit: "namespace", Used: "cmd/pilotctl/replicas.go",
		Help: "`namespace` of the control plane"},
	{Flag: "revision", Kind: Text, Unit: "revision", Used: "cmd/pilotctl/replicas.go",
		Help: "`revision` of the control plane; empty is every one in its namespace"},
}

// PilotctlCheck is the table of pilotctl check.
var PilotctlCheck = Table{
	{Flag: "watch", Short: "w", Kind: Bool, Unit: "switch", Used: "cmd/pilotctl/watch.go",
		Help: "check again and again, and print the results whenever they have changed, until Ctrl-C"},
	{Flag: "pre", Kind: Bool, Unit: "switch", Used: "internal/check",
		Help: "check whether the control plane can be installed, or upgraded"},
}

// PilotctlNamespace is the flag of the commands that name one object or proxy.
var PilotctlNamespace = Table{
	{Flag: "namespace", Short: "n", Kind: Text, Otherwise: "that of the kubeconfig's context", Unit: "namespace", Used: "cmd/pilotctl/replicas.go",
		Help: "`namespace` of a name that has none"},
}

// PilotctlExplain is the table of pilotctl explain.
var PilotctlExplain = Table{
	{Flag: "port", Kind: Port, Otherwise: "the only one", Unit: "port", Used: "cmd/pilotctl/explain.go",
		Help: "`port` of the service, or of the Pod if TO is one"},
	{Flag: "method", Short: "X", Kind: Text, Otherwise: "GET", Unit: "method", Used: "internal/discovery/explain",
		Help: "`method` of the request"},
	{Flag: "path", Kind: Text, Otherwise: "/", Unit: "path", Used: "internal/discovery/explain",
		Help: "`path` of the request, with its query"},
	{Flag: "host", Kind: Text, Otherwise: "the host of the service", Unit: "host", Used: "internal/discovery/explain",
		Help: "`host` that the request is for"},
	{Flag: "header", Short: "H", Kind: Lines, Unit: "list of NAME=VALUE", Used: "cmd/pilotctl/explain.go",
		Help: "a header of the request, as `NAME=VALUE` or NAME: VALUE; may be given several times"},
	{Flag: "jwt-claims", Kind: Text, Unit: "JSON object", Used: "internal/discovery/explain",
		Help: "claims of a token of the request as a `JSON` object with iss; the token is taken for signed by its issuer"},
	{Flag: "tcp", Kind: Bool, Unit: "switch", Used: "internal/discovery/explain",
		Help: "ask about a connection that is not HTTP"},
	{Flag: "address", Kind: Text, Otherwise: "that of the Pod", Unit: "IP address", Used: "internal/discovery/explain",
		Help: "IP `address` of the client, for rules about it"},
}

// PilotctlDemo is the table of pilotctl demo.
var PilotctlDemo = Table{
	{Flag: "bin", Kind: Text, Otherwise: "bin, in the tree that pilotctl was built in", Unit: "folder", Used: "internal/lab/meshup",
		Help: "`folder` with pilot-agent, pilot-discovery and app"},
	{Flag: "envoy", Env: []string{"ENVOY"}, Kind: Text, Otherwise: "what make tools fetched", Unit: "file", Used: "internal/lab/meshup",
		Help: "Envoy's `path`"},
	{Flag: "configDir", Kind: Text, Otherwise: "samples/bookshop, in that tree", Unit: "folder", Used: "internal/demo",
		Help: "`folder` with the sample's YAML"},
	{Flag: "keep", Kind: Bool, Unit: "switch", Used: "internal/demo",
		Help: "keep the mesh running after the scenarios, until Ctrl-C, and print how to reach it"},
	{Flag: "logs", Kind: Text, Unit: "folder", Used: "internal/demo",
		Help: "`folder` to keep the programs' logs in; it must not hold any yet"},
	{Flag: "verbose", Short: "v", Kind: Bool, Unit: "switch", Used: "cmd/pilotctl/demo.go",
		Help: "log to standard error what is started and ended"},
	{Flag: "pace", Kind: Duration, Otherwise: "no pause", Unit: "duration", Used: "internal/demo",
		Help: "pause for a `duration` before each scenario and after each check, to watch"},
	{Flag: "step", Kind: Bool, Unit: "switch", Used: "internal/demo",
		Help: "wait for Enter before each scenario; needs a terminal as standard input"},
	{Env: []string{"TERM"}, Kind: Text, Unit: "name", Used: "cmd/pilotctl/demo.go",
		Help: "type of the terminal; with dumb, no table is drawn"},
	{Env: []string{"NO_COLOR"}, Kind: Text, Unit: "any text", Used: "cmd/pilotctl/demo.go",
		Help: "no colors if it is not empty"},
}

// PilotctlUp is the table of pilotctl up.
var PilotctlUp = Table{
	{Flag: "bin", Kind: Text, Otherwise: "bin, in the tree that pilotctl was built in, else PATH", Unit: "folder", Used: "cmd/pilotctl/up.go",
		Help: "`folder` with pilot-agent and pilot-discovery"},
	{Flag: "envoy", Env: []string{"ENVOY"}, Kind: Text, Otherwise: "what make tools fetched, else PATH", Unit: "file", Used: "cmd/pilotctl/up.go",
		Help: "Envoy's `path`"},
	{Flag: "exec", Kind: List, Unit: "list of WORKLOAD[/CONTAINER]=COMMAND", Used: "internal/lab/up",
		Help: "what a workload runs instead of its command, as `WORKLOAD=COMMAND`; words are separated by blanks, no shell is involved; may be given several times"},
	{Flag: "publish", Short: "p", Kind: List, Unit: "list of [PORT:]POD:PORT", Used: "internal/lab/up",
		Help: "open a port of a Pod, or of a workload's first Pod, on this machine's loopback, as `[PORT:]POD:PORT`; those of gateways are opened anyway"},
	{Flag: "prometheusURL", Env: []string{"PILOT_UI_PROMETHEUS"}, Kind: Text, Unit: "URL", Used: "internal/lab/meshup",
		Help: "`URL` of a Prometheus server that scrapes the Pods, which is asked for the rates and errors on the page at /ui: one that this machine reaches, or a Service of the directory at the port of its container; by default none (docs/ui.md)"},
	{Flag: "yes", Short: "y", Kind: Bool, Unit: "switch", Used: "internal/lab/up",
		Help: "run programs of this machine without asking"},
	{Flag: "proxyLogs", Kind: Bool, Unit: "switch", Used: "internal/lab/up",
		Help: "print the logs of agents and Envoys, too"},
	{Env: []string{"SUDO_UID"}, Kind: Text, Unit: "user id", Used: "cmd/pilotctl/up.go",
		Help: "user that programs run as; without it, or with 0, they run as nobody"},
	{Env: []string{"SUDO_GID"}, Kind: Text, Unit: "group id", Used: "cmd/pilotctl/up.go",
		Help: "group that programs run as"},
	{Env: []string{"PATH"}, Kind: Text, Unit: "list of folders", Used: "cmd/pilotctl/up.go",
		Help: "where programs are searched"},
}

// ofMesh says which of the meshes on this machine is meant.
var ofMesh = Setting{Flag: "mesh", Kind: Text, Otherwise: "that which has the Pod", Unit: "directory", Used: "cmd/pilotctl/up.go",
	Help: "`directory` of the mesh, where several run on this machine"}

// PilotctlExec is the table of pilotctl exec.
var PilotctlExec = Table{ofMesh}

// PilotctlLogs is the table of pilotctl logs.
var PilotctlLogs = Table{
	ofMesh,
	{Flag: "container", Short: "c", Kind: Text, Otherwise: "all containers", Unit: "name", Used: "cmd/pilotctl/up.go",
		Help: "`container` of the Pod, or proxy"},
	{Flag: "follow", Short: "f", Kind: Bool, Unit: "switch", Used: "internal/lab/up",
		Help: "go on until Ctrl-C"},
}

// PilotctlProxies is the table of pilotctl proxies.
var PilotctlProxies = Table{
	{Flag: "behind", Kind: Bool, Unit: "switch", Used: "cmd/pilotctl/proxies.go",
		Help: "only the proxies that have not applied everything that is for them, since when, and what they lack"},
	{Flag: "watch", Short: "w", Kind: Bool, Unit: "switch", Used: "cmd/pilotctl/watch.go",
		Help: "print the list again whenever it has changed, until Ctrl-C"},
}

// PilotctlObjects is the table of pilotctl objects.
var PilotctlObjects = Table{
	{Flag: "all", Kind: Bool, Unit: "switch", Used: "cmd/pilotctl/objects.go",
		Help: "all objects in force, with how many of the proxies that they concern have applied them"},
	{Flag: "exit-code", Kind: Bool, Unit: "switch", Used: "cmd/pilotctl/objects.go",
		Help: "exit with 3 if there are errors, and with 4 if there are warnings only"},
}

// PilotctlWait is the table of pilotctl wait.
var PilotctlWait = Table{
	{Flag: "filename", Short: "f", Kind: Text, Unit: "file", Used: "cmd/pilotctl/wait.go",
		Help: "wait for the versions of objects in this `file`, with - for standard input, instead of KIND NAMESPACE/NAME"},
	{Flag: "timeout", Kind: Duration, Number: int64(time.Minute), Positive: true, Unit: "duration", Used: "cmd/pilotctl/wait.go",
		Help: "how long to wait"},
	{Flag: "generation", Kind: Int, Unit: "generation", Used: "cmd/pilotctl/wait.go",
		Help: "wait for a change in this `generation` or a later one; 0 is any"},
	{Flag: "removed", Kind: Bool, Unit: "switch", Used: "cmd/pilotctl/wait.go",
		Help: "wait until the object is removed"},
}

// PilotctlInject is the table of pilotctl inject.
var PilotctlInject = Table{
	{Flag: "filename", Short: "f", Kind: Text, Required: true, Unit: "file", Used: "cmd/pilotctl/inject.go",
		Help: "`file` with Pods or objects with Pod templates, as YAML or JSON; - for standard input"},
	{Flag: "injectConfigFile", Kind: Text, Unit: "file", Used: "internal/discovery/inject",
		Help: "`file` with the ConfigMap istio-sidecar-injector, or with its key config: templates and policy over the built-in ones"},
	{Flag: "valuesFile", Kind: Text, Unit: "file", Used: "internal/discovery/inject",
		Help: "`file` with values for the templates, over those of the ConfigMap's file and the built-in ones"},
	{Flag: "meshConfigFile", Kind: Text, Unit: "file", Used: "internal/discovery/inject",
		Help: "`file` with the mesh configuration, or with the ConfigMap istio"},
	{Flag: "kubeconfig", Kind: Text, Unit: "file", Used: "cmd/pilotctl/inject.go",
		Help: "kubeconfig `file` of a cluster whose ConfigMaps apply where no file is given"},
	{Flag: "context", Kind: Text, Unit: "name", Used: "cmd/pilotctl/inject.go",
		Help: "`context` in the kubeconfig file; empty is the current one"},
	{Flag: "istioNamespace", Short: "i", Kind: Text, Default: mesh.DefaultRootNamespace, Required: true, Unit: "namespace", Used: "cmd/pilotctl/inject.go",
		Help: "`namespace` of the control plane, where the cluster's ConfigMaps are"},
	{Flag: "revision", Kind: Text, Otherwise: "that of the values, else default", Unit: "revision", Used: "internal/discovery/inject",
		Help: "`revision` of the control plane"},
	{Flag: "namespace", Short: "n", Kind: Text, Default: "default", Required: true, Unit: "namespace", Used: "internal/discovery/inject",
		Help: "`namespace` of objects that name none"},
	{Flag: "nativeSidecars", Env: []string{"ENABLE_NATIVE_SIDECARS"}, Kind: Enum, Default: "auto", Values: []string{"auto", "true", "false"}, Unit: "mode", Used: "internal/discovery/inject",
		Help: "`when` the proxy is a native sidecar; auto asks the nodes of the cluster, and is false without one"},
}

// PilotctlValidate is the table of pilotctl validate.
var PilotctlValidate = Table{
	{Flag: "filename", Short: "f", Kind: List, Unit: "list of files", Used: "cmd/pilotctl/validate.go",
		Help: "`file`, folder, or - for standard input, with the objects"},
	{Flag: "strict", Kind: Bool, Unit: "switch", Used: "cmd/pilotctl/validate.go",
		Help: "exit with 1 if there are warnings, too"},
	{Flag: "references", Kind: Enum, Values: []string{"auto", "always", "never"}, Default: "auto", Unit: "choice", Used: "internal/discovery/analyze",
		Help: "`when` to report hosts, subsets, Gateways, selectors and accounts that nothing has: auto if a folder is validated, which has all of the mesh, always or never"},
	{Flag: "annotations", Kind: Enum, Values: []string{"", "github", "sarif"}, Unit: "choice", Used: "cmd/pilotctl/annotations.go",
		Help: "`form` of annotations to print instead of a table: github for workflow commands, sarif for a SARIF 2.1.0 log"},
}

// PilotctlRemoteSecret is the table of pilotctl remote-secret.
var PilotctlRemoteSecret = Table{
	{Flag: "kubeconfig", Env: []string{"KUBECONFIG"}, Kind: Text, Otherwise: "~/.kube/config, if there is one", Unit: "file", Used: "internal/kube",
		Help: "kubeconfig `file` of the remote cluster"},
	{Flag: "context", Kind: Text, Unit: "name", Used: "internal/kube",
		Help: "`context` in the kubeconfig file; empty is the current one"},
	{Flag: "istioNamespace", Short: "i", Kind: Text, Default: mesh.DefaultRootNamespace, Required: true, Unit: "namespace", Used: "cmd/pilotctl/remotesecret.go",
		Help: "`namespace` of the service account in the remote cluster"},
	{Flag: "namespace", Short: "n", Kind: Text, Otherwise: "that of --istioNamespace", Unit: "namespace", Used: "cmd/pilotctl/remotesecret.go",
		Help: "`namespace` of the Secret that is printed: that of the control plane"},
	{Flag: "name", Kind: Text, Otherwise: "the UID of its namespace kube-system", Unit: "name", Used: "cmd/pilotctl/remotesecret.go",
		Help: "`name` of the remote cluster: that of its proxies, ISTIO_META_CLUSTER_ID"},
	{Flag: "server", Kind: Text, Otherwise: "that of the kubeconfig", Unit: "URL", Used: "cmd/pilotctl/remotesecret.go",
		Help: "`URL` at which the control plane reaches the API server of the remote cluster"},
	{Flag: "tls-server-name", Kind: Text, Otherwise: "that of the kubeconfig, else that of the URL", Unit: "name", Used: "cmd/pilotctl/remotesecret.go",
		Help: "`name` in the certificate of that API server"},
	{Flag: "service-account", Kind: Text, Default: "istio-reader-service-account", Required: true, Unit: "name", Used: "cmd/pilotctl/remotesecret.go",
		Help: "`name` of the service account in the remote cluster"},
	{Flag: "secret-name", Kind: Text, Otherwise: "SERVICE-ACCOUNT-istio-remote-secret-token", Unit: "name", Used: "cmd/pilotctl/remotesecret.go",
		Help: "`name` of the Secret with the token in the remote cluster, which is created if there is none"},
}

// PilotctlTokenCreate is the table of pilotctl token create.
var PilotctlTokenCreate = Table{
	{Flag: "stateDir", Kind: Text, Required: true, Unit: "folder", Used: "internal/discovery/authn",
		Help: "pilot-discovery's state `folder`"},
	{Flag: "namespace", Short: "n", Kind: Text, Unit: "namespace", Used: "internal/discovery/authn",
		Help: "`namespace` of the service account, instead of NAMESPACE/ACCOUNT"},
	{Flag: "serviceAccount", Kind: Text, Default: "default", Required: true, Unit: "name", Used: "internal/discovery/authn",
		Help: "`name` of the service account, with --namespace"},
	{Flag: "audience", Kind: Text, Default: mesh.TokenAudience, Required: true, Unit: "text", Used: "internal/discovery/authn",
		Help: "`audience` of the token"},
	{Flag: "ttl", Kind: Duration, Number: int64(DefaultTokenTTL), Positive: true, Unit: "duration", Used: "internal/discovery/authn",
		Help: "how long the token is valid"},
	{Flag: "init", Kind: Bool, Unit: "switch", Used: "internal/discovery/authn",
		Help: "make the key that signs tokens if the folder has none"},
}

// PilotctlVMJoinToken is the table of pilotctl vm join-token.
var PilotctlVMJoinToken = Table{
	{Flag: "stateDir", Kind: Text, Unit: "folder", Used: "internal/discovery/authn",
		Help: "state `folder` of a pilot-discovery with --configDir, which has its roots and signs the token; without it the cluster of the kubeconfig does"},
	{Flag: "kubeconfig", Env: []string{"KUBECONFIG"}, Kind: Text, Otherwise: "~/.kube/config, if there is one", Unit: "file", Used: "internal/kube",
		Help: "kubeconfig `file` of the cluster that pilot-discovery runs in"},
	{Flag: "context", Kind: Text, Unit: "name", Used: "internal/kube",
		Help: "`context` in the kubeconfig file; empty is the current one"},
	{Flag: "istioNamespace", Short: "i", Kind: Text, Default: mesh.DefaultRootNamespace, Required: true, Unit: "namespace", Used: "cmd/pilotctl/vm.go",
		Help: "`namespace` of the control plane"},
	{Flag: "address", Kind: Text, Required: true, Unit: "host:port", Used: "cmd/pilotctl/vm.go",
		Help: "`host:port` of pilot-discovery's secure port, as the machine reaches it"},
	{Flag: "serverName", Kind: Text, Otherwise: "istiod.NAMESPACE.svc, with the revision if there is one", Unit: "name", Used: "cmd/pilotctl/vm.go",
		Help: "`name` in pilot-discovery's certificate that the machine verifies; --serverName= verifies the host of --address, which --servingName of pilot-discovery adds to the certificate"},
	{Flag: "ttl", Kind: Duration, Number: int64(DefaultJoinTTL), Positive: true, Unit: "duration", Used: "internal/discovery/authn",
		Help: "how long the string is valid, at most 168h"},
	{Flag: "uses", Kind: Int, Number: 1, Min: 1, Max: 100, Unit: "machines", Used: "internal/discovery/authn",
		Help: "`number` of machines that may join with it"},
	{Flag: "group", Kind: Text, Unit: "name", Used: "internal/agent/vm",
		Help: "`name` of the WorkloadGroup in the same namespace that registers the machine, which is read from --filename or the cluster; empty: it has a WorkloadEntry, or none"},
	{Flag: "filename", Short: "f", Kind: Text, Unit: "file", Used: "cmd/pilotctl/vm.go",
		Help: "`file` with the WorkloadGroup, from which the names, labels, network and probe are taken"},
	{Flag: "labels", Kind: List, Unit: "list of name=value", Used: "internal/agent/vm",
		Help: "`labels` of the workload, added to those of the WorkloadGroup"},
	{Flag: "trustDomain", Kind: Text, Otherwise: "that of the mesh configuration, else cluster.local", Unit: "trust domain", Used: "internal/agent/vm",
		Help: "`name` of the mesh's trust domain"},
	{Flag: "clusterID", Kind: Text, Default: "Kubernetes", Unit: "name", Used: "internal/agent/vm",
		Help: "`name` of the control plane's cluster"},
	{Flag: "network", Kind: Text, Otherwise: "that of the WorkloadGroup", Unit: "name", Used: "internal/agent/vm",
		Help: "`name` of the network that the machine is in"},
	{Flag: "revision", Kind: Text, Unit: "revision", Used: "internal/agent/vm",
		Help: "`revision` of the control plane, which the proxy says of itself"},
	{Flag: "meshConfigFile", Kind: Text, Otherwise: "the ConfigMap istio of the cluster", Unit: "file", Used: "cmd/pilotctl/vm.go",
		Help: "`file` with the mesh configuration, whose trust domain and defaultConfig the machine gets"},
}
