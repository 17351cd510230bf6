package authn

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Bounds of reviews.
const (
	reviewTimeout = 10 * time.Second
	// maxReviews is how many reviews are made at a time: whoever can connect can cause them.
	maxReviews = 32
	// accounts is the group of all service accounts.
	accounts = "system:serviceaccounts"
)

// Reviewer asks the API server of one cluster about tokens, by Kubernetes' TokenReview. Package
// reviewtest tests implementations. It must be safe for concurrent use.
type Reviewer interface {
	// Review asks whose a token is and for which of the audiences it is. An error means that there is no
	// answer, and must not contain the token; a token that the API server rejects is an answer.
	Review(ctx context.Context, token string, audiences []string) (Review, error)
}

// Review is the status of a TokenReview.
type Review struct {
	Authenticated bool
	// Error is why the token was not authenticated.
	Error string
	// Username and Groups are the user's.
	Username string
	Groups   []string
	// Audiences are those of the request that the token is for.
	Audiences []string
	// Pod is the unique id of the Pod that the token is bound to
	// (authentication.kubernetes.io/pod-uid in the user's extra values); empty if there is none.
	Pod string
	// Credential is the unique id of the token (authentication.kubernetes.io/credential-id); empty if the API server does not say it.
	Credential string
}

// Reviewers finds the reviewer of a cluster. It must be safe for concurrent use.
type Reviewers interface {
	// Reviewer returns the reviewer of a cluster, or nil if the cluster is not known. The empty name is
	// that of the control plane's own cluster.
	Reviewer(cluster string) Reviewer
}

// reviewed verifies tokens by TokenReview.
type reviewed struct {
	clusters  Reviewers
	audiences []string
	log       *slog.Logger
	// places has an element for each review under way.
	places chan struct{}

	mu     sync.Mutex // guards logged
	logged time.Time
}

// accepts implements verifier: Kubernetes' issuer has any name but that of this program.
func (r *reviewed) accepts(iss string) bool { return iss != TokenIssuer }

// verify implements verifier.
func (r *reviewed) verify(ctx context.Context, t *token, now time.Time) (Subject, error) {
	join, err := t.claimed.join()
	if err != nil {
		return Subject{}, err
	}
	audiences := r.audiences
	if join != nil {
		audiences = []string{mesh.JoinAudience}
	}
	// The API server is not asked about what would be refused anyway.
	if err := t.claimed.check(t.claimed.Issuer, audiences, now); err != nil {
		return Subject{}, err
	}
	cluster, err := clusterOf(ctx)
	if err != nil {
		return Subject{}, err
	}
	reviewer := r.clusters.Reviewer(cluster)
	if reviewer == nil {
		return Subject{}, rejected(WrongIssuer, "unknown cluster %s (header clusterid)", printable.Quote(cluster, maxShown))
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	select {
	case r.places <- struct{}{}:
		defer func() { <-r.places }()
	case <-ctx.Done():
		return Subject{}, unavailable("too many tokens are being reviewed")
	}
	answer, err := reviewer.Review(ctx, t.text, audiences)
	if err != nil {
		r.warn(cluster, err)
		return Subject{}, unavailable("Kubernetes does not answer whose it is")
	}
	s, err := answer.subject(audiences)
	if join != nil && err == nil {
		// What the token claims is true, since Kubernetes has accepted it. Its id must be the same at all API servers and for all
		// names of the cluster, or it could be used once for each.
		if answer.Credential != "" && answer.Credential != "JTI="+join.ID {
			return Subject{}, rejected(ConflictingClaims, "Kubernetes names it %s, and its id (jti) is another", printable.Quote(answer.Credential, maxShown))
		}
		join.Uses = 1
		s.Join = join
	}
	return s, err
}

// warn logs why there was no answer, which callers need not know, at most once in logPause.
func (r *reviewed) warn(cluster string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.logged) >= logPause {
		r.logged = now
		r.log.Warn("a token could not be reviewed", "cluster", cluster, "error", err)
	}
}

// subject returns whose a token is, or why it was rejected.
func (a Review) subject(audiences []string) (Subject, error) {
	if !a.Authenticated || a.Error != "" {
		return Subject{}, rejected(BadSignature, "Kubernetes rejects it: %s", printable.Quote(a.Error, maxShown))
	}
	// An API server that does not know audiences lists none, and has not checked them.
	if !slices.ContainsFunc(a.Audiences, func(one string) bool { return slices.Contains(audiences, one) }) {
		return Subject{}, rejected(WrongAudience, "Kubernetes does not say that it is for %s", quoteAll(audiences))
	}
	ns, sa, ok := serviceAccount(a.Username)
	if !ok || !slices.Contains(a.Groups, accounts) {
		return Subject{}, rejected(Malformed, "user %s, want %s<namespace>:<name> in group %s", printable.Quote(a.Username, maxShown), subject, accounts)
	}
	return Subject{Namespace: ns, ServiceAccount: sa, Pod: printable.Clip(a.Pod, maxShown)}, nil
}
