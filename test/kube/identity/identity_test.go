package identity_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rootsecret"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/join"
	"github.com/pilothouse/pilothouse/internal/kube/leader"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/run"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

// bound requests a token of a ServiceAccount that is bound to a Pod.
func bound(t *testing.T, c *kubetest.Cluster, namespace, account string, pod *corev1.Pod) string {
	t.Helper()
	r, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{"istio-ca"}, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Token
}

const accounts = `apiVersion: v1
kind: ServiceAccount
metadata: {name: alice}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: bob}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {serviceAccountName: alice, containers: [{name: web, image: web}]}
`

func TestATokenOfKubernetesObtainsACertificate(t *testing.T) {
	c := kubetest.Shared(t)
	system, shop := c.Namespace(t, nil), c.Namespace(t, nil)
	c.Apply(t, shop, accounts)
	p := start(t, account(t, c, system), system, "istiod-1")
	pod, err := c.Client.CoreV1().Pods(shop).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ofPod, ofBob := bound(t, c, shop, "alice", pod), c.Token(t, shop, "bob", "istio-ca")
	for name, cluster := range map[string]string{"without a cluster": "", "of this cluster": "Kubernetes"} {
		if id, err := p.certificate(ofPod, cluster); err != nil || id != "spiffe://cluster.local/ns/"+shop+"/sa/alice" {
			t.Errorf("%s: %s, %v", name, id, err)
		}
	}
	if id, err := p.certificate(ofBob, ""); err != nil || id != "spiffe://cluster.local/ns/"+shop+"/sa/bob" {
		t.Errorf("bob: %s, %v", id, err)
	}
	refused := func(what, token, cluster, why string) {
		t.Helper()
		within(t, wait.Bound, what+" is refused with "+why, func() bool {
			_, err := p.certificate(token, cluster)
			return status.Code(err) == codes.Unauthenticated && strings.Contains(err.Error(), why) && !strings.Contains(err.Error(), token)
		})
	}
	refused("a token for another cluster", ofPod, "west", `unknown cluster "west"`)
	refused("a token for another audience", c.Token(t, shop, "alice", "bank"), "", "wrong audience")
	refused("a token for the API server", c.Token(t, shop, "alice"), "", "wrong audience")
	refused("a token that was changed", ofBob[:strings.LastIndexByte(ofBob, '.')]+ofPod[strings.LastIndexByte(ofPod, '.'):], "", "Kubernetes rejects it")
	zero := int64(0)
	if err := c.Client.CoreV1().Pods(shop).Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	refused("a token of a Pod that was deleted", ofPod, "", "Kubernetes rejects it")
	if err := c.Client.CoreV1().ServiceAccounts(shop).Delete(t.Context(), "bob", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	refused("a token of a ServiceAccount that was deleted", ofBob, "", "Kubernetes rejects it")
	if p.metric("pilothouse_token_review_failures_total") != "0" {
		t.Error("reviews have failed")
	}
}

func TestTenReplicasThatStartAtOnceHaveOneRoot(t *testing.T) {
	c := kubetest.Shared(t)
	system := c.Namespace(t, nil)
	config := account(t, c, system)
	roots := make([]string, 10)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range roots {
		store, err := rootsecret.New(rootsecret.Options{Config: config, Namespace: system, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			<-begin
			a, err := ca.OpenStore(t.Context(), store, "cluster.local", 0, "")
			if err != nil {
				t.Error(err)
				return
			}
			roots[i] = pki.Fingerprint(a.State().Issuer.Root())
		})
	}
	close(begin)
	wg.Wait()
	s := secret(t, c, system)
	certs, err := pki.ParseBundle(s.Data["ca-cert.pem"])
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range roots {
		if r != pki.Fingerprint(certs[0]) {
			t.Errorf("replicas have the roots %q, the Secret has %s", roots, pki.Fingerprint(certs[0]))
			break
		}
	}
	if s.Type != "istio.io/ca-root" {
		t.Errorf("the Secret has the type %s", s.Type)
	}
	// Replicas that start later have it, too.
	p := start(t, config, system, "istiod-1")
	if p.roots() != string(s.Data["ca-cert.pem"]) {
		t.Error("a replica that starts later has another root")
	}
}

// Tests that run at a time with others have only one control plane in the shared cluster, which writes to all namespaces.

// A rotation that one replica begins reaches the other, the Secret and the ConfigMaps; then the new root signs in both.
func TestARotationReachesAllReplicasAndNamespaces(t *testing.T) {
	t.Parallel()
	c := kubetest.Shared(t)
	system, shop := c.Namespace(t, nil), c.Namespace(t, nil)
	config := account(t, c, system)
	a, b := start(t, config, system, "istiod-1"), start(t, config, system, "istiod-2")
	old := a.roots()
	if b.roots() != old {
		t.Fatal("two replicas have two roots")
	}
	wait.Until(t, "the ConfigMap has the root", func() bool { return rootMap(t, c, shop)["root-cert.pem"] == old })
	wait.Until(t, "both replicas have reported", func() bool { return len(a.status().Instances) == 2 && len(b.status().Instances) == 2 })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+b.server.Addresses().HTTP+"/debug/ca/rotate", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("rotate: %s", resp.Status)
	}
	wait.Until(t, "both replicas distribute both roots", func() bool {
		return a.roots() == b.roots() && strings.Contains(a.roots(), strings.TrimSpace(old)) && strings.Count(a.roots(), "BEGIN") == 2
	})
	both := a.roots()
	wait.Until(t, "the ConfigMap has both roots", func() bool { return rootMap(t, c, shop)["root-cert.pem"] == both })
	wait.Until(t, "the Secret has both roots", func() bool { return string(secret(t, c, system).Data["root-cert.pem"]) == both })
	if got := secret(t, c, system).Data["ca-cert.pem"]; string(got) != old {
		t.Error("the new root is where the one is that signs")
	}
	within(t, rotation.Hold+3*time.Minute, "the new root signs in both", func() bool {
		x, y := a.status(), b.status()
		return x.Phase != rotation.Distributing && y.Phase != rotation.Distributing && x.Roots[0].SHA256 == y.Roots[0].SHA256
	})
	if got := secret(t, c, system).Data["ca-cert.pem"]; string(got) == old {
		t.Error("the old root is where the one is that signs")
	}
	if late := start(t, config, system, "istiod-3"); late.status().Roots[0].SHA256 != a.status().Roots[0].SHA256 {
		t.Error("a replica that starts later has another root that signs")
	}
}

func TestEachNamespaceHasTheRoot(t *testing.T) {
	c := kubetest.Shared(t)
	system, shop := c.Namespace(t, nil), c.Namespace(t, nil)
	p := start(t, account(t, c, system), system, "istiod-1")
	want := p.roots()
	has := func(namespace, when string) {
		t.Helper()
		wait.NoError(t, namespace+" has the root "+when, func() error {
			if got := rootMap(t, c, namespace); got["root-cert.pem"] != want {
				return errors.New("it has the keys " + strings.Join(slices.Sorted(maps.Keys(got)), " "))
			}
			return nil
		})
	}
	has(shop, "at first")
	has(system, "at first")
	has(c.Namespace(t, nil), "that is new")
	mapsOf := c.Client.CoreV1().ConfigMaps(shop)
	m, err := mapsOf.Get(t.Context(), "istio-ca-root-cert", metav1.GetOptions{})
	if err != nil || m.Labels["istio.io/config"] != "true" {
		t.Errorf("labels %v, %v", m.Labels, err)
	}
	m.Data = map[string]string{"root-cert.pem": "edited", "mine": "x"}
	if _, err := mapsOf.Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	has(shop, "after an edit")
	if got := rootMap(t, c, shop); got["mine"] != "x" {
		t.Errorf("a key of somebody else was removed: %v", got)
	}
	if err := mapsOf.Delete(t.Context(), "istio-ca-root-cert", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	has(shop, "after it was deleted")
	for _, ignored := range []string{"kube-system", "kube-public", "kube-node-lease"} {
		if rootMap(t, c, ignored) != nil {
			t.Errorf("namespace %s has the ConfigMap", ignored)
		}
	}
	if p.metric("pilothouse_root_configmap_failures_total") != "0" {
		t.Error("writes have failed")
	}
}

func TestOnlySelectedNamespacesHaveTheRoot(t *testing.T) {
	c := kubetest.Shared(t)
	system, in, out := c.Namespace(t, nil), c.Namespace(t, map[string]string{"mesh": "yes"}), c.Namespace(t, nil)
	late := c.Namespace(t, nil)
	start(t, account(t, c, system), system, "istiod-1", func(o *discovery.Options) {
		o.MeshFile = write(t, "discoverySelectors:\n- matchLabels: {mesh: \"yes\"}\n")
	})
	wait.Until(t, "the selected namespace has the root", func() bool { return rootMap(t, c, in) != nil })
	ns, err := c.Client.CoreV1().Namespaces().Get(t.Context(), late, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns.Labels["mesh"] = "yes"
	if _, err := c.Client.CoreV1().Namespaces().Update(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a namespace that is selected later has the root", func() bool { return rootMap(t, c, late) != nil })
	if rootMap(t, c, out) != nil {
		t.Error("a namespace that is not selected has the ConfigMap")
	}
}

func TestTheConfigMapHasItsName(t *testing.T) {
	c := kubetest.Shared(t)
	system, shop := c.Namespace(t, nil), c.Namespace(t, nil)
	p := start(t, c.Config, system, "istiod-1", func(o *discovery.Options) { o.Kubernetes.RootConfigMap = "our-roots" })
	wait.Until(t, "the namespace has the root", func() bool {
		m, err := c.Client.CoreV1().ConfigMaps(shop).Get(t.Context(), "our-roots", metav1.GetOptions{})
		return err == nil && m.Data["root-cert.pem"] == p.roots()
	})
}

// cable is a connection to the API server that can be cut, as the death of a replica looks from outside.
type cable struct {
	http.RoundTripper
	cut *atomic.Bool
}

func (c cable) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.cut.Load() {
		return nil, errors.New("cut")
	}
	return c.RoundTripper.RoundTrip(r)
}

// elect has a replica take part in an election; led is closed when it leads for the first time.
func elect(t *testing.T, config *rest.Config, namespace, name string, leading *atomic.Int32) (e *leader.Elector, led <-chan struct{}, stop func()) {
	t.Helper()
	e, err := leader.New(leader.Options{Config: config, Namespace: namespace, Lease: "pilothouse-leader", Identity: name, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan struct{})
	once := sync.OnceFunc(func() { close(first) })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- e.Run(ctx, run.Task{Name: name, Run: func(ctx context.Context) error {
			if leading.Add(1) > 1 {
				t.Error("two replicas lead at a time")
			}
			defer leading.Add(-1)
			once()
			<-ctx.Done()
			return nil
		}})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return e, first, stop
}

func TestAnotherReplicaLeadsWhenTheLeaderStopsOrDies(t *testing.T) {
	t.Parallel()
	c := kubetest.Shared(t)
	system := c.Namespace(t, nil)
	config := account(t, c, system)
	var leading atomic.Int32
	_, led, stop := elect(t, config, system, "a", &leading)
	<-led
	var dead atomic.Bool
	mortal := rest.CopyConfig(config)
	mortal.Wrap(func(rt http.RoundTripper) http.RoundTripper { return cable{rt, &dead} })
	b, led, _ := elect(t, mortal, system, "b", &leading)
	stop()
	<-led // the Lease was given up
	c3, led, _ := elect(t, config, system, "c", &leading)
	dead.Store(true)
	<-led // the Lease has ended
	wait.Until(t, "the dead replica does not lead", func() bool { return !b.Leading() && c3.Leading() })
	lease, err := c.Client.CoordinationV1().Leases(system).Get(t.Context(), "pilothouse-leader", metav1.GetOptions{})
	if err != nil || *lease.Spec.HolderIdentity != "c" {
		t.Errorf("the Lease is %+v, %v", lease, err)
	}
}

// One replica of two writes the ConfigMaps; when it stops, the other one goes on.
func TestTheNextLeaderKeepsTheRootConfigMaps(t *testing.T) {
	c := kubetest.Shared(t)
	system, shop := c.Namespace(t, nil), c.Namespace(t, nil)
	config := account(t, c, system)
	a := start(t, config, system, "istiod-1")
	wait.Until(t, "the first replica leads", a.leads)
	b := start(t, config, system, "istiod-2")
	wait.Until(t, "the namespace has the root", func() bool { return rootMap(t, c, shop)["root-cert.pem"] == b.roots() })
	if b.leads() {
		t.Error("two replicas lead")
	}
	a.stop()
	if err := c.Client.CoreV1().ConfigMaps(shop).Delete(t.Context(), "istio-ca-root-cert", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the other replica leads and restores it", func() bool { return b.leads() && rootMap(t, c, shop)["root-cert.pem"] == b.roots() })
}

func TestAReplicaLeadsWithoutElection(t *testing.T) {
	c := kubetest.Shared(t)
	system, shop := c.Namespace(t, nil), c.Namespace(t, nil)
	p := start(t, account(t, c, system), system, "istiod-1", func(o *discovery.Options) { o.Kubernetes.NoElection = true })
	wait.Until(t, "the namespace has the root", func() bool { return rootMap(t, c, shop)["root-cert.pem"] == p.roots() && p.leads() })
	if _, err := c.Client.CoordinationV1().Leases(system).Get(t.Context(), "pilothouse-leader", metav1.GetOptions{}); err == nil {
		t.Error("there is a Lease")
	}
}

// While the API server is down, nothing is lost: the root signs, ConfigMaps stay, tokens are to be tried again.
func TestAnOutageOfTheAPIServerChangesNothing(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t, kubetest.Options{})
	system, shop := c.Namespace(t, nil), c.Namespace(t, nil)
	c.Apply(t, shop, accounts)
	p := start(t, account(t, c, system), system, "istiod-1")
	roots := p.roots()
	wait.Until(t, "the namespace has the root", func() bool { return rootMap(t, c, shop)["root-cert.pem"] == roots })
	token := c.Token(t, shop, "alice", "istio-ca")
	if _, err := p.certificate(token, ""); err != nil {
		t.Fatal(err)
	}
	before := c.Client.CoreV1().ConfigMaps(shop)
	m, err := before.Get(t.Context(), "istio-ca-root-cert", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.StopAPIServer(t)
	within(t, wait.Bound, "a token is neither accepted nor rejected", func() bool {
		_, err := p.certificate(token, "")
		return status.Code(err) == codes.Unavailable
	})
	wait.Until(t, "nobody leads", func() bool { return !p.leads() })
	wait.Until(t, "the rotation says that it stands still", func() bool { return p.metric("pilothouse_ca_rotation_failing") == "1" })
	if p.roots() != roots {
		t.Error("the roots have changed")
	}
	c.StartAPIServer(t)
	within(t, wait.Bound, "the token is accepted again", func() bool {
		_, err := p.certificate(token, "")
		return err == nil
	})
	wait.Until(t, "the replica leads again", p.leads)
	wait.Until(t, "the rotation goes on", func() bool { return p.metric("pilothouse_ca_rotation_failing") == "0" })
	after, err := c.Client.CoreV1().ConfigMaps(shop).Get(t.Context(), "istio-ca-root-cert", metav1.GetOptions{})
	if err != nil || after.ResourceVersion != m.ResourceVersion || p.roots() != roots {
		t.Errorf("the ConfigMap was written again, or the roots have changed: %v", err)
	}
	if err := before.Delete(t.Context(), "istio-ca-root-cert", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a ConfigMap that is deleted afterwards is restored", func() bool { return rootMap(t, c, shop)["root-cert.pem"] == roots })
}

// A join token that Kubernetes makes is good for one certificate, of whichever replica, and nothing else.
func TestAJoinTokenOfKubernetesIsGoodOnce(t *testing.T) {
	c := kubetest.Shared(t)
	system, shop := c.Namespace(t, nil), c.Namespace(t, nil)
	c.Apply(t, shop, accounts)
	config := account(t, c, system)
	replicas := []*plane{start(t, config, system, "istiod-1"), start(t, config, system, "istiod-2")}
	for round := range 3 {
		token := c.Token(t, shop, "alice", "pilothouse-join")
		begin := make(chan struct{})
		errs := make([]error, 6)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				<-begin
				// The cluster has two names.
				_, errs[i] = replicas[i%2].certificate(token, []string{"", "Kubernetes"}[i/2%2])
			})
		}
		close(begin)
		wg.Wait()
		good := 0
		for _, err := range errs {
			if err == nil {
				good++
			} else if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "used up: 1 of 1, last by another machine at ") {
				t.Errorf("round %d: %v", round, err)
			}
		}
		if good != 1 {
			t.Errorf("round %d: %d certificates by one join token, want 1", round, good)
		}
	}
	// One that is for workloads, too, is a join token.
	if _, err := replicas[0].certificate(c.Token(t, shop, "alice", "pilothouse-join", "istio-ca"), ""); err != nil {
		t.Errorf("a token for both audiences: %v", err)
	}
	m, err := c.Client.CoreV1().ConfigMaps(system).Get(t.Context(), "pilothouse-join-tokens", metav1.GetOptions{})
	if err != nil || strings.Count(m.Data["used"], `"token"`) != 4 {
		t.Errorf("%v, %v: want 4 tokens", m.Data, err)
	}
	// What is not a ledger lets nobody in.
	m.Data["used"] = "x"
	if _, err := c.Client.CoreV1().ConfigMaps(system).Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := replicas[0].certificate(c.Token(t, shop, "bob", "pilothouse-join"), ""); status.Code(err) != codes.Unavailable {
		t.Errorf("with a ledger that cannot be read: %v", err)
	}
}

// pilotctl vm join-token has the cluster make the token, and takes the rest from it.
func TestPilotctlMakesAJoinToken(t *testing.T) {
	c := kubetest.Shared(t)
	system, shop := c.Namespace(t, nil), c.Namespace(t, nil)
	c.Apply(t, shop, accounts)
	c.Apply(t, system, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio}\ndata:\n  mesh: |\n    trustDomain: example.org\n    defaultConfig: {concurrency: 3, discoveryAddress: elsewhere:15012}\n")
	p := start(t, account(t, c, system), system, "istiod-1")
	within(t, wait.Bound, "the roots are in the control plane's namespace", func() bool { return rootMap(t, c, system) != nil })
	program := filepath.Join(t.TempDir(), "pilotctl")
	if out, err := exec.Command("go", "build", "-o", program, "../../../cmd/pilotctl").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := func(args ...string) (string, string, error) {
		var said strings.Builder
		cmd := exec.Command(program, append([]string{"vm", "join-token", shop + "/alice", "--address", "mesh.example.com:15012", "-i", system, "--kubeconfig", kubetest.Kubeconfig(t, c.Config)}, args...)...)
		cmd.Stderr = &said
		out, err := cmd.Output()
		return string(out), said.String(), err
	}
	out, said, err := run("--ttl", "20m", "--network", "vms")
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	b, err := join.Decode(out)
	if err != nil {
		t.Fatal(err)
	}
	if b.Identity().SPIFFE() != "spiffe://example.org/ns/"+shop+"/sa/alice" || b.ServerName != "istiod."+system+".svc" || b.ProxyConfig != "concurrency: 3\n" || b.Network != "vms" ||
		time.Until(b.Expires) > 21*time.Minute || time.Until(b.Expires) < 10*time.Minute {
		t.Errorf("%+v", b)
	}
	if certs, err := b.Certificates(); err != nil || string(pki.EncodeCerts(certs...)) != p.roots() {
		t.Errorf("the roots are not the control plane's: %v", err)
	}
	if id, err := p.certificate(b.Token, b.Cluster); err != nil || id != b.Identity().SPIFFE() {
		t.Errorf("%s, %v", id, err)
	}
	for want, args := range map[string][]string{
		"good for one machine": {"--uses", "2"}, "at least 10m0s": {"--ttl", "1m"}, "workloadgroups": {"--group", "none"}, "is -i right?": {"-i", shop + "-no"},
	} {
		if _, said, err := run(args...); err == nil || !strings.Contains(said, want) {
			t.Errorf("%q: %v: %s, want %q", args, err, said, want)
		}
	}
}
