package xds

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// vault has Secrets of the namespace shop whose names begin with "a", with one version that can be changed.
type vault struct {
	mu      sync.Mutex
	version string
	wishes  int
	changed chan struct{}
}

func newVault() *vault { return &vault{version: "1", changed: make(chan struct{})} }

func (v *vault) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

func (v *vault) Want(credentials.Caller) func() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wishes++
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.wishes--
	}
}

// wanted is how many streams want Secrets.
func (v *vault) wanted() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.wishes
}

func (v *vault) Get(who credentials.Caller, n credentials.Name) credentials.Answer {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.version == "pending" {
		return credentials.Answer{State: credentials.Pending}
	}
	if who.Identity.Namespace != n.Namespace {
		return credentials.Answer{State: credentials.Forbidden}
	}
	if !strings.HasPrefix(n.Secret, "a") || v.version == "" {
		return credentials.Answer{State: credentials.Missing}
	}
	c := &credentials.Credential{Chain: []byte("chain " + v.version), Key: []byte("key"), CA: []byte("ca"), Version: v.version}
	return credentials.Answer{State: credentials.Found, Credential: c}
}

func (v *vault) set(version string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.version = version
	close(v.changed)
	v.changed = make(chan struct{})
}

func secretsOf(t *testing.T, v *vault, auth Authenticate) deltaStream {
	t.Helper()
	g, _ := countedSecretsOf(t, v, auth)
	return g
}

// countedSecretsOf also returns the server's metrics.
func countedSecretsOf(t *testing.T, v *vault, auth Authenticate) (deltaStream, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	s := New(&oneClass{latest: NewLatestView((&View{}).At(1))}, quiet(t), reg)
	s.ServeSecrets(v)
	return open(t, dial(t, s, auth)), reg
}

func recvSecrets(t *testing.T, g deltaStream) (m *discoveryv3.DeltaDiscoveryResponse, names []string) {
	t.Helper()
	m, err := g.Recv()
	if err != nil || m.GetTypeUrl() != SecretType {
		t.Fatalf("%v (%v), want secrets", m, err)
	}
	for _, r := range m.GetResources() {
		names = append(names, r.GetName())
	}
	return m, names
}

var gateway = mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "web"}

// A proxy gets what it may have, is told what it does not get, and gets a new version when there is one. A Secret that is
// removed stays with it.
func TestSecretsAreSentByName(t *testing.T) {
	v := newVault()
	g, reg := countedSecretsOf(t, v, as(gateway))
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: SecretType, ResourceNamesSubscribe: []string{
		"kubernetes://a", "kubernetes://a-cacert", "kubernetes://b", "kubernetes://other/a", "default",
	}})
	m, names := recvSecrets(t, g)
	if want := []string{"kubernetes://a", "kubernetes://a-cacert"}; !slices.Equal(names, want) {
		t.Errorf("sent %q, want %q", names, want)
	}
	if want := []string{"default", "kubernetes://b", "kubernetes://other/a"}; !slices.Equal(m.GetRemovedResources(), want) {
		t.Errorf("absent are %q, want %q", m.GetRemovedResources(), want)
	}
	if n := metricValue(t, reg, "pilot_sds_certificate_errors_total"); n != 3 {
		t.Errorf("%v secrets that were not given are counted, want 3", n)
	}
	var one tlsv3.Secret
	if err := m.GetResources()[0].GetResource().UnmarshalTo(&one); err != nil || string(one.GetTlsCertificate().GetCertificateChain().GetInlineBytes()) != "chain 1" {
		t.Errorf("%v (%v)", &one, err)
	}
	v.set("2") // not sent before the first response is answered
	v.set("3")
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: SecretType, ResponseNonce: m.GetNonce()})
	m, names = recvSecrets(t, g)
	if len(names) != 2 || m.GetResources()[0].GetVersion() != "3" {
		t.Errorf("after a change: %v", names)
	}
	// A refused version is not sent again until it changes; what is removed is not taken away.
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: SecretType, ResponseNonce: m.GetNonce(), ErrorDetail: &rpcstatus.Status{Message: "no"}})
	v.set("")
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: SecretType, ResourceNamesUnsubscribe: []string{"kubernetes://a-cacert"}})
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL()}) // its answer says that what came before has been handled
	if m, err := g.Recv(); err != nil || m.GetTypeUrl() != CDS.URL() {
		t.Fatalf("%v (%v)", m, err)
	}
	v.set("4")
	if m, names = recvSecrets(t, g); !slices.Equal(names, []string{"kubernetes://a"}) || len(m.GetRemovedResources()) != 0 {
		t.Errorf("after a removal and a new version: %q, removed %q", names, m.GetRemovedResources())
	}
}

// A proxy refuses a response for one secret in it. It gets all others, in responses without that one.
func TestASecretThatIsRefusedKeepsBackNoOther(t *testing.T) {
	const bad = "kubernetes://a4"
	var all []string
	for i := range 9 {
		all = append(all, "kubernetes://a"+strconv.Itoa(i))
	}
	v := newVault()
	g := secretsOf(t, v, as(gateway))
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: SecretType, ResourceNamesSubscribe: all})
	alone := 0
	have := map[string]string{}
	answer := func() {
		t.Helper()
		m, names := recvSecrets(t, g)
		r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: SecretType, ResponseNonce: m.GetNonce()}
		if slices.Contains(names, bad) && m.GetResources()[0].GetVersion() != "2" {
			r.ErrorDetail = &rpcstatus.Status{Message: "no"}
			if len(names) == 1 {
				alone++
			}
		} else {
			for _, one := range m.GetResources() {
				have[one.GetName()] = one.GetVersion()
			}
		}
		ask(t, g, r)
	}
	for len(have) < len(all)-1 || alone == 0 {
		answer()
	}
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL()}) // nothing more comes before its answer
	if m, err := g.Recv(); err != nil || m.GetTypeUrl() != CDS.URL() || alone != 1 || have[bad] != "" {
		t.Fatalf("%v (%v), the secret alone was sent %d times, the proxy has %v", m, err, alone, have)
	}
	v.set("2")
	answer()
	if have[bad] != "2" || len(have) != len(all) {
		t.Errorf("after a change the proxy has %v", have)
	}
}

// A proxy that comes back with what it has is sent what has changed.
func TestUnchangedSecretsAreNotSentAgain(t *testing.T) {
	v := newVault()
	g := secretsOf(t, v, as(gateway))
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{
		Node: node(nil), TypeUrl: SecretType, ResourceNamesSubscribe: []string{"kubernetes://a", "kubernetes://a-cacert"},
		InitialResourceVersions: map[string]string{"kubernetes://a": "1", "kubernetes://a-cacert": "0"},
	})
	if _, names := recvSecrets(t, g); !slices.Equal(names, []string{"kubernetes://a-cacert"}) {
		t.Errorf("sent %q", names)
	}
}

func TestCallersWithoutIdentityGetNoSecrets(t *testing.T) {
	g := secretsOf(t, newVault(), nil)
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: SecretType, ResourceNamesSubscribe: []string{"kubernetes://a"}})
	if m, names := recvSecrets(t, g); len(names) != 0 || !slices.Equal(m.GetRemovedResources(), []string{"kubernetes://a"}) {
		t.Errorf("sent %q, removed %q", names, m.GetRemovedResources())
	}
}

func TestSecretsOfTheStateOfTheWorld(t *testing.T) {
	s := New(&oneClass{latest: NewLatestView((&View{}).At(1))}, quiet(t), nil)
	v := newVault()
	s.ServeSecrets(v)
	g, err := dial(t, s, as(gateway)).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(r *discoveryv3.DiscoveryRequest) {
		t.Helper()
		r.TypeUrl = SecretType
		if err := g.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	recv := func(want string) *discoveryv3.DiscoveryResponse {
		t.Helper()
		m, err := g.Recv()
		var one tlsv3.Secret
		if err != nil || len(m.GetResources()) != 1 || m.GetResources()[0].UnmarshalTo(&one) != nil || string(one.GetTlsCertificate().GetCertificateChain().GetInlineBytes()) != want {
			t.Fatalf("%v (%v), want %q", m, err, want)
		}
		return m
	}
	send(&discoveryv3.DiscoveryRequest{Node: node(nil), ResourceNames: []string{"kubernetes://a", "kubernetes://b"}})
	m := recv("chain 1")
	send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{"kubernetes://a", "kubernetes://b"}, ResponseNonce: m.GetNonce(), VersionInfo: m.GetVersionInfo()})
	v.set("2")
	recv("chain 2")
}

// Nothing is said of a secret before it is known whether the proxy may have it. The stream wants Secrets while it does, and no longer.
func TestNothingIsSaidOfASecretThatIsNotKnownYet(t *testing.T) {
	v := newVault()
	v.set("pending")
	g := secretsOf(t, v, as(gateway))
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: SecretType, ResourceNamesSubscribe: []string{"kubernetes://a", "kubernetes://b", "kubernetes://other/a"}})
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: CDS.URL()})
	if m, err := g.Recv(); err != nil || m.GetTypeUrl() != CDS.URL() {
		t.Fatalf("%v (%v)", m, err)
	}
	if v.wanted() != 1 {
		t.Errorf("%d streams want Secrets, want 1", v.wanted())
	}
	v.set("1")
	m, names := recvSecrets(t, g)
	if !slices.Equal(names, []string{"kubernetes://a"}) || !slices.Equal(m.GetRemovedResources(), []string{"kubernetes://b", "kubernetes://other/a"}) {
		t.Errorf("sent %q, removed %q", names, m.GetRemovedResources())
	}
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: SecretType, ResourceNamesUnsubscribe: []string{"kubernetes://a", "kubernetes://b", "kubernetes://other/a"}})
	wait.Until(t, "none is wanted any more", func() bool { return v.wanted() == 0 })
	ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: SecretType, ResourceNamesSubscribe: []string{"kubernetes://a"}})
	wait.Until(t, "one is wanted", func() bool { return v.wanted() == 1 })
	if err := g.CloseSend(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "none is wanted after the stream", func() bool { return v.wanted() == 0 })
}
