package deployer

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

var key = object.Key{Kind: object.KubernetesGateway, Namespace: "shop", Name: "front"}

func gateway(annotations map[string]string, spec gatewayv1.GatewaySpec) object.Change {
	spec.GatewayClassName = "istio"
	return object.Change{Key: key, Object: &object.Object{Key: key, Meta: object.Meta{UID: "u1", Annotations: annotations}, Spec: &spec}}
}

// begin returns a controller whose API server has objects.
func begin(t *testing.T, log *wait.Output, objects ...runtime.Object) (*Controller, *fake.FakeDynamicClient) {
	t.Helper()
	c, err := New(Options{Config: &rest.Config{Host: "127.0.0.1:1"}, Writes: func(map[string]string) bool { return true }, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	lists := map[schema.GroupVersionResource]string{}
	for _, r := range resources {
		lists[r] = "List"
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)
	c.watching, c.writing = client, client
	return c, client
}

// start runs the controller until the test ends.
func start(t *testing.T, c *Controller) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	c.Open()
}

func TestAccountsThatAreMade(t *testing.T) {
	c, _ := begin(t, &wait.Output{})
	for _, s := range []struct {
		name        string
		change      object.Change
		class, want string // the controller of the class istio, "" for none; the account that is made
	}{
		{"by default", gateway(nil, gatewayv1.GatewaySpec{}), "", "front-istio"},
		{"the class exists", gateway(nil, gatewayv1.GatewaySpec{}), mesh.GatewayController, "front-istio"},
		{"the class is another controller's", gateway(nil, gatewayv1.GatewaySpec{}), "example.com/other", ""},
		{"its user has named an account", gateway(map[string]string{"gateway.istio.io/service-account": "front-istio"}, gatewayv1.GatewaySpec{}), "", ""},
		{"its user has named everything", gateway(map[string]string{"gateway.istio.io/name-override": "front-istio"}, gatewayv1.GatewaySpec{}), "", ""},
		{"its user runs the Pods", gateway(nil, gatewayv1.GatewaySpec{Addresses: []gatewayv1.GatewaySpecAddress{{Type: new(gatewayv1.HostnameAddressType), Value: "own.shop.svc"}}}), "", ""},
	} {
		of := object.Key{Kind: object.GatewayClass, Name: class}
		c.Apply(object.Change{Key: of})
		if s.class != "" {
			c.Apply(object.Change{Key: of, Object: &object.Object{Key: of, Spec: &gatewayv1.GatewayClassSpec{ControllerName: gatewayv1.GatewayController(s.class)}}})
		}
		c.Apply(s.change)
		if got := c.Made("shop", "front-istio"); got != (s.want != "") {
			t.Errorf("%s: front-istio is made: %v, want %v", s.name, got, !got)
		}
		if c.Made("other", "front-istio") || c.Made("shop", "default") || c.Made("shop", "") {
			t.Errorf("%s: accounts of others are said to be made", s.name)
		}
	}
	c.Apply(object.Change{Key: key})
	if c.Made("shop", "front-istio") {
		t.Error("the account of a Gateway that is gone is said to be made")
	}
}

// The ports of ListenerSets follow the Gateway, the sets and the labels of their namespaces.
func TestListenerSetsOfAGateway(t *testing.T) {
	c, _ := begin(t, &wait.Output{})
	spec := gatewayv1.GatewaySpec{GatewayClassName: class, AllowedListeners: &gatewayv1.AllowedListeners{Namespaces: &gatewayv1.ListenerNamespaces{
		From: new(gatewayv1.NamespacesFromSelector), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
	}}}
	set := object.Key{Kind: object.ListenerSet, Namespace: "team", Name: "more"}
	team := object.Key{Kind: object.Namespace, Name: "team"}
	there := object.Change{Key: set, Object: &object.Object{Key: set, Spec: &gatewayv1.ListenerSetSpec{
		ParentRef: gatewayv1.ParentGatewayReference{Name: gatewayv1.ObjectName(key.Name), Namespace: new(gatewayv1.Namespace(key.Namespace))},
		Listeners: []gatewayv1.ListenerEntry{{Name: "more", Port: 8080, Protocol: gatewayv1.HTTPProtocolType}},
	}}}
	labelled := object.Change{Key: team, Object: &object.Object{Key: team, Meta: object.Meta{Labels: map[string]string{"a": "b"}}}}
	for i, s := range []struct {
		change object.Change
		want   int
	}{
		{gateway(nil, spec), 0}, {there, 0}, {labelled, 1}, {object.Change{Key: team}, 0}, {labelled, 1}, {object.Change{Key: set}, 0}, {there, 1}, {gateway(nil, gatewayv1.GatewaySpec{GatewayClassName: class}), 0},
	} {
		c.Apply(s.change)
		if g, wanted := c.wanted(key); !wanted || len(g.Sets) != s.want {
			t.Errorf("step %d: %d listeners of ListenerSets, want %d", i, len(g.Sets), s.want)
		}
	}
}

// What has the name of something that would be made, and belongs to somebody else, stays as it is.
func TestObjectsOfOthersAreNotTouched(t *testing.T) {
	var log wait.Output
	theirs := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "front-istio", "namespace": "shop"},
	}}
	c, client := begin(t, &log, theirs)
	start(t, c)
	c.Apply(gateway(nil, gatewayv1.GatewaySpec{}))
	wait.Until(t, "it is told", func() bool {
		return strings.Contains(log.String(), "serviceaccounts front-istio exists and does not belong to the Gateway")
	})
	for _, a := range client.Actions() {
		if a.GetVerb() == "patch" {
			t.Errorf("%s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

// A Gateway whose parameters are missing is tried again, told once, and holds up no other.
func TestMissingParametersAreTold(t *testing.T) {
	var log wait.Output
	c, client := begin(t, &log)
	client.PrependReactor("patch", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", nil)
	})
	start(t, c)
	c.Apply(gateway(nil, gatewayv1.GatewaySpec{Infrastructure: &gatewayv1.GatewayInfrastructure{ParametersRef: &gatewayv1.LocalParametersReference{Kind: "ConfigMap", Name: "none"}}}))
	wait.Until(t, "it is told", func() bool { return strings.Contains(log.String(), `configmaps \"none\" not found`) })
	wait.Until(t, "it is tried again", func() bool { return c.Metrics().Failures > 2 })
	other := gateway(nil, gatewayv1.GatewaySpec{})
	other.Key.Name, other.Object.Key.Name = "other", "other"
	c.Apply(other)
	wait.Until(t, "the other Gateway is written", func() bool {
		return slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool {
			p, ok := a.(clienttesting.PatchAction)
			return ok && p.GetName() == "other-istio"
		})
	})
	if n := strings.Count(log.String(), `not found`); n != 1 {
		t.Errorf("told %d times:\n%s", n, log.String())
	}
}

func TestSameObject(t *testing.T) {
	one := func(change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(1)}}}
		o.SetLabels(map[string]string{"a": "b"})
		if change != nil {
			change(o)
		}
		return o
	}
	for name, c := range map[string]struct {
		change func(*unstructured.Unstructured)
		same   bool
	}{
		"nothing":     {nil, true},
		"the version": {func(o *unstructured.Unstructured) { o.SetResourceVersion("2") }, true},
		"the revision": {func(o *unstructured.Unstructured) {
			o.SetAnnotations(map[string]string{"deployment.kubernetes.io/revision": "2"})
		}, true},
		"a note":    {func(o *unstructured.Unstructured) { o.SetAnnotations(map[string]string{"x": "y"}) }, false},
		"a label":   {func(o *unstructured.Unstructured) { o.SetLabels(nil) }, false},
		"the spec":  {func(o *unstructured.Unstructured) { o.Object["spec"] = map[string]any{"replicas": int64(2)} }, false},
		"the owner": {func(o *unstructured.Unstructured) { o.SetOwnerReferences([]metav1.OwnerReference{{Name: "x"}}) }, false},
	} {
		if got := sameObject(one(nil), one(c.change)); got != c.same {
			t.Errorf("%s changes: the same %v, want %v", name, got, c.same)
		}
	}
}
