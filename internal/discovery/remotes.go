package discovery

import (
	"context"
	"log/slog"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/authn/tokenreview"
	"github.com/pilothouse/pilothouse/internal/discovery/managed"
	"github.com/pilothouse/pilothouse/internal/discovery/rootconfigmap"
	kubesource "github.com/pilothouse/pilothouse/internal/discovery/source/kube"
	"github.com/pilothouse/pilothouse/internal/discovery/source/multi"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/run"
)

// remoteReviewers review the tokens of remote clusters, by the clusters' IDs.
type remoteReviewers struct {
	mu   sync.Mutex
	byID map[string]*remoteCluster
	// changed is closed, and replaced, when byID has changed. selectors are those of the mesh configuration, nil until it
	// is known.
	changed   chan struct{}
	selectors *[]labels.Selector
}

// remoteCluster is the source of a remote cluster. Its tokens are reviewed while it runs.
type remoteCluster struct {
	*kubesource.Source
	id       string
	reviewer *tokenreview.Reviewer
	of       *remoteReviewers
	api      *rest.Config
	maps     *rootconfigmap.Controller
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
	if rs.selectors != nil {
		r.maps.Select(*rs.selectors)
	}
	rs.tell()
}

// tell wakes who has called watch.
func (rs *remoteReviewers) tell() {
	if rs.changed != nil {
		close(rs.changed)
		rs.changed = nil
	}
}

// watch returns the clusters, and a channel that is closed when there are others.
func (rs *remoteReviewers) watch() (map[*remoteCluster]bool, <-chan struct{}) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.changed == nil {
		rs.changed = make(chan struct{})
	}
	all := map[*remoteCluster]bool{}
	for _, r := range rs.byID {
		all[r] = true
	}
	return all, rs.changed
}

// selectNamespaces has the selectors of the mesh configuration applied to the ConfigMaps of all clusters.
func (rs *remoteReviewers) selectNamespaces(selectors []labels.Selector) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.selectors = &selectors
	for _, r := range rs.byID {
		r.maps.Select(selectors)
	}
}

// remove removes a cluster, unless another source has its place.
func (rs *remoteReviewers) remove(r *remoteCluster) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID[r.id] == r {
		delete(rs.byID, r.id)
		rs.tell()
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
	maps, err := rootconfigmap.New(rootconfigmap.Options{
		Config: api, Name: k.RootConfigMap, Roots: func() (string, <-chan struct{}) { return c.trusted() }, Log: c.log.With("cluster", id),
	})
	if err != nil {
		return nil, err
	}
	return &remoteCluster{Source: source, id: id, reviewer: reviewer, of: &c.remotes, api: api, maps: maps}, nil
}

// remoteRoots has the namespaces of a remote cluster have the roots.
func (s *Server) remoteRoots(r *remoteCluster, _ *slog.Logger) (run.Task, error) {
	return run.Task{Name: "distribute the roots in ConfigMaps", Run: r.maps.Run}, nil
}

// remoteWebhooks has the webhook configurations of a remote cluster have the roots.
func (s *Server) remoteWebhooks(r *remoteCluster, log *slog.Logger) (run.Task, error) {
	patcher, err := s.webhooks.remote(r.api, log)
	if err != nil {
		return run.Task{}, err
	}
	return run.Task{Name: "patch webhook configurations", Run: patcher.Run}, nil
}

// leadRemotes does in the remote clusters that leave it to this control plane what only one replica may do, until ctx
// ends. A cluster that cannot be reached holds up no other.
func (s *Server) leadRemotes(ctx context.Context, what func(*remoteCluster, *slog.Logger) (run.Task, error)) error {
	running := map[*remoteCluster]context.CancelFunc{}
	var all sync.WaitGroup
	defer all.Wait()
	for {
		now, changed := s.cluster.remotes.watch()
		for r, cancel := range running {
			if !now[r] {
				cancel()
				delete(running, r)
			}
		}
		for r := range now {
			if running[r] != nil {
				continue
			}
			each, cancel := context.WithCancel(ctx)
			running[r] = cancel
			all.Go(func() {
				if err := s.leadRemote(each, r, what); err != nil {
					s.cluster.log.Error("nothing is written in a remote cluster", "cluster", r.id, "error", err)
				}
			})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			for _, cancel := range running {
				cancel()
			}
			return nil
		}
	}
}

// leadRemote serves one remote cluster while it wants that, until ctx ends.
func (s *Server) leadRemote(ctx context.Context, r *remoteCluster, what func(*remoteCluster, *slog.Logger) (run.Task, error)) error {
	log := s.cluster.log.With("cluster", r.id)
	task, err := what(r, log)
	if err != nil {
		return err
	}
	var term sync.WaitGroup
	defer term.Wait()
	stop := func() {}
	return managed.Follow(ctx, managed.Options{Config: r.api, Namespace: s.opts.Names.Namespace, Cluster: s.cluster.name, Log: log}, func(ours bool) {
		stop()
		term.Wait()
		if !ours {
			log.Info("the remote cluster no longer leaves this to the control plane", "task", task.Name)
			return
		}
		log.Info("the remote cluster leaves this to the control plane", "task", task.Name)
		var during context.Context
		during, stop = context.WithCancel(ctx)
		term.Go(func() {
			if err := run.Group(during, task); err != nil {
				log.Error("nothing is written in a remote cluster", "task", task.Name, "error", err)
			}
		})
	})
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
