package admit_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
)

// raw turns YAML into JSON as the API server sends it.
func raw(t testing.TB, text string) []byte {
	t.Helper()
	if text == "" {
		return nil
	}
	out, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func request(t testing.TB, op admissionv1.Operation, now, before string) *admissionv1.AdmissionRequest {
	q := &admissionv1.AdmissionRequest{UID: "u1", Operation: op, Namespace: "shop"}
	q.Object.Raw, q.OldObject.Raw = raw(t, now), raw(t, before)
	return q
}

// virtualService returns one with a spec; labels and more of the metadata may be given.
func virtualService(spec string, metadata ...string) string {
	return "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: reviews, namespace: shop" + strings.Join(append([]string{""}, metadata...), ", ") + "}\nspec: " + spec
}

// route returns a route to a host.
func route(host string) string { return fmt.Sprintf("{route: [{destination: {host: %q}}]}", host) }

const (
	valid      = "{hosts: [reviews], http: [{route: [{destination: {host: reviews}}]}]}"
	badHost    = `{hosts: ["re views"], http: [{route: [{destination: {host: reviews}}]}]}`
	badHostNow = `{hosts: ["re views"], http: [{route: [{destination: {host: ratings}}]}]}`
	noAction   = "{hosts: [reviews], http: [{}]}"
	unknown    = "{hosts: [reviews], newField: 1, http: [{route: [{destination: {host: reviews}}]}]}"
	policy     = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicies\nmetadata: {name: deny, namespace: shop}\nspec: {action: "
	meshConfig = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: %s}\ndata: {mesh: 'trustDomain: \"a b\"'}"
)

func badRoutes(routes ...string) string {
	return "{hosts: [reviews], http: [" + strings.Join(routes, ", ") + "]}"
}

var decisions = map[string]struct {
	op          admissionv1.Operation
	now, before string
	// What the message, a warning and the reason contain; "" means that there is none. An object is refused if
	// there is a message.
	message, warning, reason string
}{
	"valid":                        {op: "CREATE", now: virtualService(valid)},
	"invalid host":                 {op: "CREATE", now: virtualService(badHost), message: "spec.hosts[0]: invalid host"},
	"unknown field":                {op: "CREATE", now: virtualService(unknown), message: "spec.newField: unknown field"},
	"a name to be generated":       {op: "CREATE", now: strings.Replace(virtualService(valid), "name:", "generateName:", 1)},
	"a namespace not set yet":      {op: "CREATE", now: strings.Replace(virtualService(valid), ", namespace: shop", "", 1)},
	"a warning of the loop":        {op: "CREATE", now: "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a, namespace: shop}\nspec: {}", warning: "spec: is empty"},
	"update to an invalid host":    {op: "UPDATE", now: virtualService(badHost), before: virtualService(valid), message: "spec.hosts[0]: invalid host"},
	"the stored host is invalid":   {op: "UPDATE", now: virtualService(badHostNow), before: virtualService(badHost), warning: "spec.hosts[0]: invalid host"},
	"labels of a broken object":    {op: "UPDATE", now: virtualService(noAction, "labels: {a: b}"), before: virtualService(noAction), warning: "spec.http[0]"},
	"finalizer of a broken one":    {op: "UPDATE", now: virtualService(noAction), before: virtualService(noAction, "finalizers: [a/b]"), warning: "spec.http[0]"},
	"a broken one being deleted":   {op: "UPDATE", now: virtualService(badHost, "deletionTimestamp: '2026-01-01T00:00:00Z'"), before: virtualService(valid), reason: "being deleted"},
	"a broken one is mended":       {op: "UPDATE", now: virtualService(valid), before: virtualService(badHost)},
	"another fault":                {op: "UPDATE", now: virtualService(strings.Replace(badHost, "reviews}", `"ra tings"}`, 1)), before: virtualService(badHost), message: "destination.host", warning: "spec.hosts[0]: invalid host"},
	"the fault moves in its list":  {op: "UPDATE", now: virtualService(badRoutes("{match: [{uri: {prefix: /x}}], route: [{destination: {host: x}}]}", "{match: [{uri: {prefix: /z}}], route: [{destination: {host: z}}]}", route("b b"))), before: virtualService(badRoutes(route("b b"))), warning: "spec.http[2]"},
	"the fault twice":              {op: "UPDATE", now: virtualService(`{hosts: ["a b", "a b"], http: [{route: [{destination: {host: reviews}}]}]}`), before: virtualService(`{hosts: ["a b"], http: [{route: [{destination: {host: reviews}}]}]}`), message: "spec.hosts[1]", warning: "spec.hosts[0]"},
	"an unknown field that stays":  {op: "UPDATE", now: virtualService(strings.Replace(unknown, "host: reviews", "host: ratings", 1)), before: virtualService(unknown), warning: "spec.newField"},
	"and another fault next to it": {op: "UPDATE", now: virtualService(strings.Replace(unknown, "host: reviews", `host: "ra tings"`, 1)), before: virtualService(unknown), message: "destination.host", warning: "spec.newField"},
	"one of two faults is mended":  {op: "UPDATE", now: virtualService(badHost), before: virtualService(strings.Replace(badHost, "{hosts", "{newField: 1, hosts", 1)), warning: "spec.hosts[0]"},
	"a faulty part is changed":     {op: "UPDATE", now: virtualService(badRoutes("{route: [{destination: {host: x}, weight: 0}, {destination: {host: z}, weight: 0}]}")), before: virtualService(badRoutes("{route: [{destination: {host: x}, weight: 0}, {destination: {host: y}, weight: 0}]}")), message: "spec.http[0].route"},
	"without the object before":    {op: "UPDATE", now: virtualService(badHost), message: "spec.hosts[0]"},
	"delete":                       {op: "DELETE", before: virtualService(badHost), reason: "only CREATE and UPDATE"},
	"connect":                      {op: "CONNECT", now: "{}", reason: "only CREATE and UPDATE"},
	"a kind without effect":        {op: "CREATE", now: "apiVersion: install.istio.io/v1alpha1\nkind: IstioOperator\nmetadata: {name: a}\nspec: {}", warning: "not supported"},
	"a policy that nobody applies": {op: "CREATE", now: policy + "DENY}", message: "NOT enforced"},
	"such a policy as it was":      {op: "UPDATE", now: policy + "ALLOW}", before: policy + "DENY}", warning: "NOT enforced"},
	"a kind of others":             {op: "CREATE", now: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: x}", reason: `does not use kind "Deployment"`},
	"a kind of Kubernetes' own":    {op: "CREATE", now: "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {type: Odd}", warning: "spec.type"},
	"a slice of names":             {op: "CREATE", now: "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: FQDN\nmetadata: {name: a}", warning: "FQDN"},
	"mesh configuration":           {op: "CREATE", now: fmt.Sprintf(meshConfig, "istio-system"), message: "trustDomain"},
	"of another namespace":         {op: "CREATE", now: fmt.Sprintf(meshConfig, "shop"), warning: "trustDomain"},
	"the probe":                    {op: "CREATE", now: virtualService(valid, "annotations: {internal.istio.io/webhook-always-reject: 'true'}"), message: admit.Rejected},
	"the probe's annotation later": {op: "UPDATE", now: virtualService(valid, "annotations: {internal.istio.io/webhook-always-reject: 'true'}"), before: virtualService(valid)},
	"no metadata":                  {op: "CREATE", now: "apiVersion: networking.istio.io/v1\nkind: VirtualService", message: "metadata.name"},
}

func TestDecide(t *testing.T) {
	for name, tt := range decisions {
		t.Run(name, func(t *testing.T) {
			d, err := admit.Rules{MeshConfig: config.MeshConfigKey("istio-system", "")}.Decide(request(t, tt.op, tt.now, tt.before))
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed != (tt.message == "") || !strings.Contains(d.Message, tt.message) {
				t.Errorf("allowed %v, %q; want a message with %q", d.Allowed, d.Message, tt.message)
			}
			if all := strings.Join(d.Warnings, "\n"); (all == "") != (tt.warning == "") || !strings.Contains(all, tt.warning) {
				t.Errorf("warnings %q; want %q", all, tt.warning)
			}
			if (d.Reason == "") != (tt.reason == "") || !strings.Contains(d.Reason, tt.reason) {
				t.Errorf("reason %q; want %q", d.Reason, tt.reason)
			}
		})
	}
}

// What an update leaves as it is never blocks it, however many faults there are.
func TestManyStoredFaultsBlockNoUpdate(t *testing.T) {
	spec := func(first int) string {
		var routes []string
		for i := first; i < 200; i++ {
			routes = append(routes, fmt.Sprintf(`{match: [{uri: {prefix: /%d}}], route: [{destination: {host: "h %d"}}]}`, i, i))
		}
		return badRoutes(append(routes, route("r"))...)
	}
	d, err := admit.Rules{}.Decide(request(t, "UPDATE", virtualService(spec(1)), virtualService(spec(0))))
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v: want it allowed", d, err)
	}
	if n := len(d.Warnings); n != 12 || !strings.Contains(d.Warnings[n-1], "more") {
		t.Errorf("%d warnings, the last %q: want 12, and a last one that counts the others", n, d.Warnings[n-1])
	}
	total := 0
	for _, w := range d.Warnings {
		total += len(w)
		if len(w) > 256 {
			t.Errorf("a warning of %d bytes: the API server passes on 256", len(w))
		}
	}
	if total > 4096 {
		t.Errorf("warnings of %d bytes: the API server passes on 4096", total)
	}
	d, err = admit.Rules{}.Decide(request(t, "CREATE", virtualService(spec(0)), ""))
	if err != nil || d.Allowed || len(d.Message) > 4096 || !strings.Contains(d.Message, "more") {
		t.Errorf("%v, message of %d bytes, %v: want it refused with at most 4096 that count the others", d.Allowed, len(d.Message), err)
	}
}

func TestSubresourcesAreNotChecked(t *testing.T) {
	q := request(t, "UPDATE", virtualService(badHost), virtualService(valid))
	q.SubResource = "status"
	if d, err := (admit.Rules{}).Decide(q); err != nil || !d.Allowed || d.Reason == "" {
		t.Errorf("%+v, %v: want it allowed with a reason", d, err)
	}
}

func TestWhatCannotBeReadIsAnError(t *testing.T) {
	for _, text := range []string{"", "null", "[]", "{", "7", "{} {}", strings.Repeat(`{"a":`, 500) + "1" + strings.Repeat("}", 500), `{"kind":"x","kind":"y"}`} {
		q := &admissionv1.AdmissionRequest{UID: "u", Operation: "CREATE"}
		q.Object.Raw = []byte(text)
		if _, err := (admit.Rules{}).Decide(q); err == nil || !strings.Contains(err.Error(), "request.object") {
			t.Errorf("object %.40q: error %v; want one that names request.object", text, err)
		}
	}
}

func TestParse(t *testing.T) {
	const ok = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u"}}`
	if q, err := admit.Parse([]byte(ok)); err != nil || q.UID != "u" {
		t.Errorf("%+v, %v", q, err)
	}
	for text, want := range map[string]string{
		"":  "parse AdmissionReview",
		"7": "parse AdmissionReview",
		strings.Replace(ok, "/v1", "/v1beta1", 1):                         "want AdmissionReview of admission.k8s.io/v1",
		strings.Replace(ok, "AdmissionReview", "Pod", 1):                  `unsupported "Pod"`,
		strings.Replace(ok, `{"uid":"u"}`, "null", 1):                     "without a request",
		strings.Replace(ok, `"u"`, `""`, 1):                               "request.uid",
		strings.Replace(ok, `"u"`, `"`+strings.Repeat("u", 129)+`"`, 1):   "request.uid",
		strings.Replace(ok, `"u"`, `"`+strings.Repeat("u", 7<<20)+`"`, 1): "want at most",
	} {
		if _, err := admit.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 500 {
			t.Errorf("%.80s: error %v; want a short one with %q", text, err, want)
		}
	}
}

func TestResponse(t *testing.T) {
	q := request(t, "CREATE", virtualService(badHost), "")
	d, _ := admit.Rules{}.Decide(q)
	var out admissionv1.AdmissionReview
	if err := json.Unmarshal(admit.Encode(d.Response(q)), &out); err != nil {
		t.Fatal(err)
	}
	r := out.Response
	if out.APIVersion != "admission.k8s.io/v1" || out.Kind != "AdmissionReview" || r.UID != "u1" || r.Allowed || r.Result.Reason != "Invalid" || r.Result.Code != 422 || r.Result.Message != d.Message {
		t.Errorf("%+v, %+v", out.TypeMeta, r)
	}
	q = request(t, "DELETE", "", "")
	d, _ = admit.Rules{}.Decide(q)
	if r := d.Response(q); !r.Allowed || r.AuditAnnotations["reason"] == "" {
		t.Errorf("%+v: want it allowed, with the reason in the audit log", r)
	}
}

func TestDocumentsHaveTheLinesOfFields(t *testing.T) {
	const text = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: reviews
spec:
  hosts:
  - reviews
  - "re views"
  http:
  - route:
    - destination:
        host: reviews
    timeout: 5x
---
apiVersion: v1
kind: List
items:
- apiVersion: networking.istio.io/v1
  kind: VirtualService
  metadata: {name: a}
  spec:
    hosts:
    - a
    http:
    - route:
      - destination:
          host: "b b"
- apiVersion: apps/v1
  kind: Deployment
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: d}
spec:
  subsets:
  - name: v1
`
	got := admit.Documents("a.yaml", []byte(text))
	var lines []string
	for _, p := range got.Problems {
		lines = append(lines, fmt.Sprintf("%s %s %s", p.Origin, p.Severity, p.Field))
	}
	want := "a.yaml:13 error spec.http[0].timeout\na.yaml:27 error spec.http[0].route[0].destination.host\na.yaml:34 error spec.host"
	if all := strings.Join(lines, "\n"); all != want || len(got.Objects) != 2 || got.Skipped != 1 {
		t.Errorf("%d objects, %d skipped, problems\n%s\nwant\n%s", len(got.Objects), got.Skipped, all, want)
	}
}

// The webhook and pilotctl validate refuse the same.
func TestDocumentsAgreeWithDecide(t *testing.T) {
	for name, tt := range decisions {
		if tt.op != "CREATE" || strings.Contains(tt.now, "generateName") || strings.Contains(tt.now, admit.RejectAnnotation) || !strings.Contains(tt.now, "istio.io") {
			continue
		}
		refused := false
		for _, p := range admit.Documents("a.yaml", []byte(tt.now)).Problems {
			refused = refused || p.Severity == object.Error
		}
		if refused != (tt.message != "") {
			t.Errorf("%s: Documents refuses: %v, Decide: %v", name, refused, tt.message != "")
		}
	}
}
