// Package admit decides whether an object may be stored: it answers the API server's AdmissionReviews, and validates texts of objects.
//
// The rules are those that the control plane itself applies, of the packages decode and config: an object
// with an error is refused, one with warnings is admitted with these warnings. What was stored before is
// not refused: a fault whose field an update leaves as it is becomes a warning. All functions are pure,
// and safe for input from untrusted sources: sizes of input and of answers are bounded.
package admit

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// MaxBytes bounds an AdmissionReview, in bytes: it has at most two versions of an object, for each of which
// the API server accepts 3 MiB.
const MaxBytes = 7 << 20

// RejectAnnotation has the webhook refuse the creation of an object, whatever its contents. It is Istio's name.
const RejectAnnotation = "internal.istio.io/webhook-always-reject"

// Rejected is in the answer to an object with RejectAnnotation, so that the one who asked knows that it was
// this webhook that refused it.
const Rejected = "the annotation " + RejectAnnotation + " has it refused"

// Bounds of answers. The API server passes on at most 4096 bytes of warnings, and 256 of each.
const (
	maxWarnings, maxWarning = 12, 256
	maxListed, maxMessage   = 10, 4096
	maxUID                  = 128 // bytes; UIDs have 36
)

// Rules decide about objects.
type Rules struct {
	// MeshConfig is the key of the ConfigMap with the mesh configuration.
	MeshConfig object.Key
}

// Decision is the answer to one request.
type Decision struct {
	Allowed bool
	// Message says which fields are invalid, and what to do. It is empty if the object is allowed.
	Message string
	// Warnings are about what is stored and does not have the effect that its author may expect.
	Warnings []string
	// Reason says why an object is allowed without being checked; otherwise it is empty.
	Reason string
}

// Parse reads an AdmissionReview. The error says what is wrong with it; then it cannot be answered.
func Parse(text []byte) (*admissionv1.AdmissionRequest, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("AdmissionReview of %d bytes: want at most %d", len(text), MaxBytes)
	}
	var in admissionv1.AdmissionReview
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("parse AdmissionReview: %s", quote(err.Error(), maxWarning))
	}
	want := admissionv1.SchemeGroupVersion.String()
	switch {
	case in.Kind != "AdmissionReview" || in.APIVersion != want:
		return nil, fmt.Errorf("unsupported %s of %s: want AdmissionReview of %s (admissionReviewVersions: [v1] in the webhook configuration)",
			quote(in.Kind, 64), quote(in.APIVersion, 64), want)
	case in.Request == nil:
		return nil, errors.New("AdmissionReview without a request: want one")
	case in.Request.UID == "" || len(in.Request.UID) > maxUID:
		return nil, fmt.Errorf("AdmissionReview with a request.uid of %d bytes: want 1–%d", len(in.Request.UID), maxUID)
	}
	return in.Request, nil
}

// Encode returns the AdmissionReview with a response. It panics if the response cannot be encoded, which
// none can that this program makes.
func Encode(response *admissionv1.AdmissionResponse) []byte {
	out, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{Kind: "AdmissionReview", APIVersion: admissionv1.SchemeGroupVersion.String()}, Response: response,
	})
	if err != nil {
		panic("admit: encode an AdmissionReview: " + err.Error())
	}
	return out
}

// Response returns the answer to a request for which was decided. Invalid is the reason for a refusal, so that
// clients do not try again.
func (d Decision) Response(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	out := &admissionv1.AdmissionResponse{UID: r.UID, Allowed: d.Allowed, Warnings: d.Warnings}
	if !d.Allowed {
		out.Result = &metav1.Status{Status: metav1.StatusFailure, Message: d.Message, Reason: metav1.StatusReasonInvalid, Code: 422}
	}
	if d.Reason != "" {
		out.AuditAnnotations = map[string]string{"reason": d.Reason}
	}
	return out
}

// Decide decides about a request. The error says which part of the request cannot be read; then nothing is
// known about the object.
func (r Rules) Decide(q *admissionv1.AdmissionRequest) (Decision, error) {
	created := q.Operation == admissionv1.Create
	switch {
	case !created && q.Operation != admissionv1.Update:
		return allowed("only CREATE and UPDATE are checked"), nil
	case q.SubResource != "":
		return allowed("subresources are not checked"), nil
	}
	now, err := parse("object", q.Object.Raw, q)
	if err != nil {
		return Decision{}, err
	}
	if created && rejects(now) {
		return Decision{Message: Rejected}, nil
	}
	if created || len(q.OldObject.Raw) == 0 || string(q.OldObject.Raw) == "null" {
		return r.decide(check(now, false), findings{}, false), nil
	}
	if !now.Get("metadata").Get("deletionTimestamp").IsNull() {
		return allowed("the object is being deleted"), nil
	}
	before, err := parse("oldObject", q.OldObject.Raw, q)
	if err != nil {
		return Decision{}, err
	}
	same := string(jsonOf(now.Get("spec"))) == string(jsonOf(before.Get("spec")))
	return r.decide(check(now, true), check(before, true), same), nil
}

func allowed(reason string) Decision { return Decision{Allowed: true, Reason: reason} }

// rejects reports whether an object has RejectAnnotation.
func rejects(t *yamltree.Tree) bool {
	return t.Get("metadata").Get("annotations").Get(RejectAnnotation) != nil
}

// decide decides about an object, given what was found in it and in the version before; sameSpec is set if their
// specs are equal.
func (r Rules) decide(now, before findings, sameSpec bool) Decision {
	if now.skipped != "" {
		return allowed(now.skipped)
	}
	d := Decision{Allowed: true}
	old := before.errors()
	var refused, warnings []string
	for _, f := range now.all {
		text := f.text()
		switch {
		case f.Severity == object.Info, f.Severity == object.Warning && sameSpec:
		case f.Severity == object.Warning:
			warnings = append(warnings, text)
		case !r.enforced(f.Key):
			warnings = append(warnings, text)
		case old.take(f):
			warnings = append(warnings, text+" (so before this update; it would be refused otherwise)")
		default:
			refused = append(refused, text)
		}
	}
	d.Warnings = bounded(warnings)
	if len(refused) > 0 {
		d.Allowed, d.Message = false, message(refused)
	}
	return d
}

// enforced reports whether an object with errors is refused. Objects of Kubernetes' own kinds are not, since others
// than the mesh use them, except for the one that only the mesh uses.
func (r Rules) enforced(k object.Key) bool {
	switch k.Kind {
	case object.Namespace, object.Service, object.EndpointSlice, object.Pod, object.ServiceAccount, object.Secret:
		return false
	case object.ConfigMap:
		return config.IsMeshConfig(k, r.MeshConfig)
	}
	return true
}

// message lists the faults of a refused object.
func message(refused []string) string {
	listed := refused[:min(len(refused), maxListed)]
	text := "configuration is invalid: " + strings.Join(listed, "; ")
	if more := len(refused) - len(listed); more > 0 {
		text = printable.Clip(text, maxMessage-64) + fmt.Sprintf("; and %d more (pilotctl validate lists all)", more)
	}
	return printable.Clip(text, maxMessage)
}

// bounded returns the warnings that an answer may have.
func bounded(warnings []string) []string {
	var out []string
	for i, w := range warnings {
		if i == maxWarnings-1 && len(warnings) > maxWarnings {
			return append(out, fmt.Sprintf("and %d more: pilotctl validate lists all", len(warnings)-i))
		}
		out = append(out, printable.Clip(w, maxWarning-40)) // Clip adds how much is missing
	}
	return out
}

// quote quotes the beginning of what a client has sent.
func quote(s string, most int) string { return printable.Escape(printable.Quote(s, most)) }
