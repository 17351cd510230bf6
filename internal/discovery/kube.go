package discovery

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	meshv1 "istio.io/api/mesh/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/authn"
	"github.com/pilothouse/pilothouse/internal/discovery/authn/tokenreview"
	"github.com/pilothouse/pilothouse/internal/discovery/authn/usedtokens"
	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rootsecret"
	"github.com/pilothouse/pilothouse/internal/discovery/credentials/accessreview"
	secretreader "github.com/pilothouse/pilothouse/internal/discovery/credentials/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/credentials/store"
	"github.com/pilothouse/pilothouse/internal/discovery/deployer"
	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/discovery/rootconfigmap"
	kubesource "github.com/pilothouse/pilothouse/internal/discovery/source/kube"
	"github.com/pilothouse/pilothouse/internal/discovery/statuswriter"
	"github.com/pilothouse/pilothouse/internal/kube/leader"
	"github.com/pilothouse/pilothouse/internal/run"
)

// leaderLease is the Lease of the replica that does what only one may do.
const leaderLease = "pilothouse-leader"

// revisionLease is the Lease of the one replica of a revision that does what only one of them may do: the leader of the revision.
func revisionLease(revision string) string { return leaderLease + "-" + revision }

// cluster is what the control plane does in its Kubernetes cluster besides reading objects. Nil stands for
// none.
type cluster struct {
	api      *rest.Config
	name     string
	identity string // of this process among the replicas
	reviewer *tokenreview.Reviewer
	used     *usedtokens.Store
	roots    *rootsecret.Store
	maps     *rootconfigmap.Controller
	access   *accessreview.Reviewer
	secrets  *secretreader.Reader // of the Secrets of gateways
	statuses *statuswriter.Writer // nil if none are written, as replicas
	replicas *statuswriter.Replicas
	deployer *deployer.Controller // nil if nothing is made for the Gateways of the Gateway API
	// ofRevision elects the leader of this revision, and elector one of the leaders of all revisions in the namespace.
	ofRevision, elector *leader.Elector
	remotes             remoteReviewers
	log                 *slog.Logger
	// trusted returns the trust bundle of the mesh's CA, and a channel that is closed when there is another. It is set
	// before the tasks run.
	trusted func() (string, <-chan struct{})
}

// openCluster connects to a cluster. It sends no request.
func openCluster(o *Options, config *rest.Config) (_ *cluster, err error) {
	k := o.Kubernetes
	c := &cluster{api: config, name: k.Cluster, log: o.Log.With("scope", "kube")}
	if c.reviewer, err = tokenreview.New(config); err != nil {
		return nil, err
	}
	if c.access, err = accessreview.New(config); err != nil {
		return nil, err
	}
	if c.used, err = usedtokens.New(config, o.Names.Namespace); err != nil {
		return nil, err
	}
	if c.roots, err = rootsecret.New(rootsecret.Options{Config: config, Namespace: o.Names.Namespace, Instance: o.Names.Instance, Log: o.Log.With("scope", "ca")}); err != nil {
		return nil, err
	}
	if c.maps, err = rootconfigmap.New(rootconfigmap.Options{Config: config, Name: k.RootConfigMap, Roots: func() (string, <-chan struct{}) { return c.trusted() }, Log: c.log}); err != nil {
		return nil, err
	}
	// Processes of one host have the same name if the Pod's is not known.
	identity := strings.Trim(fmt.Sprintf("%s_%s", o.Names.Instance, rand.Text()[:10]), "_")
	c.identity = identity
	if !k.Status.Off {
		c.statuses, err = statuswriter.New(statuswriter.Options{Config: config, Writes: c.writesStatus(o.Names.Revision), Only: k.WatchNamespace, PerSecond: k.Status.PerSecond, Pace: k.Status.Pace, Log: c.log})
		if err != nil {
			return nil, err
		}
		c.replicas, err = statuswriter.NewReplicas(statuswriter.ReplicasOptions{
			Config: config, Namespace: o.Names.Namespace, Instance: identity, Revision: o.Names.Revision, Log: c.log,
			Reading: func() bool { return c.ofRevision.Leading() }, Leading: func() bool { return c.elector.Leading() },
		})
		if err != nil {
			return nil, err
		}
	}
	if !k.NoDeployments {
		c.deployer, err = deployer.New(deployer.Options{
			Config: config, Revision: o.Names.Revision, Writes: c.writesStatus(o.Names.Revision), Only: k.WatchNamespace, Log: o.Log.With("scope", "gateways"),
		})
		if err != nil {
			return nil, err
		}
	}
	election := leader.Options{Config: config, Namespace: o.Names.Namespace, Lease: revisionLease(o.Names.Revision), Off: k.NoElection, Log: c.log, Identity: identity}
	if c.ofRevision, err = leader.New(election); err != nil {
		return nil, err
	}
	// All replicas watch this Lease, so that the next leader of a revision need not wait for it from then on.
	election.Lease, election.Eligible = leaderLease, c.ofRevision.Leading
	if c.elector, err = leader.New(election); err != nil {
		return nil, err
	}
	return c, nil
}

// restrict has the Secrets of gateways read from the cluster, for those that may read them.
func (c *cluster) restrict(to *store.Store) {
	if c == nil {
		return
	}
	c.secrets = secretreader.New(secretreader.Options{
		Cluster: c.name, Allowed: c.mayReadSecrets, Store: to, Log: c.log.With("scope", "secrets"),
		Follow: func(ctx context.Context, namespace string, events secretreader.Events) error {
			return kubesource.FollowNamespace(ctx, kubesource.Options{Config: c.api}, namespace, events)
		},
	})
	to.Restrict(c.secrets)
}

// mayReadSecrets reports whether a ServiceAccount may have the Secrets of its namespace: one that was made for a Gateway of the Gateway API
// needs no permission, which nobody else could give it in time.
func (c *cluster) mayReadSecrets(ctx context.Context, namespace, account string) (bool, string, error) {
	if c.deployer != nil && c.deployer.Made(namespace, account) {
		return true, "", nil
	}
	return c.access.MayListSecrets(ctx, namespace, account)
}

// readSecrets reads the Secrets of gateways until ctx ends.
func (s *Server) readSecrets(ctx context.Context) error {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.secrets.Run(ctx)
}

// writesStatus returns which objects' statuses this replica writes while it leads its revision, by their labels.
func (c *cluster) writesStatus(revision string) func(map[string]string) bool {
	return func(labels map[string]string) bool {
		return objectstatus.Writes(labels, revision, c.elector.Leading())
	}
}

// awaitAPIServer waits until the API server answers, and logs once that it does not. Without it a replica cannot have its root; if the
// program ended, Kubernetes would start it again only after a pause that grows to five minutes.
func (c *cluster) awaitAPIServer(ctx context.Context) error {
	if c == nil {
		return nil
	}
	config := rest.CopyConfig(c.api)
	config.Timeout = apiServerTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("connect to Kubernetes: %w", err)
	}
	defer client.CloseIdleConnections()
	base, _, err := rest.DefaultServerURL(config.Host, "", schema.GroupVersion{}, rest.IsConfigTransportTLS(*config))
	if err != nil {
		return fmt.Errorf("connect to Kubernetes: %w", err)
	}
	for told := false; ; {
		err := answers(ctx, client, base.JoinPath("version").String())
		switch {
		case err == nil && told:
			c.log.Info("the API server answers")
			return nil
		case err == nil:
			return nil
		case ctx.Err() == nil && !told:
			told = true
			c.log.Warn("the API server does not answer: waiting for it, and not ready", "error", err)
		}
		pause := time.NewTimer(apiServerPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return err
		}
	}
}

// apiServerTimeout bounds a request that asks whether the API server answers, apiServerPause is the time between two.
const (
	apiServerTimeout = 5 * time.Second
	apiServerPause   = 500 * time.Millisecond
)

// answers returns an error if an API server does not answer. A refusal is an answer; an error of the server is not, since load
// balancers send one for a server that is away.
func answers(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("get %s: %s", url, res.Status)
	}
	return nil
}

// rootStore returns where the self-signed root is: in the cluster, or else in the state folder.
func (s *Server) rootStore() ca.Store {
	if s.cluster == nil {
		return ca.NewFolder(s.opts.StateDir)
	}
	s.cluster.trusted = s.rootsPEM
	return s.cluster.roots
}

// authentication returns how callers are authenticated by the cluster.
func (c *cluster) authentication(audiences []string, log *slog.Logger) authn.Option {
	if c == nil {
		return func(*authn.Authenticator) {}
	}
	return authn.WithReviewers(c, log, audiences...)
}

// usedTokens returns where the use of join tokens is remembered: in the cluster, or else in the state folder.
func (s *Server) usedTokens() authn.Used {
	if s.cluster == nil {
		return authn.NewUsedFile(s.opts.StateDir)
	}
	return s.cluster.used
}

// setMesh has the mesh configuration in force.
func (c *cluster) setMesh(m *meshv1.MeshConfig) {
	if c == nil {
		return
	}
	selectors, err := rootconfigmap.Selectors(m)
	if err != nil {
		c.log.Warn("discoverySelectors of the mesh configuration are invalid: all namespaces get the root ConfigMap", "error", err)
	}
	c.maps.Select(selectors)
	c.remotes.selectNamespaces(selectors)
}

// observe follows what the statuses of objects have to say, until ctx ends.
func (s *Server) observe(ctx context.Context) error {
	if s.observer == nil {
		return nil
	}
	return run.Group(ctx,
		run.Task{Name: "observe", Run: s.observer.Run},
		run.Task{Name: "exchange with other replicas", Run: func(ctx context.Context) error {
			return s.cluster.replicas.Run(ctx, s.observer, s.cluster.statuses.Touch)
		}})
}

// lead runs what only one replica may do, while this one leads, until ctx ends. Each task ends when its context does,
// and not before.
func (s *Server) lead(ctx context.Context) error {
	c := s.cluster
	if c == nil {
		return nil
	}
	var tasks []run.Task // of the leader of the revision
	shared := []run.Task{
		{Name: "distribute the roots in ConfigMaps", Run: c.maps.Run},
		{Name: "distribute the roots in remote clusters", Run: func(ctx context.Context) error { return s.leadRemotes(ctx, s.remoteRoots) }},
	}
	if s.webhooks.patcher != nil {
		tasks = append(tasks,
			run.Task{Name: "patch webhook configurations", Run: s.webhooks.patcher.Run},
			run.Task{Name: "patch webhook configurations of remote clusters", Run: func(ctx context.Context) error { return s.leadRemotes(ctx, s.remoteWebhooks) }})
	}
	if c.statuses != nil {
		tasks = append(tasks, run.Task{Name: "write statuses", Run: func(ctx context.Context) error { return c.statuses.Run(ctx, ofAll{s.observer, c.replicas}) }})
		shared = append(shared, run.Task{Name: "write statuses of objects of all revisions", Run: func(ctx context.Context) error {
			c.statuses.Touch(s.observer.Keys())
			<-ctx.Done()
			return nil
		}})
	}
	if c.deployer != nil {
		tasks = append(tasks, run.Task{Name: "deploy gateways", Run: c.deployer.Run})
		shared = append(shared, run.Task{Name: "deploy gateways of all revisions", Run: func(ctx context.Context) error {
			c.deployer.Look()
			<-ctx.Done()
			return nil
		}})
	}
	tasks = append(tasks, run.Task{Name: "lead the revision", Run: func(ctx context.Context) error {
		<-ctx.Done() // also if nothing else is to be done
		return nil
	}})
	return run.Group(ctx,
		run.Task{Name: "lead the revision", Run: func(ctx context.Context) error { return c.ofRevision.Run(ctx, tasks...) }},
		run.Task{Name: "lead all revisions", Run: func(ctx context.Context) error { return c.elector.Run(ctx, shared...) }})
}

// metrics returns the metrics of the cluster.
func (c *cluster) metrics() []ca.Metric {
	if c == nil {
		return nil
	}
	reviews, maps, access := c.reviewer.Metrics(), c.maps.Metrics(), c.access.Metrics()
	counter := func(name, help string, n int64) ca.Metric {
		return ca.Metric{Name: name, Help: help, Counter: true, Value: float64(n)}
	}
	out := []ca.Metric{
		{Name: "pilothouse_leader", Help: "1 while this replica does what only one may do, for all revisions of its namespace, else 0.", Value: flag(c.elector.Leading())},
		{Name: "pilothouse_revision_leader", Help: "1 while this replica does what only one of its revision may do, else 0.", Value: flag(c.ofRevision.Leading())},
		counter("pilothouse_token_reviews_total", "Tokens that Kubernetes was asked about.", reviews.Asked),
		counter("pilothouse_token_review_failures_total", "Tokens that Kubernetes was asked about without an answer.", reviews.Failed),
		counter("pilothouse_token_reviews_remembered_total", "Tokens about which an answer of Kubernetes was remembered.", reviews.Remembered),
		counter("pilothouse_secret_access_reviews_total", "ServiceAccounts of gateways of which Kubernetes was asked whether they may list Secrets.", access.Asked),
		counter("pilothouse_secret_access_review_failures_total", "ServiceAccounts of which Kubernetes was asked whether they may list Secrets, without an answer.", access.Failed),
		counter("pilothouse_root_configmap_writes_total", "ConfigMaps with the roots that were written.", maps.Writes),
		counter("pilothouse_root_configmap_failures_total", "ConfigMaps with the roots that could not be written; they are tried again.", maps.Failures),
	}
	if c.deployer != nil {
		deployed := c.deployer.Metrics()
		out = append(out,
			counter("pilothouse_gateway_deployment_writes_total", "Objects that run Gateways of the Gateway API that were written.", deployed.Writes),
			counter("pilothouse_gateway_deployment_failures_total", "Gateways of the Gateway API for which an object could not be written; they are tried again.", deployed.Failures))
	}
	if c.statuses != nil {
		statuses := c.statuses.Metrics()
		out = append(out,
			counter("pilothouse_status_writes_total", "Statuses of objects that were written.", statuses.Writes),
			counter("pilothouse_status_conflicts_total", "Statuses of objects that were not written because the object had just changed; they are tried again.", statuses.Conflicts),
			counter("pilothouse_status_failures_total", "Statuses of objects that could not be written; they are tried again.", statuses.Failures))
	}
	return out
}

// flag is the value of a metric that says whether something is so.
func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
