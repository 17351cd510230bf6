package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// The intervals between attempts to find the version in which a new kind is served, which follows its definition
// after some time, and the interval of looking for new kinds if definitions must not be read.
const (
	retryFirst  = 200 * time.Millisecond
	retryLimit  = 10 * time.Second
	pollServed  = 30 * time.Second
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// definitionNames are the names of the CustomResourceDefinitions that exist.
type definitionNames struct {
	mu      sync.Mutex
	names   map[string]bool
	whole   bool // a whole list has been read
	refused bool // they must not be read
	changed chan struct{}
}

// update changes the names and says so.
func (d *definitionNames) update(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// get returns whether a name is defined, and whether that is known.
func (d *definitionNames) get(name string) (exists, known bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.names[name], d.whole
}

// state returns whether a whole list has been read, and whether reading is refused.
func (d *definitionNames) state() (whole, refused bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.whole, d.refused
}

// follow reads the kinds that are served, each as long as it is, until ctx ends.
func (s *Source) follow(ctx context.Context) {
	defs := &definitionNames{names: map[string]bool{}, changed: make(chan struct{}, 1)}
	var readers sync.WaitGroup
	defer readers.Wait()
	if slices.ContainsFunc(s.kinds, decode.Defined) {
		readers.Go(func() { s.readDefinitions(ctx, defs) })
	} else {
		defs.whole = true // no kind needs one
	}
	running := map[object.Kind]reader{}
	since := map[object.Kind]time.Time{} // when kinds were first found to be defined and not served
	var pause time.Duration
	for {
		found, err := s.served(ctx, defs)
		if ctx.Err() != nil {
			return
		}
		s.unreadable(ctx, &found, since)
		for kind, version := range found.versions {
			delete(since, kind)
			if r, ok := running[kind]; ok && r.version == version {
				continue
			} else if ok {
				r.stop()
			}
			s.send(ctx, func(m *merger, now time.Time) { m.serve(kind, now) })
			life, stop := context.WithCancel(ctx)
			running[kind] = reader{version, stop}
			readers.Go(func() { s.read(life, kind, version, func() { defs.update(func() {}) }) })
			s.log.Debug("reading a kind", "cluster", s.o.Cluster, "kind", kind, "version", version)
		}
		for kind := range found.unreadable {
			if r, ok := running[kind]; ok {
				r.stop()
				delete(running, kind)
			}
		}
		for _, kind := range found.absent {
			delete(since, kind)
			if r, ok := running[kind]; ok {
				s.log.Info("a kind is not defined any more: its objects are removed", "cluster", s.o.Cluster, "kind", kind)
				r.stop()
				delete(running, kind)
			}
			s.send(ctx, func(m *merger, _ time.Time) { m.withdraw(kind) })
		}
		s.send(ctx, func(m *merger, now time.Time) {
			f, failed := faultOf(err)
			switch {
			case failed:
				m.fail(&m.api, f.fault, now)
			case found.complete:
				m.reading(&m.api)
				m.known()
			}
		})
		_, refused := defs.state()
		switch {
		case err != nil || len(found.pending)+len(found.unreadable) > 0:
			pause = min(max(2*pause, retryFirst), retryLimit)
		case refused:
			pause = pollServed
		default:
			pause = 0
		}
		var retry <-chan time.Time
		if pause > 0 {
			retry = time.After(pause)
		}
		select {
		case <-defs.changed:
		case <-retry:
		case <-ctx.Done():
			return
		}
	}
}

// unreadable reports the kinds that are defined in other versions than those that are read, and those of which no version is
// served for longer than a new definition needs. It moves the latter from pending.
func (s *Source) unreadable(ctx context.Context, found *findings, since map[object.Kind]time.Time) {
	now := time.Now()
	found.pending = slices.DeleteFunc(found.pending, func(kind object.Kind) bool {
		at, ok := since[kind]
		if !ok {
			since[kind] = now
			return false
		}
		if now.Sub(at) < s.o.Patience {
			return false
		}
		found.unreadable[kind] = nil
		return true
	})
	found.complete = found.complete || found.known && len(found.pending) == 0
	for kind, versions := range found.unreadable {
		r := decode.ResourceOf(kind)
		name := r.Name + "." + r.Group
		text := fmt.Sprintf("CustomResourceDefinition %s serves no version", name)
		if len(versions) > 0 {
			text = fmt.Sprintf("CustomResourceDefinition %s serves %s", name, strings.Join(versions, ", "))
		}
		text += fmt.Sprintf(": want one of %s", strings.Join(r.Versions, ", "))
		if r.Enforces {
			text += ", or name it in PILOT_IGNORE_RESOURCES to go on without these objects"
		}
		s.send(ctx, func(m *merger, now time.Time) { m.unreadable(kind, r.Enforces, text, now) })
	}
}

// reader is the reading of one kind.
type reader struct {
	version string
	stop    func()
}

// findings are the kinds by how they are served.
type findings struct {
	versions map[object.Kind]string
	// absent are those of which it is known that they do not exist; pending are defined and not served yet.
	absent, pending []object.Kind
	// unreadable are those that are served in other versions than those that are read, with these; none if no version is
	// served.
	unreadable map[object.Kind][]string
	known      bool // which kinds are defined, or that it cannot be known
	complete   bool // nothing else is served
}

// served finds out which kinds are served.
func (s *Source) served(ctx context.Context, defs *definitionNames) (findings, error) {
	f := findings{versions: map[object.Kind]string{}, unreadable: map[object.Kind][]string{}}
	whole, refused := defs.state()
	byGroup := map[string]servedVersions{}
	for _, kind := range s.kinds {
		r := decode.ResourceOf(kind)
		if !decode.Defined(kind) {
			f.versions[kind] = r.Versions[0]
			continue
		}
		exists, known := defs.get(r.Name + "." + r.Group)
		switch {
		case known && !exists:
			f.absent = append(f.absent, kind)
			continue
		case !known && !refused:
			continue // until the definitions have been read
		}
		versions, asked := byGroup[r.Group]
		if !asked {
			var err error
			if versions, err = s.versions(ctx, r.Group); err != nil {
				return f, err
			}
			byGroup[r.Group] = versions
		}
		if i := slices.IndexFunc(r.Versions, func(v string) bool { return slices.Contains(versions.resources[v], r.Name) }); i >= 0 {
			f.versions[kind] = r.Versions[i]
			continue
		}
		others, err := s.others(ctx, r, &versions)
		if err != nil {
			return f, err
		}
		byGroup[r.Group] = versions
		switch {
		case len(others) > 0:
			f.unreadable[kind] = others
		case exists:
			f.pending = append(f.pending, kind)
		}
	}
	f.known = whole || refused
	f.complete = f.known && len(f.pending) == 0
	return f, nil
}

// servedVersions are the versions of a group that are served.
type servedVersions struct {
	all       []string
	resources map[string][]string // of the versions that were asked for
}

// versions returns the versions of a group, with the resources of those that are read of some kind; none if the group is not
// served.
func (s *Source) versions(ctx context.Context, group string) (servedVersions, error) {
	var wanted []string
	for _, kind := range s.kinds {
		if r := decode.ResourceOf(kind); r.Group == group {
			wanted = append(wanted, r.Versions...)
		}
	}
	out := servedVersions{resources: map[string][]string{}}
	var g metav1.APIGroup
	err := s.get(ctx, "/apis/"+group, &g)
	if apierrors.IsNotFound(err) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	for _, v := range g.Versions {
		out.all = append(out.all, v.Version)
		if !slices.Contains(wanted, v.Version) {
			continue
		}
		if err := s.resources(ctx, group, v.Version, &out); err != nil {
			return out, err
		}
	}
	return out, nil
}

// resources asks for the resources of one version.
func (s *Source) resources(ctx context.Context, group, version string, into *servedVersions) error {
	var l metav1.APIResourceList
	if err := s.get(ctx, "/apis/"+group+"/"+version, &l); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	into.resources[version] = []string{}
	for _, r := range l.APIResources {
		into.resources[version] = append(into.resources[version], r.Name)
	}
	return nil
}

// others returns the versions of a resource that are served and not read.
func (s *Source) others(ctx context.Context, r decode.Resource, served *servedVersions) ([]string, error) {
	var out []string
	for _, v := range served.all {
		if served.resources[v] == nil {
			if err := s.resources(ctx, r.Group, v, served); err != nil {
				return nil, err
			}
		}
		if slices.Contains(served.resources[v], r.Name) {
			out = append(out, v)
		}
	}
	return out, nil
}

func (s *Source) get(ctx context.Context, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	text, err := s.client.raw.Get().AbsPath(path).Do(ctx).Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// readDefinitions follows the names of CustomResourceDefinitions until ctx ends.
func (s *Source) readDefinitions(ctx context.Context, d *definitionNames) {
	of := collection{path: definitions, accept: "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"}
	of.item = func(o runtime.Object) *item {
		i := &item{}
		if raw, ok := o.(*rawObject); ok {
			i.ObjectMeta = raw.ObjectMeta
		}
		return i
	}
	var away atomic.Bool
	of.seen = func(c contact) {
		f, failed := faultOf(c.err)
		switch {
		case failed && (f.lasting || f.missing):
			d.update(func() { d.refused = !d.whole })
		case failed:
			away.Store(true)
			s.send(ctx, func(m *merger, now time.Time) { m.fail(&m.api, f.fault, now) })
		case c.watch && away.CompareAndSwap(true, false):
			// The watch goes on where it ended, without a list that would say that reading works: follow finds it out.
			d.update(func() {})
		}
	}
	s.reflect(ctx, "CustomResourceDefinition", of, &store{
		put:    func(i *item) { d.update(func() { d.names[i.Name] = true }) },
		remove: func(i *item) { d.update(func() { delete(d.names, i.Name) }) },
		replace: func(all []*item) {
			d.update(func() {
				clear(d.names)
				for _, i := range all {
					d.names[i.Name] = true
				}
				d.whole, d.refused = true, false
			})
		},
	})
}

// requestFault is a fault of a request.
type requestFault struct {
	fault
	missing bool // the resource does not exist
}

// faultOf returns what an error of a request says about reading. It returns false for none, and for what a reflector
// mends at once: a version that the server has forgotten, or a request that was ended here.
func faultOf(err error) (requestFault, bool) {
	var f requestFault
	if err == nil || errors.Is(err, context.Canceled) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return f, false
	}
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err // without the query
	}
	f.text = err.Error()
	f.lasting = apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	f.missing = apierrors.IsNotFound(err)
	return f, true
}
