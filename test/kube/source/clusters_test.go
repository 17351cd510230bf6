package source_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/kube"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

// joined is the Service shop/api with one endpoint.
const joined = `
apiVersion: v1
kind: Namespace
metadata: {name: istio-system}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: api-a, namespace: shop, labels: {kubernetes.io/service-name: api}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [ADDRESS], conditions: {ready: true}, nodeName: n1}
`

// withShop starts a cluster with the Service of joined, whose endpoint has an address and is in a region.
func withShop(t *testing.T, address, region string) *kubetest.Cluster {
	t.Helper()
	c := kubetest.Start(t, kubetest.Options{Controllers: []string{}})
	if err := c.MakeNode(t.Context(), "n1", map[string]string{"topology.kubernetes.io/region": region}); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, "the objects are applied", func() error {
		_, err := c.ApplyYAML(t.Context(), "", strings.ReplaceAll(joined, "ADDRESS", address))
		return err
	})
	return c
}

// endpoints returns "address:port region cluster" of each endpoint of the Service, sorted.
func endpoints(t *testing.T, address string) (out []string, err error) {
	t.Helper()
	resources, err := read(t.Context(), address, "client")
	if err != nil {
		return nil, err
	}
	for name, text := range resources {
		if !strings.Contains(name, "outbound|80||api.shop.svc.cluster.local") || !strings.Contains(name, "ClusterLoadAssignment") {
			continue
		}
		var la endpointv3.ClusterLoadAssignment
		if err := proto.Unmarshal([]byte(text), &la); err != nil {
			return nil, err
		}
		for _, l := range la.Endpoints {
			for _, e := range l.LbEndpoints {
				at := e.GetEndpoint().GetAddress().GetSocketAddress()
				workload := e.GetMetadata().GetFilterMetadata()["istio"].GetFields()["workload"].GetStringValue()
				out = append(out, fmt.Sprintf("%s:%d %s %s", at.GetAddress(), at.GetPortValue(), l.GetLocality().GetRegion(), workload[strings.LastIndexByte(workload, ';')+1:]))
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

func awaitEndpoints(t *testing.T, what, address string, want ...string) {
	t.Helper()
	wait.NoError(t, what, func() error {
		got, err := endpoints(t, address)
		if err != nil {
			return err
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("endpoints %q, want %q", got, want)
		}
		return nil
	})
}

// The endpoints of a Service in two API servers are joined, each with its own cluster and locality. The second cluster
// is added, changed, stopped and removed while the control plane runs; while it is stopped, what it had stays.
func TestRemoteClusterComesAndGoes(t *testing.T) {
	one, two := withShop(t, "10.1.0.1", "r1"), withShop(t, "10.2.0.1", "r2")
	address := serve(t, discovery.Options{Kubernetes: discovery.KubernetesOptions{
		API: kube.Options{Kubeconfig: kubetest.Kubeconfig(t, one.Config), QPS: -1}, Cluster: "one",
	}})
	const own, other = "10.1.0.1:8080 r1 one", "10.2.0.1:8080 r2 two"
	awaitEndpoints(t, "the own cluster is read", address, own)
	secrets := one.Client.CoreV1().Secrets("istio-system")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "istio-remote-secret-two", Labels: map[string]string{"istio/multiCluster": "true"}}}
	secret.StringData = map[string]string{"two": kubeconfigText(t, two)}
	if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEndpoints(t, "the remote cluster is joined", address, own, other)

	if _, err := two.ApplyYAML(t.Context(), "", strings.ReplaceAll(joined, "ADDRESS", "10.2.0.2")); err != nil {
		t.Fatal(err)
	}
	awaitEndpoints(t, "a change in the remote cluster is seen", address, own, "10.2.0.2:8080 r2 two")

	two.StopAPIServer(t)
	if _, err := one.ApplyYAML(t.Context(), "", strings.ReplaceAll(joined, "ADDRESS", "10.1.0.2")); err != nil {
		t.Fatal(err)
	}
	awaitEndpoints(t, "with the remote cluster stopped, changes of the own are seen and its endpoints stay", address, "10.1.0.2:8080 r1 one", "10.2.0.2:8080 r2 two")

	started := time.Now()
	second := serve(t, discovery.Options{Kubernetes: discovery.KubernetesOptions{
		API: kube.Options{Kubeconfig: kubetest.Kubeconfig(t, one.Config), QPS: -1}, Cluster: "one", RemoteTimeout: time.Second,
	}})
	awaitEndpoints(t, "a control plane that starts does not wait for a cluster that is stopped", second, "10.1.0.2:8080 r1 one")
	t.Logf("served after %s", time.Since(started))

	if err := secrets.Delete(t.Context(), secret.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEndpoints(t, "the endpoints of a cluster whose Secret is removed are removed", address, "10.1.0.2:8080 r1 one")
}

// kubeconfigText is a kubeconfig of an administrator of a cluster, with its credentials in it.
func kubeconfigText(t *testing.T, c *kubetest.Cluster) string {
	t.Helper()
	text, err := os.ReadFile(kubetest.Kubeconfig(t, c.Config))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The objects of a directory in configSources are used beside those of the cluster, whose own have priority, as soon as
// the mesh configuration has it and until it has not.
func TestDirectoryBesideACluster(t *testing.T) {
	c := withShop(t, "10.1.0.1", "r1")
	c.InstallCRDs(t, kubetest.Istio)
	dir := t.TempDir()
	entry := func(name, address string) string {
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: shop}\n"+
			"spec: {hosts: [%s.example.com], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: %s}]}\n", name, name, address)
	}
	if err := os.WriteFile(dir+"/entries.yaml", []byte(entry("files", "192.0.2.1")+"---\n"+entry("both", "192.0.2.2")), 0o600); err != nil {
		t.Fatal(err)
	}
	mesh := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"configSources: [%s]\"}\n"
	wait.NoError(t, "the objects are applied", func() error {
		c.Mapper.Reset() // discovery lists a new kind a little after its objects can be listed
		_, err := c.ApplyYAML(t.Context(), "", entry("both", "192.0.2.3")+"---\n"+fmt.Sprintf(mesh, ""))
		return err
	})
	address := serve(t, discovery.Options{Kubernetes: discovery.KubernetesOptions{
		API: kube.Options{Kubeconfig: kubetest.Kubeconfig(t, c.Config), QPS: -1}, Cluster: "one",
	}})
	await := func(what, files, both string) {
		t.Helper()
		wait.NoError(t, what, func() error {
			resources, err := read(t.Context(), address, "client")
			if err != nil {
				return err
			}
			for host, want := range map[string]string{"files": files, "both": both} {
				found := ""
				for name, text := range resources {
					if strings.HasSuffix(name, "ClusterLoadAssignment outbound|80||"+host+".example.com") {
						for _, a := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
							if strings.Contains(text, a) {
								found = a
							}
						}
					}
				}
				if found != want {
					return fmt.Errorf("the endpoint of %s.example.com is %q, want %q", host, found, want)
				}
			}
			return nil
		})
	}
	await("the cluster alone", "", "192.0.2.3")
	for _, step := range []struct{ what, sources, files, both string }{
		{"with a directory, too", `{address: k8s://}, {address: fs://` + dir + `}`, "192.0.2.1", "192.0.2.3"},
		{"with a directory only", `{address: fs://` + dir + `}`, "192.0.2.1", "192.0.2.2"},
		{"without it again", "", "", "192.0.2.3"},
	} {
		if _, err := c.ApplyYAML(t.Context(), "", fmt.Sprintf(mesh, step.sources)); err != nil {
			t.Fatal(err)
		}
		await(step.what, step.files, step.both)
	}
}
