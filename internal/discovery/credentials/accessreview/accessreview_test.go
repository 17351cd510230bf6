package accessreview

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	authv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
)

func TestReviews(t *testing.T) {
	var asked authv1.SubjectAccessReview
	code, status, kind := http.StatusCreated, authv1.SubjectAccessReviewStatus{}, "SubjectAccessReview"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/apis/authorization.k8s.io/v1/subjectaccessreviews" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		out := asked
		out.Status, out.Kind = status, kind
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		if err := json.NewEncoder(w).Encode(out); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	r, err := New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	status.Allowed = true
	if allowed, _, err := r.MayListSecrets(t.Context(), "edge", "gateway"); err != nil || !allowed {
		t.Errorf("%v, %v", allowed, err)
	}
	of := asked.Spec.ResourceAttributes
	if asked.Spec.User != "system:serviceaccount:edge:gateway" || !slices.Contains(asked.Spec.Groups, "system:serviceaccounts:edge") || of.Namespace != "edge" || of.Verb != "list" || of.Resource != "secrets" || of.Group != "" || of.Name != "" {
		t.Errorf("asked %+v of %+v", asked.Spec, of)
	}
	status = authv1.SubjectAccessReviewStatus{Reason: "no rule"}
	if allowed, why, err := r.MayListSecrets(t.Context(), "edge", "gateway"); err != nil || allowed || why != "no rule" {
		t.Errorf("%v, %q, %v", allowed, why, err)
	}
	// What is not an answer allows nothing.
	status = authv1.SubjectAccessReviewStatus{Allowed: true, Denied: true}
	fails := func(what, text string) {
		t.Helper()
		if allowed, _, err := r.MayListSecrets(t.Context(), "edge", "gateway"); allowed || err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, %v", what, allowed, err)
		}
	}
	fails("contradictory", "both allowed and denied")
	status, kind = authv1.SubjectAccessReviewStatus{Allowed: true}, "Pod"
	fails("another kind", "want a SubjectAccessReview")
	kind, code = "SubjectAccessReview", http.StatusForbidden
	fails("forbidden", "want permission to create subjectaccessreviews.authorization.k8s.io")
	server.Close()
	fails("away", "review access to Secrets")
	if m := r.Metrics(); m.Asked != 6 || m.Failed != 4 {
		t.Errorf("%+v", m)
	}
}
