package discovery

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/register"
	"github.com/pilothouse/pilothouse/internal/discovery/registrar"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// onlyInstance is the name of the one control plane of a directory in annotations, the same after a restart.
const onlyInstance = "directory"

// openFolderRegistrar returns the registrar of a control plane that reads a directory, and where it keeps entries; nil if proxies do not
// register themselves.
func openFolderRegistrar(o *Options) (*registrar.Folder, error) {
	if o.Registration.Off {
		return nil, nil
	}
	folder, err := registrar.OpenFolder(o.StateDir, o.Log)
	if err != nil {
		return nil, err
	}
	o.registrar = registrar.New(registrar.Options{
		Machine: register.Options{Instance: onlyInstance, Grace: o.Registration.Grace, NoHealth: o.Registration.NoHealth},
		Store:   folder, Log: o.Log.With("scope", "registration"),
	})
	return folder, nil
}

// openClusterRegistrar makes the registrar of a control plane that reads a cluster, unless proxies do not register themselves. It sends
// no request.
func openClusterRegistrar(o *Options, api *rest.Config) error {
	if o.Registration.Off {
		return nil
	}
	store, err := registrar.NewKube(api)
	if err != nil {
		return err
	}
	beats, err := registrar.NewKubeBeats(api, o.Names.Namespace, o.cluster.identity)
	if err != nil {
		return err
	}
	o.registrar = registrar.New(registrar.Options{
		Machine: register.Options{Instance: o.cluster.identity, Grace: o.Registration.Grace, NoHealth: o.Registration.NoHealth},
		Store:   store, Beats: beats, Leading: o.cluster.elector.Leading, Log: o.Log.With("scope", "registration"),
	})
	return nil
}

// joiner is the loop for the streams of proxies, which registers those that ask for it.
type joiner struct {
	*loop
	registrar *registrar.Registrar // nil if none is registered
}

// Join implements xds.Registry.
func (j joiner) Join(ctx context.Context, n mesh.Node, who mesh.Identity, id string) (*xds.LatestView, func(), error) {
	latest, leave, err := j.loop.Join(ctx, n, who, id)
	if err != nil || n.Metadata.AutoRegisterGroup == "" {
		return latest, leave, err
	}
	if j.registrar == nil {
		j.log.Warn("a proxy asks to be registered, which PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION forbids", "proxy", n.NodeID.String(), "group", n.Metadata.AutoRegisterGroup)
		return latest, leave, nil
	}
	if err := j.registrar.Connect(id, n, who); err != nil {
		leave()
		return nil, nil, status.Error(codeOf(err), err.Error())
	}
	return latest, func() { j.registrar.Disconnect(id); leave() }, nil
}

// codeOf returns the gRPC code of a refusal to register a proxy.
func codeOf(err error) codes.Code {
	var refusal *register.Refusal
	if !errors.As(err, &refusal) {
		return codes.Internal
	}
	switch refusal.Reason {
	case register.NotAuthenticated:
		return codes.Unauthenticated
	case register.OtherAccount:
		return codes.PermissionDenied
	case register.NoAddress, register.InvalidEntry:
		return codes.InvalidArgument
	case register.NoGroup:
		return codes.FailedPrecondition
	}
	panic("discovery: unknown reason " + string(refusal.Reason))
}

// ReportHealth implements xds.HealthReports.
func (j joiner) ReportHealth(id string, healthy bool, message string) bool {
	return j.registrar != nil && j.registrar.Report(id, healthy, message)
}

// runRegistrar writes the entries of proxies until ctx ends.
func (s *Server) runRegistrar(ctx context.Context) error {
	if s.opts.registrar == nil {
		<-ctx.Done()
		return nil
	}
	return s.opts.registrar.Run(ctx)
}

// apart are the objects in force that no user has written, so that they say nothing about whether the source has been read.
type apart struct {
	file string // of their origins; empty if there are none
	keys map[object.Key]bool
}

// has reports whether an object is one of them.
func (a *apart) has(o *object.Object) bool {
	return a.file != "" && o != nil && o.Origin.File == a.file
}

// apply notes a change of an object in force.
func (a *apart) apply(c object.Change) {
	switch {
	case !a.has(c.Object):
		delete(a.keys, c.Key)
	case a.keys == nil:
		a.keys = map[object.Key]bool{c.Key: true}
	default:
		a.keys[c.Key] = true
	}
}

// registrationMetrics returns the metrics of registration. The first five are Istio's.
func registrationMetrics(r *registrar.Registrar) []ca.Metric {
	if r == nil {
		return nil
	}
	c := r.Counts()
	counter := func(name, help string, n int64) ca.Metric {
		return ca.Metric{Name: name, Help: help, Counter: true, Value: float64(n)}
	}
	return []ca.Metric{
		counter("auto_registration_success_total", "WorkloadEntries that were created for proxies.", c.Created),
		counter("auto_registration_updates_total", "WorkloadEntries of proxies that were updated.", c.Updated),
		counter("auto_registration_unregister_total", "Disconnections of proxies that register themselves.", c.Disconnected),
		counter("auto_registration_deletes_total", "WorkloadEntries of proxies that were deleted.", c.Deleted),
		counter("auto_registration_errors_total", "WorkloadEntries that could not be written, and proxies that could not be registered.", c.Errors),
		{Name: "pilothouse_registered_proxies", Help: "Connections of proxies that register themselves.", Value: float64(c.Registered)},
	}
}
