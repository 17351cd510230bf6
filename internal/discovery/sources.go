package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/source/dir"
	kubesource "github.com/pilothouse/pilothouse/internal/discovery/source/kube"
	"github.com/pilothouse/pilothouse/internal/discovery/source/multi"
	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// New creates a control plane and opens its ports, which Run closes. It returns an error if the source
// cannot be read and nothing was saved, if the trust domain is ambiguous, if the files in the state
// folder cannot be used, if a port cannot be opened, or if ctx ends while it waits for an API server.
func New(ctx context.Context, o Options) (*Server, error) {
	o.Names.Revision = cmp.Or(o.Names.Revision, "default")
	// Before anything in the folder is read, or set aside because it cannot be.
	if err := statefile.CheckFolder(o.StateDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if o.ConfigDir == "" {
		return newOfCluster(ctx, o)
	}
	if sameFolder(o.StateDir, o.ConfigDir) {
		return nil, fmt.Errorf("state folder %s: it is the configuration directory: choose another with --stateDir", o.StateDir)
	}
	// Messages have paths that can be pasted elsewhere than where this program runs.
	at, err := filepath.Abs(o.ConfigDir)
	if err != nil {
		return nil, fmt.Errorf("find the configuration directory: %w", err)
	}
	o.ConfigDir = at
	kept := openKeeper(o.StateDir, o.ConfigDir, o.Log)
	remembered, beside := splitRemembered(kept.remembered(false), func(x object.Object) bool {
		return x.Cluster == "" && multi.Below(kept.place, x.Origin.File)
	})
	source, err := dir.New(dir.Options{Dir: o.ConfigDir, Exclude: o.StateDir, Remembered: remembered, Log: o.Log})
	if err != nil {
		return nil, err
	}
	parts := multi.Options{First: source, Place: o.ConfigDir, Remembered: beside}
	folder, err := openFolderRegistrar(&o)
	if err != nil {
		return nil, err
	}
	if folder != nil {
		parts.Registered, parts.RegisteredFile = folder, folder.Path()
	}
	return newServer(ctx, o, parts, kept)
}

// sameFolder reports whether two paths are of one directory that exists.
func sameFolder(a, b string) bool {
	fa, err := os.Stat(a)
	if err != nil {
		return false
	}
	fb, err := os.Stat(b)
	return err == nil && os.SameFile(fa, fb)
}

// newOfCluster creates a control plane that reads a cluster, and the remote clusters that Secrets in it name.
func newOfCluster(ctx context.Context, o Options) (*Server, error) {
	k := o.Kubernetes
	api, err := kube.Load(k.API)
	if err != nil {
		return nil, err
	}
	kept := openKeeper(o.StateDir, k.Cluster, o.Log)
	remembered, beside := splitRemembered(kept.remembered(false), func(x object.Object) bool { return x.Origin.File == k.Cluster && x.Cluster == "" })
	source, err := kubesource.New(kubesource.Options{
		Config: api, Cluster: k.Cluster, Namespace: o.Names.Namespace, MeshConfigMap: o.Names.meshConfig().Name, Only: k.WatchNamespace, Ignore: k.Ignore, Include: k.Include,
		Remembered: remembered, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	if o.cluster, err = openCluster(&o, api); err != nil {
		return nil, err
	}
	if err = openClusterRegistrar(&o, api); err != nil {
		return nil, err
	}
	parts := multi.Options{First: source, Place: k.Cluster, FirstIsCluster: true, Remembered: beside, Timeout: k.RemoteTimeout}
	if !k.NoRemotes {
		parts.Refused = kubesource.ErrRefused
		parts.Secrets = func(ctx context.Context, report func([]multi.Secret, error)) { followSecrets(ctx, o, api, report) }
		parts.OpenCluster = func(id string, kubeconfig []byte, remembered []object.Object) (multi.Runner, error) {
			return o.cluster.openRemote(o, id, kubeconfig, remembered)
		}
	}
	return newServer(ctx, o, parts, kept)
}

// splitRemembered returns the saved objects of the first source, and those of others.
func splitRemembered(all []object.Object, ofFirst func(object.Object) bool) (first, others []object.Object) {
	for _, x := range all {
		if ofFirst(x) {
			first = append(first, x)
		} else {
			others = append(others, x)
		}
	}
	return first, others
}

// join completes the options of the source that joins all, with those that the mesh configuration has.
func (s *Server) join(parts multi.Options, m *meshv1.MeshConfig) *multi.Source {
	parts.Log = s.opts.Log
	parts.ConfigSources = addressesOf(m)
	parts.OpenDirectory = func(path string, remembered []object.Object) (multi.Runner, error) {
		return dir.New(dir.Options{Dir: path, Remembered: remembered, Log: s.opts.Log})
	}
	return multi.New(parts)
}

// addressesOf returns the addresses of configSources.
func addressesOf(m *meshv1.MeshConfig) (out []string) {
	for _, c := range m.GetConfigSources() {
		out = append(out, c.GetAddress())
	}
	return out
}

// findMesh returns the trust domain of the mesh, from the option and the current mesh configuration, and that
// configuration. The root has the domain's name, so that it is needed before the root is opened and before the source
// is watched. If mesh configuration is invalid, its saved version is used.
func findMesh(ctx context.Context, o Options, source multi.Runner, file meshFile, remembered []object.Object) (string, *meshv1.MeshConfig, error) {
	var objects []object.Object
	switch s := source.(type) {
	case interface{ ConfigMaps() []object.Object }:
		objects = s.ConfigMaps()
	case interface {
		MeshConfig(context.Context) ([]object.Object, error)
	}:
		var err error
		if objects, err = s.MeshConfig(ctx); err != nil {
			return "", nil, err
		}
	}
	inFile, err := file.readOnce()
	if err != nil && o.Names.TrustDomain == "" {
		return "", nil, err
	}
	if inFile != nil {
		objects = append(objects, *inFile)
	}
	for i, now := range objects {
		before := slices.IndexFunc(remembered, func(r object.Object) bool { return r.Key == now.Key })
		if before >= 0 && config.IsMeshConfig(now.Key, o.Names.meshConfig()) && config.Rejected(config.Validate(now)) {
			objects[i] = remembered[before]
		}
	}
	domain, err := config.TrustDomain(o.Names.TrustDomain, o.Names.meshConfig(), objects)
	return domain, config.MeshOf(o.Names.meshConfig(), objects), err
}

// sourcesChanged has the configSources of a mesh configuration applied. It does not block, and is called from one
// goroutine.
func (s *Server) sourcesChanged(m *meshv1.MeshConfig) {
	select {
	case <-s.sourcesOf:
	default:
	}
	s.sourcesOf <- addressesOf(m)
}

// followConfigSources applies configSources until ctx ends.
func (s *Server) followConfigSources(ctx context.Context) error {
	for {
		select {
		case addresses := <-s.sourcesOf:
			s.source.SetConfigSources(ctx, addresses)
		case <-ctx.Done():
			return nil
		}
	}
}
