package decode_test

import (
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// What an API server serves is decoded as the same text in a file is.
func TestServedEqualsDocuments(t *testing.T) {
	for name, tt := range map[string]struct {
		kind object.Kind
		text string
	}{
		"valid":            {object.VirtualService, `{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"a","namespace":"n","labels":{"l":"v"},"creationTimestamp":"2026-01-02T03:04:05Z","resourceVersion":"7","generation":3,"managedFields":[{"manager":"m"}]},"spec":{"hosts":["a"]},"status":{"x":1}}`},
		"another version":  {object.DestinationRule, `{"apiVersion":"networking.istio.io/v1alpha3","kind":"DestinationRule","metadata":{"name":"a","namespace":"n"},"spec":{"host":"a"}}`},
		"an unknown field": {object.VirtualService, `{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"a","namespace":"n"},"spec":{"hosts":["a"],"htpp":[]}}`},
		"two problems":     {object.VirtualService, `{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"a","namespace":"n"},"spec":{"hosts":"a","http":[{"timeout":"soon"}]}}`},
		"a broken policy":  {object.PeerAuthentication, `{"apiVersion":"security.istio.io/v1","kind":"PeerAuthentication","metadata":{"name":"a","namespace":"n"},"spec":{"selector":{"matchLabels":{"app":"x"}},"mtls":{"mode":"STRICTEST"}}}`},
		"no name":          {object.VirtualService, `{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{}}`},
		"not JSON":         {object.PeerAuthentication, `{"apiVersion":"security.istio.io/v1","kind":"PeerAuthentication","metadata":{"name":"a","name`},
	} {
		o, problems := decode.Served(tt.kind, []byte(tt.text))
		want := decode.Documents("a.json", []byte(tt.text))
		for i := range want.Problems {
			want.Problems[i].Origin = object.Origin{}
		}
		if len(problems)+len(want.Problems) > 0 && !reflect.DeepEqual(problems, want.Problems) {
			t.Errorf("%s: problems %+v\nwant %+v", name, problems, want.Problems)
		}
		if len(want.Objects) == 1 {
			w := want.Objects[0]
			if w.Origin = (object.Origin{}); o.Key != w.Key || !reflect.DeepEqual(o.Meta, w.Meta) || o.Origin != w.Origin || !proto.Equal(o.Spec.(proto.Message), w.Spec.(proto.Message)) {
				t.Errorf("%s: %+v\nwant %+v", name, o, w)
			}
		} else if len(problems) == 0 || o.Key != problems[0].Key {
			t.Errorf("%s: key %v, problems %v", name, o.Key, problems)
		}
	}
	if _, problems := decode.Served(object.Sidecar, []byte("")); len(problems) != 1 || !strings.Contains(problems[0].Text, "Sidecar") {
		t.Errorf("nothing: problems %v", problems)
	}
}

func TestResources(t *testing.T) {
	for kind, want := range map[object.Kind]decode.Resource{
		object.Node:                  {Versions: []string{"v1"}, Name: "nodes"},
		object.Pod:                   {Versions: []string{"v1"}, Name: "pods", Namespaced: true},
		object.EndpointSlice:         {Group: "discovery.k8s.io", Versions: []string{"v1"}, Name: "endpointslices", Namespaced: true},
		object.ServiceEntry:          {Group: "networking.istio.io", Versions: []string{"v1", "v1beta1", "v1alpha3"}, Name: "serviceentries", Namespaced: true},
		object.AuthorizationPolicy:   {Group: "security.istio.io", Versions: []string{"v1", "v1beta1"}, Name: "authorizationpolicies", Namespaced: true, Enforces: true},
		object.RequestAuthentication: {Group: "security.istio.io", Versions: []string{"v1", "v1beta1"}, Name: "requestauthentications", Namespaced: true, Enforces: true},
		object.PeerAuthentication:    {Group: "security.istio.io", Versions: []string{"v1", "v1beta1"}, Name: "peerauthentications", Namespaced: true, Enforces: true},
		object.WasmPlugin:            {Group: "extensions.istio.io", Versions: []string{"v1alpha1"}, Name: "wasmplugins", Namespaced: true, Refusable: true},
		object.TrafficExtension:      {Group: "extensions.istio.io", Versions: []string{"v1alpha1"}, Name: "trafficextensions", Namespaced: true, Refusable: true},
	} {
		if got := decode.ResourceOf(kind); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", kind, got, want)
		}
	}
	for _, kind := range object.Kinds() {
		r := decode.ResourceOf(kind)
		if got, err := object.ParseKind(r.Name + "." + r.Group); err != nil || got != kind {
			t.Errorf("%s: resource %q", kind, r.Name)
		}
		if in := decode.ResourceOf(kind).Namespaced; in == (kind == object.Namespace || kind == object.Node || kind == object.GatewayClass || kind == object.IngressClass) {
			t.Errorf("%s: namespaced %v", kind, in)
		}
	}
}

// What nothing reads is not kept, since there may be ten thousand Pods.
func TestAnnotationsThatAreNotKept(t *testing.T) {
	const applied = `annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}", networking.istio.io/exportTo: "."}`
	r := decode.Documents("a.yaml", []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a, "+applied+"}\n---\n"+
		"apiVersion: v1\nkind: Service\nmetadata: {name: a, "+applied+"}\n---\n"+
		"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a, annotations: {kubectl.kubernetes.io/last-applied-configuration: x}}\n"))
	if len(r.Objects) != 3 || len(r.Problems) > 0 {
		t.Fatalf("%+v", r)
	}
	pod, service, sidecar := r.Objects[0].Meta.Annotations, r.Objects[1].Meta.Annotations, r.Objects[2].Meta.Annotations
	if pod != nil || !reflect.DeepEqual(service, map[string]string{"networking.istio.io/exportTo": "."}) || sidecar != nil {
		t.Errorf("kept %v, %v, %v", pod, service, sidecar)
	}
}
