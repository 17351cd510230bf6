package discovery

import (
	"context"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/authn/tokenreview"
	kubesource "github.com/pilothouse/pilothouse/internal/discovery/source/kube"
	"github.com/pilothouse/pilothouse/internal/discovery/source/multi"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/object"
)

// remoteReviewers review the tokens of remote clusters, by the clusters' IDs.
type remoteReviewers struct {
	mu   sync.Mutex
	byID map[string]*remoteCluster
}

// remoteCluster is the source of a remote cluster. Its tokens are reviewed while it runs.
type remoteCluster struct {
	*kubesource.Source
	id       string
	reviewer *tokenreview.Reviewer
	of       *remoteReviewers
}

// Run implements multi.Runner.
func (r *remoteCluster) Run(ctx context.Context, emit func(object.Batch)) error {
	r.of.set(r)
	defer r.of.remove(r)
	return r.Source.Run(ctx, emit)
}

func (rs *remoteReviewers) set(r *remoteCluster) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID == nil {
		rs.byID = map[string]*remoteCluster{}
	}
	rs.byID[r.id] = r
}

// remove removes a cluster, unless another source has its place.
func (rs *remoteReviewers) remove(r *remoteCluster) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID[r.id] == r {
		delete(rs.byID, r.id)
	}
}

// Reviewer implements authn.Reviewers: the control plane's own cluster has its name and the empty one, remote clusters
// have their IDs.
func (c *cluster) Reviewer(id string) authn.Reviewer {
	if own := (tokenreview.Own{Name: c.name, Cluster: c.reviewer}).Reviewer(id); own != nil {
		return own
	}
	c.remotes.mu.Lock()
	defer c.remotes.mu.Unlock()
	if r := c.remotes.byID[id]; r != nil {
		return r.reviewer
	}
	return nil
}

// openRemote returns the source of a remote cluster. It sends no request. Errors have nothing of the kubeconfig's
// credentials.
func (c *cluster) openRemote(o Options, id string, kubeconfig []byte, remembered []object.Object) (multi.Runner, error) {
	k := o.Kubernetes
	api, err := kube.Parse(kubeconfig, k.API, k.Insecure...)
	if err != nil {
		return nil, err
	}
	source, err := kubesource.New(kubesource.Options{
		Config: api, Cluster: id, Remote: true, Namespace: o.Names.Namespace, Only: k.WatchNamespace, Ignore: k.Ignore, Include: k.Include,
		Remembered: remembered, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	reviewer, err := tokenreview.New(api)
	if err != nil {
		return nil, err
	}
	return &remoteCluster{Source: source, id: id, reviewer: reviewer, of: &c.remotes}, nil
}

// followSecrets reports the Secrets that name remote clusters until ctx ends.
func followSecrets(ctx context.Context, o Options, api *rest.Config, report func([]multi.Secret, error)) {
	err := kubesource.FollowSecrets(ctx, kubesource.Options{Config: api, Namespace: o.Names.Namespace}, func(all []kubesource.Secret, err error) {
		list := make([]multi.Secret, len(all))
		for i, s := range all {
			list[i] = multi.Secret(s)
		}
		report(list, err)
	})
	if err != nil {
		report(nil, err)
	}
}
