// Package accessreview asks Kubernetes whether a ServiceAccount may list the Secrets of its namespace (SubjectAccessReview).
//
// A Reviewer remembers nothing. It is safe for concurrent use.
package accessreview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	authv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// maxShown limits what texts have of an answer, in bytes.
const maxShown = 200

// unlimited lets the caller decide how many reviews are made at a time.
const unlimited = -1

// Reviewer asks one cluster. Create one with New.
type Reviewer struct {
	client        *rest.RESTClient
	asked, failed atomic.Int64
}

// New returns the reviewer of the cluster with an API server. It sends no request. The configuration is not changed; its limits of
// requests do not count for reviews.
func New(config *rest.Config) (*Reviewer, error) {
	c := rest.CopyConfig(config)
	c.QPS = unlimited
	c.RateLimiter = nil
	c.APIPath, c.GroupVersion = "/apis", &authv1.SchemeGroupVersion
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c.ContentType, c.AcceptContentTypes = "application/json", "application/json"
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return &Reviewer{client: client}, nil
}

// MayListSecrets returns whether a ServiceAccount may list the Secrets of its namespace, and what the API server says if it may not.
// With an error it is not known.
func (r *Reviewer) MayListSecrets(ctx context.Context, namespace, serviceAccount string) (allowed bool, why string, err error) {
	r.asked.Add(1)
	if allowed, why, err = r.review(ctx, namespace, serviceAccount); err != nil {
		r.failed.Add(1)
	}
	return allowed, why, err
}

func (r *Reviewer) review(ctx context.Context, namespace, serviceAccount string) (allowed bool, why string, err error) {
	body, err := json.Marshal(authv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authv1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"},
		Spec: authv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + namespace + ":" + serviceAccount,
			Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
			ResourceAttributes: &authv1.ResourceAttributes{Namespace: namespace, Verb: "list", Resource: "secrets", Version: "v1"},
		},
	})
	if err != nil {
		return false, "", fmt.Errorf("encode the SubjectAccessReview: %w", err)
	}
	text, err := r.client.Post().Resource("subjectaccessreviews").Body(body).SetHeader("Content-Type", "application/json").Do(ctx).Raw()
	if err != nil {
		return false, "", errors.New("review access to Secrets: " + printable.Clip(reason(err), maxShown))
	}
	var got authv1.SubjectAccessReview
	if json.NewDecoder(bytes.NewReader(text)).Decode(&got) != nil || got.Kind != "SubjectAccessReview" {
		return false, "", errors.New("review access to Secrets: invalid response: want a SubjectAccessReview")
	}
	s := got.Status
	if s.Denied && s.Allowed {
		return false, "", errors.New("review access to Secrets: the answer is both allowed and denied")
	}
	if why = s.Reason; why == "" {
		why = s.EvaluationError
	}
	return s.Allowed, printable.Clip(why, maxShown), nil
}

// reason is what an error of the API server says.
func reason(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err.Error()
	}
	s := status.Status()
	text := fmt.Sprintf("the API server answers %d %s", s.Code, s.Reason)
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		text += ": want permission to create subjectaccessreviews.authorization.k8s.io"
	}
	return text
}

// Metrics are counters of a Reviewer.
type Metrics struct {
	// Asked counts requests to the API server, Failed those of them without an answer.
	Asked, Failed int64
}

// Metrics returns the counters.
func (r *Reviewer) Metrics() Metrics { return Metrics{Asked: r.asked.Load(), Failed: r.failed.Load()} }
