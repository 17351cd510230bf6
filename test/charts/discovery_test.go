package charts_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// auditPolicy has the API server log what ServiceAccounts of the namespace ask for.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: ["system:serviceaccounts:` + namespace + `"]}
- {level: None}
`

// asked is a request of the audit log.
type asked struct {
	request
	allowed bool
}

// requestsOf lists what a ServiceAccount has asked for since the log had so many bytes, and its size now. What concerns no
// object, such as discovery, everybody may ask.
func (c *cluster) requestsOf(t *testing.T, account string, from int) (all []asked, size int) {
	t.Helper()
	text, err := os.ReadFile(c.audit)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text[min(from, len(text)):]))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb        string
			User        struct{ Username string }
			ObjectRef   *struct{ Namespace, APIGroup, Resource, Subresource, Name string }
			Annotations map[string]string
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			continue // a line that is being written
		}
		if o := event.ObjectRef; o != nil && event.User.Username == "system:serviceaccount:"+namespace+":"+account {
			resource := strings.TrimSuffix(o.Resource+"/"+o.Subresource, "/")
			r := request{o.Namespace, o.APIGroup, resource, o.Name, event.Verb}
			all = append(all, asked{r, event.Annotations["authorization.k8s.io/decision"] == "allow"})
		}
	}
	return all, len(text)
}

// pilotDiscovery is the path of the program, built once.
var pilotDiscovery = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "pilot-discovery")
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-pgo=hack/pgo/pilot-discovery.pgo", "-tags", "grpcnotrace", "-o", path, "./cmd/pilot-discovery") // as make build does, for its cache
	c.Dir, c.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build pilot-discovery: %w\n%s", err, out)
	}
	return path, nil
})

// discoveryProcess is a pilot-discovery that runs.
type discoveryProcess struct {
	http   string // address of the HTTP port
	stop   func()
	output *bytes.Buffer // to be read after stop
}

// runDiscovery runs pilot-discovery as a ServiceAccount, with the arguments and variables of the chart but for paths and
// addresses. It is stopped at the end of the test, unless that has been done.
func (c *cluster) runDiscovery(t *testing.T, account string) *discoveryProcess {
	t.Helper()
	path, err := pilotDiscovery()
	if err != nil {
		t.Fatal(err)
	}
	token, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := clientcmdapi.NewConfig()
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: c.config.Host, CertificateAuthorityData: c.config.CAData}
	file.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	file.CurrentContext = "test"
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*file, kubeconfig); err != nil {
		t.Fatal(err)
	}
	d := &discoveryProcess{http: freeAddress(t), output: &bytes.Buffer{}}
	p := exec.Command(path, "discovery", "--kubeconfig="+kubeconfig, "--stateDir="+filepath.Join(dir, "state"), "--meshConfig="+filepath.Join(dir, "mesh"),
		"--httpAddr="+d.http, "--grpcAddr=", "--monitoringAddr=", "--secureGRPCAddr=127.0.0.1:0", "--httpsAddr=127.0.0.1:0")
	p.Env = []string{"POD_NAME=" + account, "POD_NAMESPACE=" + namespace, "REVISION=default", "CLUSTER_ID=Kubernetes",
		"INJECTION_WEBHOOK_CONFIG_NAME=istio-sidecar-injector", "VALIDATION_WEBHOOK_CONFIG_NAME=istio-validator-" + namespace}
	p.Stdout, p.Stderr = d.output, d.output
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	d.stop = sync.OnceFunc(func() {
		_ = p.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = p.Wait()
		if t.Failed() {
			t.Logf("pilot-discovery as %s:\n%s", account, d.output)
		}
	})
	t.Cleanup(d.stop)
	return d
}

// freeAddress is below the ports that the kernel assigns to outgoing connections (from 32768 by default), one of which could
// get the port before the program does.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no TCP port is free")
	return ""
}

// ready returns nil if /ready succeeds.
func (d *discoveryProcess) ready() error {
	r, err := http.Get("http://" + d.http + "/ready")
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("/ready: %s", r.Status)
	}
	return nil
}

// TestDiscoveryRunsAsTheChartsAccount: as the chart's ServiceAccount, pilot-discovery becomes ready and nothing that it asks for
// is forbidden or missing in the list of needs; and it asks for all that it is said to need at its start.
func TestDiscoveryRunsAsTheChartsAccount(t *testing.T) {
	c := startCluster(t)
	if err := c.install(t, "mesh", namespace, load(t, "pilothouse"), withTag); err != nil {
		t.Fatal(err)
	}
	c.forget(t)
	_, from := c.requestsOf(t, "istiod", 0)
	d := c.runDiscovery(t, "istiod")
	until(t, "pilot-discovery to be ready", d.ready)
	until(t, "pilot-discovery to ask for all that it needs at its start", func() error {
		all, _ := c.requestsOf(t, "istiod", from)
		for _, n := range needs {
			for _, resource := range n.resources {
				if n.start && !slices.ContainsFunc(all, func(a asked) bool { return n.has(a.request) && a.resource == resource }) {
					return fmt.Errorf("%s: nothing is asked of %s.%s %q", n.why, resource, n.group, n.name)
				}
			}
		}
		return nil
	})
	d.stop()
	all, _ := c.requestsOf(t, "istiod", from)
	for _, a := range all {
		if !a.allowed {
			t.Errorf("%+v is forbidden", a.request)
		}
		if !slices.ContainsFunc(needs, func(n need) bool { return n.has(a.request) }) {
			t.Errorf("%+v is not in the list of needs", a.request)
		}
	}
}

// has reports whether a request is among the needs of n.
func (n need) has(r request) bool {
	return (n.namespace == "" || n.namespace == r.namespace) && n.group == r.group && slices.Contains(n.resources, r.resource) && slices.Contains(n.verbs, r.verb) &&
		(n.name == "" || n.name == r.name)
}

// forget removes what an earlier pilot-discovery has written, so that the next one does all that the first one does.
func (c *cluster) forget(t *testing.T) {
	t.Helper()
	ctx, remove := t.Context(), metav1.DeleteOptions{}
	core := c.client.CoreV1()
	for what, err := range map[string]error{
		"the root":                   core.Secrets(namespace).Delete(ctx, "istio-ca-secret", remove),
		"the reports":                core.ConfigMaps(namespace).Delete(ctx, "pilothouse-ca-instances", remove),
		"the counts":                 core.ConfigMaps(namespace).Delete(ctx, "pilothouse-status-instances", remove),
		"the leader of the revision": c.client.CoordinationV1().Leases(namespace).Delete(ctx, "pilothouse-leader-default", remove),
		"the leader":                 c.client.CoordinationV1().Leases(namespace).Delete(ctx, "pilothouse-leader", remove),
		"the roots of a namespace":   core.ConfigMaps("default").Delete(ctx, "istio-ca-root-cert", remove),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatalf("remove %s: %v", what, err)
		}
	}
	// Objects that are new have no status.
	for _, o := range []struct{ group, resource, kind, spec string }{
		{"networking.istio.io", "destinationrules", "DestinationRule", `{"host": "example.com"}`},
		{"security.istio.io", "peerauthentications", "PeerAuthentication", `{"selector": {"matchLabels": {"app": "none"}}}`},
		{"security.istio.io", "requestauthentications", "RequestAuthentication", `{"selector": {"matchLabels": {"app": "none"}}}`},
		{"security.istio.io", "authorizationpolicies", "AuthorizationPolicy", `{"selector": {"matchLabels": {"app": "none"}}, "rules": [{}]}`},
		{"telemetry.istio.io", "telemetries", "Telemetry", `{"selector": {"matchLabels": {"app": "none"}}}`},
		{"extensions.istio.io", "wasmplugins", "WasmPlugin", `{"url": "file:///a.wasm"}`},
		{"extensions.istio.io", "trafficextensions", "TrafficExtension", `{"lua": {"inlineCode": "function envoy_on_request(h) end"}}`},
	} {
		version := "v1"
		if o.group == "extensions.istio.io" {
			version = "v1alpha1"
		}
		of := c.dynamic.Resource(schema.GroupVersionResource{Group: o.group, Version: version, Resource: o.resource}).Namespace("default")
		if err := of.Delete(ctx, "with-status", remove); err != nil && !apierrors.IsNotFound(err) {
			t.Fatalf("remove a %s: %v", o.kind, err)
		}
		text := fmt.Sprintf(`{"apiVersion": "%s/%s", "kind": %q, "metadata": {"name": "with-status"}, "spec": %s}`, o.group, version, o.kind, o.spec)
		if _, err := of.Patch(ctx, "with-status", types.ApplyPatchType, []byte(text), metav1.PatchOptions{FieldManager: "test"}); err != nil {
			t.Fatalf("make a %s: %v", o.kind, err)
		}
	}
}

// TestWithoutARuleSomethingIsForbidden runs pilot-discovery without one of the rules that it needs at its start, for each of
// them, and sees that what the rule allows is forbidden.
func TestWithoutARuleSomethingIsForbidden(t *testing.T) {
	c := startCluster(t)
	if err := c.install(t, "mesh", namespace, load(t, "pilothouse"), withTag); err != nil {
		t.Fatal(err)
	}
	all := grants(t, withTag)
	// run starts pilot-discovery without a rule, and returns what waits for its end.
	run := func(i int) (wait func()) {
		g, account := all[i], fmt.Sprintf("without-%d", i)
		c.bind(t, account, append(slices.Clone(all[:i]), all[i+1:]...))
		d := c.runDiscovery(t, account)
		return func() {
			until(t, fmt.Sprintf("something to be forbidden without the rule %+v", g.rule), func() error {
				requests, _ := c.requestsOf(t, account, 0)
				if !slices.ContainsFunc(requests, func(a asked) bool { return !a.allowed && g.allows(a.request) }) {
					return fmt.Errorf("allowed: %+v", requests)
				}
				return nil
			})
			d.stop()
		}
	}
	var waiting []func()
	var alone []int
	for i, g := range all {
		needed := slices.ContainsFunc(needs, func(n need) bool {
			return n.start && slices.ContainsFunc(n.requests(), func(r request) bool {
				rest := append(slices.Clone(all[:i]), all[i+1:]...)
				return g.allows(r) && !slices.ContainsFunc(rest, func(other grant) bool { return other.allows(r) })
			})
		})
		switch {
		case !needed:
		case len(g.rule.ResourceNames) == 0 && slices.Equal(g.rule.Verbs, watches) && !slices.Contains(g.rule.APIGroups, "admissionregistration.k8s.io"):
			waiting = append(waiting, run(i)) // every replica reads it, not only the leader, so that several can be run at a time
		default:
			alone = append(alone, i)
		}
	}
	for _, wait := range waiting {
		wait()
	}
	for _, i := range alone {
		c.forget(t)
		run(i)()
	}
}

// bind makes a ServiceAccount that has the grants, until the end of the test.
func (c *cluster) bind(t *testing.T, account string, grants []grant) {
	t.Helper()
	ctx, meta, create := t.Context(), metav1.ObjectMeta{Name: account, Namespace: namespace}, metav1.CreateOptions{}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: namespace}}
	role, clusterRole := &rbacv1.Role{ObjectMeta: meta}, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: account}}
	for _, g := range grants {
		if g.namespace == "" {
			clusterRole.Rules = append(clusterRole.Rules, g.rule)
		} else {
			role.Rules = append(role.Rules, g.rule)
		}
	}
	rbac := c.client.RbacV1()
	_, err := c.client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, create)
	_, roleErr := rbac.Roles(namespace).Create(ctx, role, create)
	_, clusterErr := rbac.ClusterRoles().Create(ctx, clusterRole, create)
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account}
	_, bindErr := rbac.RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: ref}, create)
	ref.Kind = "ClusterRole"
	_, clusterBindErr := rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: account}, Subjects: subjects, RoleRef: ref}, create)
	if err := errors.Join(err, roleErr, clusterErr, bindErr, clusterBindErr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, remove := context.WithoutCancel(t.Context()), metav1.DeleteOptions{}
		err := errors.Join(
			rbac.ClusterRoleBindings().Delete(ctx, account, remove), rbac.RoleBindings(namespace).Delete(ctx, account, remove),
			rbac.ClusterRoles().Delete(ctx, account, remove), rbac.Roles(namespace).Delete(ctx, account, remove),
			c.client.CoreV1().ServiceAccounts(namespace).Delete(ctx, account, remove))
		if err != nil {
			t.Error(err)
		}
	})
}
