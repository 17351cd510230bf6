package check

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/finding"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// authority is a root with a serving certificate.
type authority struct {
	pem  []byte
	root *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := pki.RootTemplate("mesh", pki.Validity{NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(9, 0, 0)})
	root, err := pki.Sign(template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return authority{pki.EncodeCerts(root), root, key}
}

// serving is a certificate that ends after a while, of a day.
func (a authority) serving(t *testing.T, left time.Duration, names ...string) []*x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pki.Sign(pki.ServerTemplate(names, pki.Validity{NotBefore: now.Add(left - 24*time.Hour), NotAfter: now.Add(left)}), a.root, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{c}
}

const service15012 = "istiod.istio-system.svc"

func clockOf(d time.Duration) Clock { return Clock{Sent: now, Received: now, Date: now.Add(d)} }

// webIdentity is that of the proxy of healthyMesh.
const webIdentity = "spiffe://cluster.local/ns/shop/sa/web"

// healthyMesh is a mesh of one proxy, whose Pod is known and whose certificate is half way.
func healthyMesh() Mesh {
	day := func(left time.Duration) Term { return Term{now.Add(left - 24*time.Hour), now.Add(left)} }
	return Mesh{
		Expected: 1, Ports: map[string]string{"xDS": "[::]:15012", "pages": "127.0.0.1:8080", "xDS in plaintext": ""},
		Proxies: []Place{{Proxy: "web.shop", Identity: webIdentity, Address: "10.0.0.1", Addresses: []string{"10.0.0.1"}, Certificate: &Term{now.Add(-23 * time.Hour), now.Add(time.Hour)}}},
		Issued:  []Issued{{webIdentity, "10.0.0.1", day(12 * time.Hour)}, {webIdentity, "10.0.0.2", day(time.Hour)}},
		Issuer:  &Certificate{Subject: "O=cluster.local", SHA256: strings.Repeat("ab", 32), Term: Term{now.AddDate(-1, 0, 0), now.AddDate(9, 0, 0)}},
	}
}

// healthy are the facts about a cluster in which everything works.
func healthy(t *testing.T, a authority) *Facts {
	t.Helper()
	grants := func(rules []Rule) (out []Permission) {
		for _, r := range rules {
			out = append(out, Permission{r, true})
		}
		return out
	}
	versions := map[string][]string{}
	for _, name := range Needed {
		versions[name] = []string{"v1", "v1beta1", "v1alpha3", "v1alpha1"}
	}
	replica := func(name string) Replica {
		return Replica{
			Name: name, Ready: finding.Of("ready", nil), Version: finding.Of("v1", nil), Clock: clockOf(0),
			CA:      finding.Of(CA{Roots: []Root{{SHA256: pki.Fingerprint(a.root), Role: "signs", NotAfter: a.root.NotAfter}}}, nil),
			Proxies: finding.Of([]Proxy{{Proxy: "web.shop", Envoy: "1.39.0", Version: "1.30.3"}}, nil),
			Mesh:    finding.Of(healthyMesh(), nil),
			Serving: finding.Of(a.serving(t, 12*time.Hour, service15012), nil), Webhooks: finding.Of(a.serving(t, 12*time.Hour, service15012), nil),
		}
	}
	return &Facts{
		Now: now, Namespace: "istio-system", Version: "v1",
		Server: finding.Of(Server{"https://192.0.2.1", 1, NewestMinor, "v1.36.3"}, nil), ServerClock: clockOf(0), Phase: finding.Of("Active", nil),
		Permissions: finding.Of(grants(AskedRules("istio-system", "")), nil), Account: finding.Of(grants(AccountRules("istio-system", "")), nil),
		Resources: finding.Of(versions, nil),
		Planes:    finding.Of([]Plane{{"istio-system", "istiod", "default", true, 2, 2, true}}, nil),
		Webhooks: finding.Of([]Webhook{
			{"istio-sidecar-injector", "namespace.sidecar-injector.istio.io", false, "default", "", "istio-system", "istiod", "/inject", a.pem, true},
			{"istio-validator-istio-system", "validation.istio.io", true, "default", "", "istio-system", "istiod", "/validate", a.pem, true},
		}, nil),
		Service:  finding.Of(Service{"istiod", true, []int{15012, 443, 15014}, 2}, nil),
		Roots:    finding.Of(map[string]string{"istio-system": string(a.pem), "shop": string(a.pem)}, nil),
		Replicas: []Replica{replica("istiod-1"), replica("istiod-2")}, Injection: finding.Of(Injection{Namespace: "shop", Injected: true}, nil),
		Validation: finding.Of(Validation{Refused: `admission webhook "validation.istio.io" denied the request: the annotation has it refused`}, nil),
	}
}

// Definitions older than Istio's newest are fine as long as a version that is read is served.
func TestOlderVersionsThatAreRead(t *testing.T) {
	f := healthy(t, newAuthority(t))
	f.Resources.Value["sidecars.networking.istio.io"] = []string{"v1alpha3"}
	if r := resources(f); r.Result != OK {
		t.Errorf("got %+v, want ok", r)
	}
}

// What is checked are the kinds and versions that are read.
func TestReadableVersionsAreThoseOfTheSource(t *testing.T) {
	want := map[string][]string{}
	for _, k := range object.Kinds() {
		if r := decode.ResourceOf(k); strings.HasSuffix(r.Group, ".istio.io") {
			want[r.Name+"."+r.Group] = r.Versions
		}
	}
	if !maps.EqualFunc(readable, want, slices.Equal) {
		t.Errorf("got %v, want %v", readable, want)
	}
}

func TestEverythingWorks(t *testing.T) {
	f := healthy(t, newAuthority(t))
	for _, s := range []Situation{Before, After, Address} {
		rows := Run(f, s)
		if len(rows) < 5 || !finding.Passed(rows) {
			t.Errorf("situation %d: %d rows, not all passed", s, len(rows))
		}
		for _, r := range rows {
			if r.Result != OK || r.Found == "" || r.Remedy != "" || r.Why == "" {
				t.Errorf("situation %d: %+v", s, r)
			}
		}
	}
}

// Each change of the facts turns the row of one check, and no other.
func TestEachCheckFindsWhatIsWrong(t *testing.T) {
	a := newAuthority(t)
	other := newAuthority(t)
	unreachable := "dial tcp: connection refused"
	for _, tt := range []struct {
		name   string
		change func(*Facts)
		row    string
		result Result
		found  string
	}{
		{"no API server", func(f *Facts) { f.Server = Known[Server]{Err: unreachable} }, "API server", Failed, unreachable},
		{"an old one", func(f *Facts) { f.Server.Value.Minor = 24 }, "API server", Failed, "is older than what is supported, 1.25 to 1.36"},
		{"a new one", func(f *Facts) { f.Server.Value.Minor = 37 }, "API server", Warning, "is newer than what is tested"},
		{"another time", func(f *Facts) { f.ServerClock = clockOf(-time.Hour) }, "clock of the API server", Failed, "59m59s behind this machine"},
		{"another time, of no effect", func(f *Facts) { f.ServerClock = clockOf(20 * time.Second) }, "clock of the API server", Warning, "20s ahead of this machine"},
		{"no Date", func(f *Facts) { f.ServerClock.Date = time.Time{} }, "clock of the API server", Unknown, "no Date"},
		{"a namespace that is deleted", func(f *Facts) { f.Phase.Value = "Terminating" }, "namespace", Failed, "istio-system is Terminating"},
		{"a permission to install is missing", func(f *Facts) { deny(f.Permissions.Value, "create deployments.apps in istio-system") }, "permissions to install", Failed, "not allowed: create deployments.apps in istio-system"},
		{"what is granted is not had", func(f *Facts) {
			deny(f.Permissions.Value, "list pods")
			deny(f.Permissions.Value, "escalate clusterroles.rbac.authorization.k8s.io")
		}, "permissions to install", Failed, "not allowed: list pods"},
		{"nobody says what is allowed", func(f *Facts) { f.Permissions.Err = "selfsubjectaccessreviews is forbidden" }, "permissions to install", Unknown, "forbidden"},
		{"a resource is missing", func(f *Facts) { delete(f.Resources.Value, "sidecars.networking.istio.io") }, "Istio's resources", Failed, "not there: sidecars.networking.istio.io"},
		{"a resource is old", func(f *Facts) { f.Resources.Value["sidecars.networking.istio.io"] = []string{"v1alpha1", "v2"} }, "Istio's resources", Failed,
			"without the version that is read: sidecars.networking.istio.io (v1alpha1, v2, want one of v1, v1beta1, v1alpha3)"},
		{"another injects the same", func(f *Facts) {
			f.Webhooks.Value = append(f.Webhooks.Value, Webhook{Configuration: "theirs", Revision: "default", Namespace: "other", Service: "istiod", Path: "/inject"})
		}, "other control planes", Failed, "webhook configuration theirs injects namespaces of revision default too, by other/istiod"},
		{"another's tag", func(f *Facts) {
			f.Webhooks.Value = append(f.Webhooks.Value, Webhook{Configuration: "tag", Revision: "1-30", Tag: "default", Namespace: "istio-system", Service: "istiod-1-30", Path: "/inject"})
		}, "other control planes", Failed, "webhook configuration tag injects"},
		{"another's names", func(f *Facts) { f.Planes.Value[0].Ours = false }, "other control planes", Failed, "is another product's"},
		{"not installed", func(f *Facts) { f.Planes.Value = nil }, "Deployment", Failed, "there is no Deployment of revision default"},
		{"no replica is ready", func(f *Facts) { f.Planes.Value[0].Ready = 0 }, "Deployment", Failed, "0 of 2 replicas"},
		{"one is not", func(f *Facts) { f.Planes.Value[0].Ready = 1 }, "Deployment", Warning, "1 of 2 replicas"},
		{"no endpoints", func(f *Facts) { f.Service.Value.Ready = 0 }, "Service", Failed, "istio-system/istiod has no ready endpoint"},
		{"no Service", func(f *Facts) { f.Service.Value = Service{} }, "Service", Failed, "does not exist"},
		{"no port", func(f *Facts) { f.Service.Value.Ports = []int{15012} }, "Service", Failed, "lacks the port 443"},
		{"a permission is missing", func(f *Facts) { deny(f.Account.Value, "list pods") }, "permissions of the control plane", Failed, "may not list pods"},
		{"a replica does not answer", func(f *Facts) { f.Replicas[1].Ready = Known[string]{Err: unreachable} }, "replicas", Failed, "istiod-2: not known: " + unreachable},
		{"its time", func(f *Facts) { f.Replicas[1].Clock = clockOf(5 * time.Minute) }, "clock of the control plane", Failed, "istiod-2: 5m0s ahead"},
		{"another version", func(f *Facts) { f.Replicas[1].Version.Value = "v2" }, "versions", Warning, "control plane v1, v2, pilotctl v1"},
		{"another pilotctl", func(f *Facts) { f.Version = "v3" }, "versions", Warning, "pilotctl v3"},
		{"other agents", func(f *Facts) { f.Replicas[1].Proxies.Value[0].Version = "1.29.0" }, "versions", Warning, "agents as of Istio 1.29.0, 1.30.3"},
		{"the root has ended", func(f *Facts) { f.Replicas[0].CA.Value.Roots[0].NotAfter = now.Add(-time.Hour) }, "root", Failed, "istiod-1: has ended at 2026-11-22T11:00:00Z"},
		{"the root ends", func(f *Facts) { f.Replicas[0].CA.Value.Roots[0].NotAfter = now.Add(time.Hour) }, "root", Warning, "ends at 2026-11-22T13:00:00Z"},
		{"the CA has a problem", func(f *Facts) { f.Replicas[0].CA.Value.Problem = "no such Secret" }, "root", Warning, "no such Secret"},
		{"a namespace without root", func(f *Facts) { f.Roots.Value["shop"] = "" }, "root in namespaces", Failed, "differs from the mesh's roots in shop (none)"},
		{"a namespace with another", func(f *Facts) { f.Roots.Value["shop"] = string(other.pem) }, "root in namespaces", Failed, "shop (other roots)"},
		{"a certificate has ended", func(f *Facts) { f.Replicas[1].Serving.Value = a.serving(t, -time.Hour, service15012) }, "certificate of port 15012", Failed, "istiod-2: has ended at 2026-11-22T11:00:00Z"},
		{"rules of capture were changed", func(f *Facts) { f.Replicas[0].Mesh.Value.Proxies[0].Capture = "restored 2 times" }, "capture", Warning, "changed in web.shop: restored 2 times"},
		{"a certificate is not renewed", func(f *Facts) { f.Replicas[1].Serving.Value = a.serving(t, time.Hour, service15012) }, "certificate of port 15012", Warning, "is not renewed yet"},
		{"of another root", func(f *Facts) { f.Replicas[1].Serving.Value = other.serving(t, 12*time.Hour, service15012) }, "certificate of port 15012", Failed, "is not that of istiod.istio-system.svc by the roots"},
		{"of another name", func(f *Facts) { f.Replicas[1].Serving.Value = a.serving(t, 12*time.Hour, "example.com") }, "certificate of port 15012", Failed, "is not that of istiod.istio-system.svc by the roots"},
		{"a webhook certificate has ended", func(f *Facts) { f.Replicas[1].Webhooks.Value = a.serving(t, -time.Hour, service15012) }, "certificate of the webhooks", Failed, "has ended"},
		{"the port is closed", func(f *Facts) { f.Replicas[1].Webhooks = Known[[]*x509.Certificate]{Err: unreachable} }, "certificate of the webhooks", Unknown, unreachable},
		{"no caBundle", func(f *Facts) { f.Webhooks.Value[0].Bundle = nil }, "webhook configurations", Failed, "caBundle has no certificate"},
		{"a wrong caBundle", func(f *Facts) { f.Webhooks.Value[1].Bundle = other.pem }, "webhook configurations", Failed, "caBundle does not verify the certificate of istiod-1"},
		{"the policy Ignore", func(f *Facts) { f.Webhooks.Value[0].Fails = false }, "webhook configurations", Warning, "Pods start without their proxy"},
		{"the policy Ignore of the validation", func(f *Facts) { f.Webhooks.Value[1].Fails = false }, "webhook configurations", Warning, "objects are admitted unchecked"},
		{"no configuration that injects", func(f *Facts) { f.Webhooks.Value = f.Webhooks.Value[1:] }, "webhook configurations", Failed, "no webhook injects Pods of revision default"},
		{"the webhook cannot be called", func(f *Facts) { f.Injection.Value = Injection{"shop", false, "failed calling webhook: refused"} }, "injection", Failed, "cannot be called"},
		{"a Pod is not injected", func(f *Facts) { f.Injection.Value.Injected = false }, "injection", Failed, "would be created without one"},
		{"a Pod is refused", func(f *Facts) {
			f.Injection.Value = Injection{"shop", false, "violates PodSecurity restricted"}
		}, "injection", Failed, "violates PodSecurity"},
		{"Pods may not be created", func(f *Facts) {
			f.Injection.Value = Injection{"shop", false, `pods is forbidden: User "x" cannot create resource "pods"`}
		}, "injection", Unknown, "cannot create resource"},
		{"validation is not called", func(f *Facts) { f.Validation.Value.Refused = "" }, "validation", Failed, "would be admitted"},
		{"validation cannot be called", func(f *Facts) { f.Validation.Value.Refused = "failed calling webhook: refused" }, "validation", Failed, "cannot be called"},
		{"a proxy has refused", func(f *Facts) { f.Replicas[0].Proxies.Value[0].Quarantined = []string{"RDS 80"} }, "proxies", Failed, "1 of 2 have refused configuration: web.shop (RDS 80)"},
		{"the issuer ends", func(f *Facts) { f.Replicas[1].Mesh.Value.Issuer.NotAfter = now.Add(-time.Hour) }, "issuer", Failed, "istiod-2: O=cluster.local has ended at"},
		{"the issuer ends soon", func(f *Facts) { f.Replicas[1].Mesh.Value.Issuer.NotAfter = now.Add(time.Hour) }, "issuer", Warning, "sha256 abababababababab"},
		{"no port for others", func(f *Facts) { f.Replicas[0].Mesh.Value.Ports = map[string]string{"pages": "[::]:8080"} }, "ports", Warning, "no port for proxies of other machines: pages at 8080"},
		{"a port is closed", func(f *Facts) { f.Replicas[0].Reached = map[string]string{"xDS": "connection refused"} }, "ports", Failed, "istiod-1: xDS at 15012 cannot be reached from here: connection refused"},
		{"a proxy has left", func(f *Facts) { everywhere(f, "api.shop", true, now.Add(-time.Hour), now.Add(-2*time.Hour)) }, "Pods with a proxy", Failed, "1 of 1 Pods with tlsMode istio: api.shop (not connected since 2026-11-22T11:00:00Z)"},
		{"a proxy never came", func(f *Facts) { everywhere(f, "api.shop", false, now.Add(-time.Hour), now.Add(-2*time.Hour)) }, "Pods with a proxy", Failed, "api.shop (never connected, known since 2026-11-22T11:00:00Z)"},
		{"a proxy starts", func(f *Facts) { everywhere(f, "api.shop", false, now.Add(-time.Second), now.Add(-time.Second)) }, "Pods with a proxy", Warning, "api.shop"},
		{"an address is nobody's", func(f *Facts) { f.Replicas[0].Mesh.Value.Proxies[0].Unknown = true }, "addresses of proxies", Warning, "no workload has the addresses of 1 of 2 connections: web.shop (10.0.0.1)"},
		{"a certificate is not renewed", func(f *Facts) { f.Replicas[0].Mesh.Value.Issued, f.Replicas[1].Mesh.Value.Issued = nil, nil }, "certificates of workloads", Warning, "that of web.shop ends at 2026-11-22T13:00:00Z, and is not renewed yet"},
		{"a certificate has ended", func(f *Facts) {
			for i := range f.Replicas {
				m := &f.Replicas[i].Mesh.Value
				m.Issued, m.Proxies[0].Certificate = nil, &Term{now.Add(-25 * time.Hour), now.Add(-time.Hour)}
			}
		}, "certificates of workloads", Failed, "that of web.shop has ended at 2026-11-22T11:00:00Z"},
		{"nobody knows the proxies", func(f *Facts) { f.Replicas[0].Proxies = Known[[]Proxy]{Err: unreachable} }, "proxies", Unknown, unreachable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := healthy(t, a)
			tt.change(f)
			situation := After
			if tt.row == "namespace" || tt.row == "permissions to install" {
				situation = Before
			}
			for _, r := range Run(f, situation) {
				switch {
				case r.Name == tt.row && (r.Result != tt.result || !strings.Contains(r.Found, tt.found)):
					t.Errorf("%s: %s, %q; want %s with %q", r.Name, r.Result, r.Found, tt.result, tt.found)
				case r.Name == tt.row && r.Remedy == "" && tt.row != "API server":
					t.Errorf("%s: no remedy for %q", r.Name, r.Found)
				case r.Name != tt.row && r.Result != OK:
					t.Errorf("%s is %s, too: %s", r.Name, r.Result, r.Found)
				}
			}
		})
	}
}

// everywhere has a Pod be missing at each replica, since some times.
func everywhere(f *Facts, pod string, was bool, since ...time.Time) {
	for i := range f.Replicas {
		f.Replicas[i].Mesh.Value.Missing = []MissingPod{{pod, was, since[i]}}
	}
}

// A control plane of an older version is no failure: it does not say what is asked.
func TestAnOlderControlPlaneIsAWarning(t *testing.T) {
	f := healthy(t, newAuthority(t))
	f.Replicas[0].Mesh = Known[Mesh]{Err: "404 Not Found: 404 page not found", Asked: true}
	for _, decide := range []func(*Facts) Finding{issuer, ports, missingProxies, unknownAddresses, workloadCertificates, captureDrift} {
		if got := decide(f); got.Result != Warning || !strings.Contains(got.Found, "this version of the control plane does not say it") || got.Remedy == "" {
			t.Errorf("%+v", got)
		}
	}
}

// A Pod is there if its proxy is connected to any replica.
func TestAProxyIsConnectedToOneReplica(t *testing.T) {
	f := healthy(t, newAuthority(t))
	f.Replicas[0].Mesh.Value.Missing = []MissingPod{{"web.shop", false, now.Add(-time.Hour)}}
	if got := missingProxies(f); got.Result != OK {
		t.Errorf("%+v", got)
	}
}

func deny(all []Permission, rule string) {
	for i, p := range all {
		if p.Rule.String() == rule {
			all[i].Allowed = false
		}
	}
}

// A fact that nobody has found out counts as a failure.
func TestWithoutFactsNothingPasses(t *testing.T) {
	for _, s := range []Situation{Before, After, Address} {
		for _, r := range Run(&Facts{Now: now, Namespace: "istio-system"}, s) {
			if r.Result < Unknown || r.Remedy == "" {
				t.Errorf("situation %d: %s is %s: %s (%s)", s, r.Name, r.Result, r.Found, r.Remedy)
			}
		}
	}
}

// An installer who may bind and escalate needs no permission of the control plane, and one who finds the namespace
// need not create it.
func TestPermissionsThatAreNotNeeded(t *testing.T) {
	f := healthy(t, newAuthority(t))
	deny(f.Permissions.Value, "list pods")
	deny(f.Permissions.Value, "create namespaces")
	if got := permissions(f); got.Result != OK {
		t.Errorf("%+v", got)
	}
	f.Phase.Value = ""
	if got := permissions(f); got.Result != Failed || !strings.Contains(got.Found, "create namespaces") {
		t.Errorf("without the namespace: %+v", got)
	}
}

func TestDifferenceOfClocks(t *testing.T) {
	at := func(s float64) time.Time { return now.Add(time.Duration(s * float64(time.Second))) }
	for _, tt := range []struct {
		sent, received, date float64
		want                 time.Duration
	}{
		{0.2, 0.4, 0, 0}, // the Date is of whole seconds
		{0.2, 3.4, 3, 0}, // a slow answer
		{0.2, 0.4, 5, 4600e6}, {0.5, 0.6, -9, -8500e6},
	} {
		if got := (Clock{Sent: at(tt.sent), Received: at(tt.received), Date: at(tt.date)}).Difference(); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

func TestConstantsOfOthers(t *testing.T) {
	if finding.MostSkew != policy.Backdate {
		t.Errorf("finding.MostSkew is %s, certificates are valid from %s before their issue on", finding.MostSkew, policy.Backdate)
	}
	text, err := os.ReadFile("../../test/kube/server/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "k8s.io/kubernetes v1.36.") || NewestMinor != 36 {
		t.Errorf("NewestMinor is %d: want the version of Kubernetes of test/kube/server/go.mod", NewestMinor)
	}
}

// docs/check.md has every check with its reason.
func TestChecksAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Checks {
		if !strings.Contains(string(text), "| "+c.Name+" | ") || !strings.Contains(string(text), " | "+c.Why+" | ") {
			t.Errorf("docs/check.md has no row for %q with the reason %q", c.Name, c.Why)
		}
	}
}
