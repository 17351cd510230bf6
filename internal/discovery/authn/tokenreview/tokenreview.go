// Package tokenreview asks Kubernetes whose a token is, and for whom it is (TokenReview).
//
// Answers are remembered for a short time, by a hash of the token: a token that Kubernetes has accepted for
// 10 s at most and never beyond its end, a rejected one for 1 s. So a token whose ServiceAccount or Pod was
// deleted is refused 10 s after Kubernetes refuses it at the latest. That there was no answer is not
// remembered. Errors never contain the token.
package tokenreview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/printable"
)

const (
	// podUID is the user's extra value with the unique id of the Pod that a token is bound to.
	podUID = "authentication.kubernetes.io/pod-uid"
	// credentialID is the one with the unique id of the token.
	credentialID = "authentication.kubernetes.io/credential-id"
	// maxResponse limits the response of the API server, in bytes.
	maxResponse = 1 << 20
	// maxShown limits what errors have of a response, in bytes.
	maxShown = 200
	// unlimited lets package authn decide how many reviews are made at a time.
	unlimited = -1
)

// Reviewer is an authn.Reviewer of one cluster. Create one with New. It is safe for concurrent use.
type Reviewer struct {
	client *rest.RESTClient
	now    func() time.Time

	asked, remembered, failed atomic.Int64

	mu    sync.Mutex // guards cache
	cache cache
}

// New returns the reviewer of the cluster with an API server. It sends no request. The configuration is not
// changed; its limits of requests do not count for reviews.
func New(config *rest.Config) (*Reviewer, error) {
	c := rest.CopyConfig(config)
	c.QPS = unlimited
	c.RateLimiter = nil
	c.APIPath, c.GroupVersion = "/apis", &authv1.SchemeGroupVersion
	c.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c.ContentType, c.AcceptContentTypes = "application/json", "application/json"
	c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return bounded{rt} })
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return &Reviewer{client: client, now: time.Now}, nil
}

// bounded limits the bodies of responses.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(req)
	if err == nil {
		resp.Body = &limitedBody{ReadCloser: resp.Body, left: maxResponse}
	}
	return resp, err
}

// limitedBody is a body that fails when more than left bytes have been read.
type limitedBody struct {
	io.ReadCloser
	left int
}

// errTooLarge is the error of a response that is too large.
var errTooLarge = fmt.Errorf("response of more than %d bytes", maxResponse)

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, errTooLarge
	}
	return n, err
}

// Review implements authn.Reviewer.
func (r *Reviewer) Review(ctx context.Context, token string, audiences []string) (authn.Review, error) {
	q, now := ask(token, audiences), r.now()
	r.mu.Lock()
	known, ok := r.cache.get(q, now)
	r.mu.Unlock()
	if ok {
		r.remembered.Add(1)
		return known, nil
	}
	r.asked.Add(1)
	out, err := r.review(ctx, token, audiences)
	if err != nil {
		r.failed.Add(1)
		return authn.Review{}, err
	}
	// An answer counts from when the question was sent: what it says may have been true only then.
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cache.put(q, out, endOf(token), now)
	return out, nil
}

// review asks the API server.
func (r *Reviewer) review(ctx context.Context, token string, audiences []string) (authn.Review, error) {
	body, err := json.Marshal(authv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authv1.SchemeGroupVersion.String(), Kind: "TokenReview"},
		Spec:     authv1.TokenReviewSpec{Token: token, Audiences: audiences},
	})
	if err != nil {
		return authn.Review{}, errors.New("encode the TokenReview: invalid token")
	}
	text, err := r.client.Post().Resource("tokenreviews").Body(body).SetHeader("Content-Type", "application/json").Do(ctx).Raw()
	if err != nil {
		return authn.Review{}, withoutToken(err, token)
	}
	var got authv1.TokenReview
	if json.NewDecoder(bytes.NewReader(text)).Decode(&got) != nil || got.Kind != "TokenReview" {
		return authn.Review{}, errors.New("review a token: invalid response: want a TokenReview")
	}
	s := got.Status
	out := authn.Review{
		Authenticated: s.Authenticated, Error: s.Error, Username: s.User.Username, Groups: s.User.Groups, Audiences: s.Audiences,
	}
	if pod := s.User.Extra[podUID]; len(pod) == 1 {
		out.Pod = pod[0]
	}
	if id := s.User.Extra[credentialID]; len(id) == 1 {
		out.Credential = id[0]
	}
	return out, nil
}

// withoutToken returns an error that says what the API server has answered, and nothing of a body that may
// have the token.
func withoutToken(err error, token string) error {
	var status apierrors.APIStatus
	text := err.Error()
	switch {
	case errors.As(err, &status):
		s := status.Status()
		text = fmt.Sprintf("the API server answers %d %s", s.Code, s.Reason)
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			text += ": want permission to create tokenreviews.authentication.k8s.io"
		}
	case strings.Contains(text, token):
		text = "invalid response"
	}
	return errors.New("review a token: " + printable.Clip(text, maxShown))
}

// Metrics are counters of a Reviewer.
type Metrics struct {
	// Asked counts requests to the API server, Failed those of them without an answer, and Remembered the
	// reviews without a request.
	Asked, Failed, Remembered int64
}

// Metrics returns the counters.
func (r *Reviewer) Metrics() Metrics {
	return Metrics{Asked: r.asked.Load(), Failed: r.failed.Load(), Remembered: r.remembered.Load()}
}

// Own are the authn.Reviewers of a control plane with one cluster, which has a name (CLUSTER_ID). It is
// found by that name and by the empty one.
type Own struct {
	Name    string
	Cluster authn.Reviewer
}

// Reviewer implements authn.Reviewers.
func (o Own) Reviewer(cluster string) authn.Reviewer {
	if cluster == "" || cluster == o.Name {
		return o.Cluster
	}
	return nil
}
