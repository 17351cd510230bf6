package status_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	kubetest "github.com/pilothouse/pilothouse/test/kube"
	"github.com/pilothouse/pilothouse/test/wait"
)

// route is a VirtualService with one route.
func route(name string) string {
	return `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews}
spec: {hosts: [reviews], http: [{name: ` + name + `, route: [{destination: {host: reviews}}]}]}
`
}

const service = `apiVersion: v1
kind: Service
metadata: {name: reviews}
spec: {ports: [{name: http, port: 9080}]}
`

// An object's status says how many proxies have applied its newest version, as soon as they have.
func TestStatusFollowsAChange(t *testing.T) {
	e := begin(t)
	a, b := connect(t, e.shop, "a", e.grpc()), connect(t, e.shop, "b", e.grpc())
	e.c.Apply(t, e.shop, service)
	e.c.Apply(t, e.shop, route("first"))
	s := e.until("reviews", "True UpToDate 2/2 proxies up to date to latest generation 1 | True NothingFound ")
	if s.ObservedGeneration != 1 || len(s.ValidationMessages) != 0 {
		t.Errorf("%+v", s)
	}
	if !a.has("first") || !b.has("first") {
		t.Error("the status was written before the proxies had the route")
	}
	b.pause()
	e.c.Apply(t, e.shop, route("second"))
	e.until("reviews", "False StillPropagating 1/2 proxies up to date to latest generation 2 | True NothingFound ")
	b.resume()
	e.until("reviews", "True UpToDate 2/2 proxies up to date to latest generation 2 | True NothingFound ")
}

func TestStatusHasRefusalsOfProxies(t *testing.T) {
	e := begin(t)
	a := connect(t, e.shop, "a", e.grpc())
	e.c.Apply(t, e.shop, service)
	e.c.Apply(t, e.shop, route("first"))
	e.until("reviews", "True UpToDate 1/1 proxies up to date to latest generation 1 | True NothingFound ")
	a.refuse("second")
	e.c.Apply(t, e.shop, route("second"))
	s := e.untilHas("reviews", "False RefusedByProxies 0/1 proxies up to date to latest generation 2; 1 have refused it | False ErrorsFound ", "it is refused by the test")
	if len(s.ValidationMessages) != 1 || s.ValidationMessages[0].Level != "ERROR" || s.ValidationMessages[0].Type.Code != "PHS0003" {
		t.Errorf("messages %+v", s.ValidationMessages)
	}
	e.c.Apply(t, e.shop, route("third"))
	s = e.until("reviews", "True UpToDate 1/1 proxies up to date to latest generation 3 | True NothingFound ")
	if len(s.ValidationMessages) != 0 {
		t.Errorf("messages %+v", s.ValidationMessages)
	}
}

func TestStatusHasVerdicts(t *testing.T) {
	e := begin(t)
	connect(t, e.shop, "a", e.grpc())
	e.c.Apply(t, e.shop, service)
	e.c.Apply(t, e.shop, route("first"))
	e.until("reviews", "True UpToDate 1/1 proxies up to date to latest generation 1 | True NothingFound ")
	e.c.Apply(t, e.shop, strings.Replace(route("first"), "}]}\n", "}], tcp: [{match: [{sourceSubnet: 10.0.0.0/8}], route: [{destination: {host: reviews}}]}]}\n", 1))
	s := e.untilHas("reviews", "generation 2 | False WarningsFound spec.tcp[0].match[0].sourceSubnet: not applied", "a match with this condition is left out")
	if len(s.ValidationMessages) != 1 || s.ValidationMessages[0].Level != "WARNING" || s.ValidationMessages[0].Type.Code != "PHS0002" {
		t.Errorf("messages %+v", s.ValidationMessages)
	}
	// The definition allows what the control plane rejects.
	e.c.Apply(t, e.shop, strings.Replace(route("first"), "{destination: {host: reviews}}", "{destination: {host: reviews}, weight: -1}", 1))
	s = e.untilHas("reviews", "False Rejected generation 3 is rejected; generation 2 stays in force | False ErrorsFound ", "weight")
	if s.ValidationMessages[0].Level != "ERROR" || s.ValidationMessages[0].Type.Code != "PHS0001" {
		t.Errorf("messages %+v", s.ValidationMessages)
	}
	e.c.Apply(t, e.shop, route("second"))
	e.until("reviews", "True UpToDate 1/1 proxies up to date to latest generation 4 | True NothingFound ")
}

// What others have written to a status stays, while this control plane writes its own part.
func TestStatusKeepsWhatOthersWrite(t *testing.T) {
	e := begin(t)
	e.c.Apply(t, e.shop, route("first"))
	e.until("reviews", "True NotUsed 0/0 proxies up to date to latest generation 1 | True NothingFound ")
	other := map[string]any{"type": "Programmed", "status": "True", "reason": "Ours", "message": "by somebody else"}
	before := e.object("reviews")
	conditions, _ := before.Object["status"].(map[string]any)["conditions"].([]any)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"conditions": append([]any{other}, conditions...), "validationMessages": []any{map[string]any{"level": "INFO", "type": map[string]any{"code": "IST0102", "name": "x"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.of("virtualservices").Patch(t.Context(), "reviews", types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "another"}, "status"); err != nil {
		t.Fatal(err)
	}
	e.c.Apply(t, e.shop, route("second"))
	s := e.until("reviews", "True NotUsed 0/0 proxies up to date to latest generation 2 | True NothingFound ")
	if c := s.Conditions[0]; c.Type != "Programmed" || c.Message != "by somebody else" {
		t.Errorf("conditions %+v", s.Conditions)
	}
	if len(s.ValidationMessages) != 1 || s.ValidationMessages[0].Type.Code != "IST0102" {
		t.Errorf("messages %+v", s.ValidationMessages)
	}
}

// A thousand changes of ten objects are written within the bounds, and what is written last is true. Then nothing is
// written, by this control plane or by the next.
func TestStatusesAreWrittenSparingly(t *testing.T) {
	e := begin(t)
	connect(t, e.shop, "a", e.grpc())
	e.c.Apply(t, e.shop, service)
	const objects, changes = 10, 100
	for object := range objects {
		e.c.Apply(t, e.shop, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r%d}\nspec: {host: h%d.example.com}\n", object, object))
	}
	_, from := e.written(0)
	start := time.Now()
	var writers sync.WaitGroup
	for object := range objects {
		writers.Go(func() {
			for change := range changes {
				patch := fmt.Appendf(nil, `{"spec": {"trafficPolicy": {"connectionPool": {"tcp": {"maxConnections": %d}}}}}`, change+1)
				if _, err := e.of("destinationrules").Patch(t.Context(), fmt.Sprintf("r%d", object), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	for object := range objects {
		e.untilKind("destinationrules", fmt.Sprintf("r%d", object), fmt.Sprintf("True NotUsed 0/0 proxies up to date to latest generation %d | True NothingFound ", changes+1))
	}
	took := time.Since(start)
	all, from := e.written(from)
	per := objectstatus.DefaultPace.Interval
	if most := objects * (2 + int(took/per)); len(all) > most {
		t.Errorf("%d writes in %s, want at most %d: one of an object in %s", len(all), took, most, per)
	}
	t.Logf("%d writes in %s", len(all), took)
	// A status that is written after the others would have been shows that they are not.
	rest := func(name string) {
		t.Helper()
		e.c.Apply(t, e.shop, strings.ReplaceAll(route("first"), "reviews", name))
		e.untilHas(name, "True ", " proxies up to date to latest generation 1 | True NothingFound ")
		all, size := e.written(from)
		for _, o := range all {
			if !strings.HasPrefix(o, "virtualservices") {
				t.Errorf("at rest, the status of %s was written", o)
			}
		}
		from = size
	}
	rest("at-rest")
	e.plane.stop()
	e.pace = objectstatus.Pace{Interval: time.Millisecond} // whatever differs is written at once
	e.plane = e.start("istiod-2")
	rest("after-a-restart")
}

// The status of an object whose definition has none is not written, which is said once.
func TestObjectsWithoutStatus(t *testing.T) {
	c := kubetest.Start(t, kubetest.Options{Controllers: []string{"serviceaccount-controller", "namespace-controller", "root-ca-certificate-publisher-controller"}})
	e := beginOn(t, c, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: virtualservices.networking.istio.io}
spec:
  group: networking.istio.io
  scope: Namespaced
  names: {kind: VirtualService, listKind: VirtualServiceList, plural: virtualservices, singular: virtualservice}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`)
	e.c.Apply(t, e.shop, route("first"))
	e.plane.logs("have no status")
	e.c.Apply(t, e.shop, route("second"))
	e.c.Apply(t, e.shop, strings.ReplaceAll(route("second"), "reviews", "ratings"))
	wait.Until(t, "the objects have been looked at", func() bool { return e.plane.metric("pilothouse_leader") == "1" })
	if n := strings.Count(e.plane.log.String(), "have no status"); n != 1 {
		t.Errorf("it is said %d times", n)
	}
}
