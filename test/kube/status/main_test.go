// Package status_test runs control planes against a real API server, and reads the statuses that they write to Istio's objects.
//
// They run as a ServiceAccount with the permissions in docs/kubernetes-permissions.md and docs/kubernetes.md, and no others. What they
// write is counted by the API server's audit log.
package status_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/kube"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

// auditPolicy has the API server log what is written to statuses.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, verbs: [patch, update], resources: [{group: networking.istio.io}, {group: security.istio.io}]}
- {level: None}
`

// auditLog is the path of the log.
var auditLog string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "status-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	policy := filepath.Join(dir, "policy.yaml")
	auditLog = filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return kubetest.Run(m, kubetest.Options{APIServerFlags: []string{"--audit-policy-file=" + policy, "--audit-log-path=" + auditLog, "--audit-log-mode=blocking-strict"}})
}

// reading has what the source needs: docs/kubernetes.md.
const reading = `apiVersion: v1
kind: ServiceAccount
metadata: {name: istiod}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: source-istio-system}
rules:
- {apiGroups: [""], resources: [nodes, pods, services], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [list, watch]}
- {apiGroups: [networking.istio.io], resources: [destinationrules, envoyfilters, gateways, proxyconfigs, serviceentries, sidecars, virtualservices, workloadentries, workloadgroups], verbs: [list, watch]}
- {apiGroups: [security.istio.io], resources: [authorizationpolicies, peerauthentications, requestauthentications], verbs: [list, watch]}
- {apiGroups: [telemetry.istio.io], resources: [telemetries], verbs: [list, watch]}
- {apiGroups: [extensions.istio.io], resources: [trafficextensions, wasmplugins], verbs: [list, watch]}
- {apiGroups: [gateway.networking.k8s.io], resources: [backendtlspolicies, gatewayclasses, gateways, grpcroutes, httproutes, listenersets, referencegrants, tcproutes, tlsroutes, udproutes], verbs: [list, watch]}
- {apiGroups: [networking.k8s.io], resources: [ingressclasses, ingresses], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: source, namespace: istio-system}
rules:
- {apiGroups: [""], resources: [configmaps], resourceNames: [istio], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: source-istio-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: source-istio-system}
subjects: [{kind: ServiceAccount, name: istiod, namespace: istio-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: source, namespace: istio-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: source}
subjects: [{kind: ServiceAccount, name: istiod, namespace: istio-system}]
---
`

// account makes a ServiceAccount istiod in the namespace of a control plane, with the documented permissions, which edit changes unless it is nil.
func account(t *testing.T, c *kubetest.Cluster, namespace string, edit func(string) string) *rest.Config {
	t.Helper()
	text, err := os.ReadFile("../../../docs/kubernetes-permissions.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rules, _ := strings.Cut(string(text), "```yaml\n")
	rules, _, found := strings.Cut(rules, "```")
	if !found {
		t.Fatal("docs/kubernetes-permissions.md: want the rules in a block of YAML")
	}
	rules = reading + rules
	if edit != nil {
		rules = edit(rules)
	}
	c.Apply(t, namespace, strings.ReplaceAll(rules, "istio-system", namespace))
	return c.TokenConfig(c.Token(t, namespace, "istiod"))
}

// environment is a cluster with a control plane and a namespace of users.
type environment struct {
	t            *testing.T
	c            *kubetest.Cluster
	system, shop string
	config       *rest.Config
	plane        *plane
	pace         objectstatus.Pace
}

// begin starts a control plane in the shared cluster, which has Istio's definitions.
func begin(t *testing.T) *environment {
	t.Helper()
	c := kubetest.Shared(t)
	c.InstallCRDs(t, kubetest.Istio)
	return beginOn(t, c, "")
}

// beginOn starts a control plane in a cluster after applying definitions.
func beginOn(t *testing.T, c *kubetest.Cluster, definitions string) *environment {
	t.Helper()
	if definitions != "" {
		if _, err := c.ApplyYAML(t.Context(), "", definitions); err != nil {
			t.Fatal(err)
		}
	}
	return beginWith(t, c, nil)
}

// beginWith starts a control plane whose permissions edit changes, unless it is nil.
func beginWith(t *testing.T, c *kubetest.Cluster, edit func(string) string) *environment {
	t.Helper()
	e := &environment{t: t, c: c, system: c.Namespace(t, nil), shop: c.Namespace(t, nil)}
	e.config = account(t, c, e.system, edit)
	e.plane = e.start("istiod-1")
	return e
}

// plane is a replica of the control plane.
type plane struct {
	t      *testing.T
	server *discovery.Server
	log    *wait.Output
	stop   func()
}

// start starts a replica.
func (e *environment) start(name string) *plane { return e.startOf(name, "") }

// startOf starts a replica of a revision.
func (e *environment) startOf(name, revision string) *plane {
	e.t.Helper()
	p := &plane{t: e.t, log: &wait.Output{}}
	port := "127.0.0.1:0"
	server, err := discovery.New(e.t.Context(), discovery.Options{
		StateDir: e.t.TempDir(), Version: "test",
		Names: discovery.Names{Domain: "cluster.local", Namespace: e.system, Instance: name, Revision: revision},
		Ports: discovery.Ports{HTTP: port, GRPC: port, SecureGRPC: port, Monitoring: port},
		HTTP:  discovery.HTTPOptions{Shutdown: time.Second}, Registration: discovery.RegistrationOptions{Grace: registrationGrace},
		Kubernetes: discovery.KubernetesOptions{
			API: kube.Options{Kubeconfig: kubetest.Kubeconfig(e.t, e.config), QPS: -1}, Cluster: "Kubernetes", Status: discovery.StatusOptions{Pace: e.pace},
		},
		Log: slog.New(slog.NewTextHandler(io.MultiWriter(p.log, e.t.Output()), nil)),
	})
	if err != nil {
		e.t.Fatal(err)
	}
	p.server = server
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			e.t.Errorf("run: %v", err)
		}
	})
	e.t.Cleanup(p.stop)
	return p
}

// metric reads a metric without labels; empty if it is absent.
func (p *plane) metric(name string) string {
	resp, err := http.Get("http://" + p.server.Addresses().Monitoring + "/metrics")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return value
		}
	}
	return ""
}

// logs waits until the log has a text.
func (p *plane) logs(text string) {
	p.t.Helper()
	wait.Until(p.t, "the log has "+text, func() bool { return strings.Contains(p.log.String(), text) })
}

func (e *environment) grpc() string { return e.plane.server.Addresses().GRPC }

// of are the objects of a kind in the users' namespace.
func (e *environment) of(resource string) dynamic.ResourceInterface {
	return e.c.Dynamic.Resource(schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: resource}).Namespace(e.shop)
}

func (e *environment) object(name string) *unstructured.Unstructured {
	e.t.Helper()
	o, err := e.of("virtualservices").Get(e.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	return o
}

// status is the status of an object as users see it.
type status struct {
	Conditions []struct {
		Type, Status, Reason, Message, LastTransitionTime string
		ObservedGeneration                                int64
	}
	ValidationMessages []struct {
		Level string
		Type  struct{ Name, Code string }
	}
	ObservedGeneration int64
}

// text has the control plane's conditions, Reconciled first.
func (s *status) text() string {
	var out [2]string
	for _, c := range s.Conditions {
		text := c.Status + " " + c.Reason + " " + c.Message
		switch c.Type {
		case objectstatus.Reconciled:
			out[0] = text
		case objectstatus.PassedAnalysis:
			out[1] = text
		}
	}
	return out[0] + " | " + out[1]
}

// untilHas waits until the conditions of a VirtualService have texts.
func (e *environment) untilHas(name string, texts ...string) status {
	e.t.Helper()
	return e.await("virtualservices", name, func(got string) bool {
		for _, want := range texts {
			if !strings.Contains(got, want) {
				return false
			}
		}
		return true
	}, strings.Join(texts, " … "))
}

// until waits until the conditions of a VirtualService are a text.
func (e *environment) until(name, text string) status {
	e.t.Helper()
	return e.untilKind("virtualservices", name, text)
}

func (e *environment) untilKind(resource, name, text string) status {
	e.t.Helper()
	return e.await(resource, name, func(got string) bool { return got == text }, text)
}

func (e *environment) await(resource, name string, holds func(string) bool, want string) status {
	e.t.Helper()
	return e.awaitOf(e.of(resource), name, holds, want)
}

// awaitOf waits until the conditions of one of some objects have a text.
func (e *environment) awaitOf(of dynamic.ResourceInterface, name string, holds func(string) bool, want string) status {
	e.t.Helper()
	var s status
	wait.NoError(e.t, "the status of "+name+" is "+want, func() error {
		o, err := of.Get(e.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		text, err := json.Marshal(o.Object["status"])
		if err != nil {
			return err
		}
		s = status{}
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		if got := s.text(); !holds(got) {
			return fmt.Errorf("it is %s", got)
		}
		for _, c := range s.Conditions {
			if ours := c.Type == objectstatus.Reconciled || c.Type == objectstatus.PassedAnalysis; ours && (c.ObservedGeneration != o.GetGeneration() || c.LastTransitionTime == "") {
				return fmt.Errorf("it is of another generation than %d, or has no time: %+v", o.GetGeneration(), c)
			}
		}
		return nil
	})
	return s
}

// untilReported waits until a replica has reported on some object.
func (e *environment) untilReported(replica string) {
	e.t.Helper()
	wait.NoError(e.t, replica+" reports to the leader", func() error {
		m, err := e.c.Client.CoreV1().ConfigMaps(e.system).Get(e.t.Context(), "pilothouse-status-instances", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for key := range m.BinaryData {
			if strings.HasPrefix(key, replica+"_") {
				return nil
			}
		}
		return fmt.Errorf("there are %d reports", len(m.BinaryData))
	})
}

// written lists the objects whose status the control plane of the environment has written since the log had so many bytes,
// with the size of the log now.
func (e *environment) written(from int) (objects []string, size int) {
	e.t.Helper()
	text, err := os.ReadFile(auditLog)
	if err != nil {
		e.t.Fatal(err)
	}
	for line := range bytes.Lines(text[min(from, len(text)):]) {
		var event struct {
			User      struct{ Username string }
			ObjectRef struct{ Namespace, Resource, Subresource, Name string }
		}
		if json.Unmarshal(line, &event) != nil {
			continue // a line that is being written
		}
		if o := event.ObjectRef; event.User.Username == "system:serviceaccount:"+e.system+":istiod" && o.Subresource == "status" {
			objects = append(objects, o.Resource+" "+o.Namespace+"/"+o.Name)
		}
	}
	return objects, len(text)
}
