// Package kube is a source of configuration: the API server of a Kubernetes cluster, which it watches.
//
// It reads the kinds that package decode knows and the mesh uses, each with a reflector of client-go, and keeps of
// each object only its decoded value. Istio's kinds are read while their CustomResourceDefinitions exist, in the
// first version that is both served and known. The first batch has everything that exists, and Synced; it waits until
// each kind has been read whole. An object is removed only if the API server has said so: an API server that cannot be
// reached, that forbids a kind, or that has forgotten what it has sent removes nothing. An object that cannot be
// decoded keeps its last good value, also that of an earlier process. What cannot be read is a problem, and Behind
// tells since when.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// Options configure a Source.
type Options struct {
	// Config is how to connect to the API server.
	Config *rest.Config
	// Cluster is the name of the cluster; it is the file of all origins. Remote is set if it is not the control plane's
	// own: the keys of its objects have its name, and only Namespaces, Nodes, Services, EndpointSlices and Pods are read.
	Cluster string
	Remote  bool
	// Namespace is that of the control plane, and MeshConfigMap the name of the ConfigMap in it that is read.
	Namespace, MeshConfigMap string
	// Only is the one namespace whose objects are read; empty for all. The ConfigMap is read in any case.
	Only string
	// Ignore and Include are patterns of resources, such as "*.istio.io" or "sidecars.networking.istio.io": what
	// Ignore matches and Include does not is not read. A pattern with a "*" matches Istio's resources only.
	Ignore, Include []string
	// Remembered are the objects that an earlier source of the same cluster had emitted: last good values of
	// objects that cannot be decoded now.
	Remembered []object.Object
	// Patience is how long something that may end by itself, such as a restart of the API server, lasts until it
	// is a problem; by default 5 s.
	Patience time.Duration
	// Backoff is the first and the longest delay between attempts to read; by default 0.8 and 5 s, each
	// with a jitter of up to as much again.
	Backoff [2]time.Duration
	// Log receives messages about kinds that are and are not served; by default they are discarded.
	Log *slog.Logger
}

// defaultPatience is longer than most restarts of an API server that has a standby.
const defaultPatience = 5 * time.Second

// Source watches a cluster. Run may be called once; Behind is safe for concurrent use.
type Source struct {
	o      Options
	client *client
	kinds  []object.Kind // to be read if they are served
	merger *merger
	// events change the merger; only Run applies them.
	events chan func(*merger, time.Time)
	behind atomic.Int64 // since when, in nanoseconds since 1970; 0 for not
	log    *slog.Logger
}

// New creates a source. It returns an error if o.Config cannot be used; it does not connect.
func New(o Options) (*Source, error) {
	c, err := newClient(o.Config)
	if err != nil {
		return nil, err
	}
	if o.Patience <= 0 {
		o.Patience = defaultPatience
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Source{o: o, client: c, events: make(chan func(*merger, time.Time), 1024), log: o.Log}
	for _, k := range object.Kinds() {
		if s.reads(k) {
			s.kinds = append(s.kinds, k)
		}
	}
	remembered := slices.DeleteFunc(slices.Clone(o.Remembered), func(x object.Object) bool { return !slices.Contains(s.kinds, x.Kind) })
	s.merger = newMerger(o.Cluster, o.Patience, remembered, time.Now())
	s.merger.remote, s.merger.own = o.Remote, object.Key{Kind: object.ConfigMap, Namespace: o.Namespace, Name: o.MeshConfigMap}
	s.o.Remembered = nil
	return s, nil
}

// reads reports whether a kind is read if it is served. No rule uses Secrets and ServiceAccounts; those Secrets that are needed are read
// by FollowSecrets and FollowNamespace.
func (s *Source) reads(k object.Kind) bool {
	switch k {
	case object.Secret, object.ServiceAccount:
		return false
	case object.Namespace, object.Node, object.Service, object.EndpointSlice, object.Pod:
	case object.ConfigMap:
		return s.o.MeshConfigMap != "" && !s.o.Remote
	default:
		if s.o.Remote {
			return false
		}
	}
	r := decode.ResourceOf(k)
	return !matchesAny(s.o.Ignore, r) || matchesAny(s.o.Include, r)
}

// optional reports whether a kind is not waited for if it must not be read: roles of before it was read do not have the permission, and
// everything else is to be served all the same.
func optional(k object.Kind) bool { return decode.ResourceOf(k).Refusable }

// matchesAny reports whether a pattern matches a resource.
func matchesAny(patterns []string, r decode.Resource) bool {
	name := strings.TrimSuffix(r.Name+"."+r.Group, ".")
	return slices.ContainsFunc(patterns, func(p string) bool {
		if strings.Contains(p, "*") && !strings.HasSuffix(r.Group, "istio.io") {
			return false
		}
		ok, err := path.Match(p, name)
		return ok && err == nil
	})
}

// Behind returns since when changes may be missing, because something cannot be read. It returns false if nothing is
// missing. It is safe for concurrent use.
func (s *Source) Behind() (time.Time, bool) {
	at := s.behind.Load()
	return time.Unix(0, at), at != 0
}

// meshTimeout is how long MeshConfig waits for the API server.
const meshTimeout = 15 * time.Second

// MeshConfig reads the ConfigMap with the mesh configuration once; the result is empty if there is none. If the API
// server cannot be read within 15 s, it returns the ConfigMap that is remembered, or else an error. It must be called
// before Run.
func (s *Source) MeshConfig(ctx context.Context) ([]object.Object, error) {
	if !slices.Contains(s.kinds, object.ConfigMap) {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(klog.NewContext(ctx, klog.Logger{}), meshTimeout)
	defer cancel()
	of := s.collectionOf(object.ConfigMap, "v1")
	var err error
	for {
		var l *items
		l, err = s.client.list(ctx, of, metav1.ListOptions{})
		if err == nil {
			var out []object.Object
			for _, i := range l.Items {
				if o := i.(*item).entry.object; o != nil {
					out = append(out, *o)
				}
			}
			return out, nil
		}
		if f, _ := faultOf(err); f.lasting {
			break
		}
		pause := time.NewTimer(time.Second)
		select {
		case <-pause.C:
			continue
		case <-ctx.Done():
			pause.Stop()
		}
		break
	}
	if h := s.merger.objects[object.Key{Kind: object.ConfigMap, Namespace: s.o.Namespace, Name: s.o.MeshConfigMap}]; h != nil {
		s.log.Error("the mesh configuration cannot be read from the cluster; the trust domain is that of the saved one", "cluster", s.o.Cluster, "error", err)
		return []object.Object{*h.good}, nil
	}
	return nil, fmt.Errorf("read the mesh configuration from the cluster: %w", err)
}

// Run calls emit with batches, from one goroutine, until ctx ends, and then returns nil. While emit is running,
// nothing is applied, and the watches wait.
func (s *Source) Run(ctx context.Context, emit func(object.Batch)) error {
	ctx, stop := context.WithCancel(klog.NewContext(ctx, klog.Logger{})) // the library's own messages repeat what is reported here
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	readers.Go(func() { s.follow(ctx) })
	var again *time.Timer
	running := map[object.Key]context.CancelFunc{} // readers of ConfigMaps that policies name
	for {
		var due <-chan time.Time
		if again != nil {
			due = again.C
		}
		select {
		case apply := <-s.events:
			apply(s.merger, time.Now())
		case <-due:
		case <-ctx.Done():
			return nil
		}
		for waiting := true; waiting; {
			select {
			case apply := <-s.events:
				apply(s.merger, time.Now())
			default:
				waiting = false
			}
		}
		now := time.Now()
		begun, ended := s.merger.follow(now)
		for _, key := range ended {
			running[key]()
			delete(running, key)
		}
		for _, key := range begun {
			life, stop := context.WithCancel(ctx)
			running[key] = stop
			readers.Go(func() { s.readNamed(life, key) })
		}
		batch, next := s.merger.batch(now)
		s.setBehind(s.merger.behindSince(), now)
		if again != nil {
			again.Stop()
		}
		if again = nil; !next.IsZero() {
			again = time.NewTimer(next.Sub(now))
		}
		if len(batch.Changes) > 0 || batch.Problems != nil || batch.Synced {
			emit(batch)
		}
	}
}

// setBehind publishes since when changes may be missing, and logs the end of a long time.
func (s *Source) setBehind(since, now time.Time) {
	at := int64(0)
	if !since.IsZero() {
		at = since.UnixNano()
	}
	before := s.behind.Swap(at)
	if was := now.Sub(time.Unix(0, before)); at == 0 && before != 0 && was >= s.o.Patience {
		s.log.Info("every kind is read again without delay", "cluster", s.o.Cluster, "after", was.Round(time.Second))
	}
}

// send has the merger changed, unless ctx has ended.
func (s *Source) send(ctx context.Context, apply func(*merger, time.Time)) {
	select {
	case s.events <- apply:
	case <-ctx.Done():
	}
}

// read reads one kind in a version until ctx ends. It calls missing when the API server does not know the resource.
func (s *Source) read(ctx context.Context, kind object.Kind, version string, missing func()) {
	of := s.collectionOf(kind, version)
	of.seen = func(c contact) { s.seen(ctx, kind, c, missing) }
	s.reflect(ctx, string(kind), of, &store{
		put: func(i *item) { s.send(ctx, func(m *merger, _ time.Time) { m.put(i.entry) }) },
		remove: func(i *item) {
			s.send(ctx, func(m *merger, _ time.Time) { m.remove(i.entry.key) })
		},
		replace: func(all []*item) {
			entries := make([]entry, len(all))
			for i, x := range all {
				entries[i] = x.entry
			}
			s.send(ctx, func(m *merger, _ time.Time) {
				m.replace(kind, entries)
				m.state(kind).unreadable = false
				m.reading(&m.state(kind).health)
			})
		},
	})
}

// reflect runs a reflector until ctx ends.
func (s *Source) reflect(ctx context.Context, name string, of collection, to cache.ReflectorStore) {
	first, longest := s.o.Backoff[0], s.o.Backoff[1]
	if first <= 0 {
		// client-go would wait up to 60 s between two attempts; the end of ctx does not end all of its pauses.
		first, longest = 800*time.Millisecond, 5*time.Second
	}
	o := cache.ReflectorOptions{
		Name: name, Logger: &klog.Logger{},
		Backoff: &wait.Backoff{Duration: first, Cap: longest, Factor: 2, Jitter: 1, Steps: 1 << 10},
	}
	r := cache.NewReflectorWithOptions(s.client.listWatch(of), nil, to, o)
	r.WatchListPageSize = pageSize
	r.RunWithContext(ctx)
}

// seen reports how reading a kind goes.
func (s *Source) seen(ctx context.Context, kind object.Kind, c contact, missing func()) {
	f, counts := faultOf(c.err)
	if f.missing {
		missing()
	}
	s.send(ctx, func(m *merger, now time.Time) {
		state := m.state(kind)
		switch {
		case (f.lasting || f.missing) && optional(kind) && !state.whole:
			m.without(kind, f.text, now)
		case counts && !f.missing:
			m.fail(&state.health, f.fault, now)
		case c.watch && state.whole:
			m.reading(&state.health)
		case c.ended || f.missing:
			state.late(now)
		}
	})
}

// metadataOnly asks for objects without spec and status, of which Nodes have much.
const metadataOnly = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1," +
	"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// collectionOf returns where the objects of a kind are.
func (s *Source) collectionOf(kind object.Kind, version string) collection {
	r := decode.ResourceOf(kind)
	of := collection{path: "/apis/" + r.Group + "/" + version, typed: !decode.Defined(kind)}
	if r.Group == "" {
		of.path = "/api/" + version
	}
	switch {
	case kind == object.ConfigMap:
		of.path += "/namespaces/" + s.o.Namespace
		of.field = "metadata.name=" + s.o.MeshConfigMap
	case kind == object.Namespace && s.o.Only != "":
		of.field = "metadata.name=" + s.o.Only
	case r.Namespaced && s.o.Only != "":
		of.path += "/namespaces/" + s.o.Only
	}
	of.path += "/" + r.Name
	if kind == object.Node || kind == object.Namespace {
		of.accept = metadataOnly
	}
	of.item = func(o runtime.Object) *item { return s.item(kind, o) }
	return of
}

// item decodes an object.
func (s *Source) item(kind object.Kind, o runtime.Object) *item {
	var i item
	var decoded object.Object
	var problems []object.Problem
	switch o := o.(type) {
	case *rawObject:
		i.ObjectMeta = o.ObjectMeta
		decoded, problems = decode.Served(kind, o.text)
	case *metav1.PartialObjectMetadata:
		i.ObjectMeta = nameOf(&o.ObjectMeta)
		var typed any = &corev1.Namespace{ObjectMeta: o.ObjectMeta}
		if kind == object.Node {
			typed = &corev1.Node{ObjectMeta: o.ObjectMeta}
		}
		decoded, problems = decode.Typed(typed)
	default:
		if m, ok := o.(metav1.ObjectMetaAccessor); ok {
			i.Name, i.Namespace, i.ResourceVersion = m.GetObjectMeta().GetName(), m.GetObjectMeta().GetNamespace(), m.GetObjectMeta().GetResourceVersion()
		}
		decoded, problems = decode.Typed(o)
	}
	i.entry = entry{key: decode.KeyOf(kind, i.Namespace, i.Name), problems: problems}
	if s.o.Remote {
		i.entry.key.Cluster, decoded.Key.Cluster = s.o.Cluster, s.o.Cluster
	}
	for j := range problems {
		problems[j].Key, problems[j].Origin, problems[j].Generation = i.entry.key, object.Origin{File: s.o.Cluster}, i.Generation
	}
	if len(problems) == 0 {
		decoded.Origin = object.Origin{File: s.o.Cluster}
		i.entry.object = &decoded
	}
	return &i
}

func nameOf(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, ResourceVersion: m.ResourceVersion}
}

// store is where a reflector puts what it reads.
type store struct {
	put, remove func(*item)
	replace     func([]*item)
}

// Add implements cache.ReflectorStore.
func (s *store) Add(o any) error {
	s.put(o.(*item))
	return nil
}

// Update implements cache.ReflectorStore.
func (s *store) Update(o any) error { return s.Add(o) }

// Delete implements cache.ReflectorStore.
func (s *store) Delete(o any) error {
	s.remove(o.(*item))
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *store) Replace(all []any, _ string) error {
	out := make([]*item, len(all))
	for i, o := range all {
		out[i] = o.(*item)
	}
	s.replace(out)
	return nil
}

// Resync implements cache.ReflectorStore. It is not called, since nothing is resynchronized.
func (s *store) Resync() error { return nil }
