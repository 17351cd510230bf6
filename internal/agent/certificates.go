package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/identity"
	"github.com/pilothouse/pilothouse/internal/agent/lastgood"
	"github.com/pilothouse/pilothouse/internal/agent/secret"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/trust"
	"github.com/pilothouse/pilothouse/internal/agent/upstream"
	"github.com/pilothouse/pilothouse/internal/agent/wasm"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/run"
)

// certificates are the parts that get, renew and serve the workload's certificate.
type certificates struct {
	plan identity.Plan
	// discoveryRoot returns the file of the roots that verify discovery, which may appear after the start. [agent S9]
	discoveryRoot func() string
	value         *secret.Value
	// requests are the parts that request the certificate from the CA; nil if another server has it.
	requests *requests
	// sources has the files that take over from the CA if they are mounted later; nil if none can.
	sources *secret.Sources
	sds     sdsPart
	tasks   []run.Task
	// output writes the certificate to files; nil for none.
	output *secret.Output
	// trust has value with all trusted roots.
	trust *trust.Store
}

// newCertificates opens the SDS socket. The first certificate is requested by the tasks: Envoy starts at the same time and waits
// for it.
func newCertificates(s *spec.Spec, follower *filewatch.Follower, log *slog.Logger) (*certificates, error) {
	wd, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the working directory: %w", err)
	}
	host := identity.Host{WorkingDir: wd, IsFile: isFile}
	plan, err := identity.Decide(s, host)
	if err != nil {
		return nil, err
	}
	log = log.With("scope", "secret")
	value := secret.NewValue()
	c := &certificates{plan: plan, value: value, discoveryRoot: func() string { return identity.DiscoveryRoot(s, host) }}
	roots := trust.New(trust.Options{
		Source:         value,
		AnswerVerified: plan.Mounted == nil && !slices.ContainsFunc(s.Upstream.CA, upstream.Plaintext),
		BundleVerified: !upstream.Plaintext(s.Upstream.Discovery),
		Replaced:       func() bool { return c.sources.Mounted() != nil },
	})
	c.trust = roots
	trusts := run.Task{Name: "trust", Run: roots.Run}
	if !s.Certificates.Own {
		if dir := s.Certificates.OutputDir; dir != "" {
			return nil, fmt.Errorf("OUTPUT_CERTS: no certificate to write to %s, because the server at %s has it: unset the variable, or set WORKLOAD_IDENTITY_SOCKET_POLICY=ignore", dir, s.Paths.SDSSocket)
		}
		server, err := newSDS(s, nil, follower, log)
		if err != nil {
			return nil, err
		}
		c.sds, c.tasks = server, append([]run.Task{trusts}, server.tasks...)
		return c, nil
	}
	c.requests, err = newRequests(s, plan, value, roots, log)
	if err != nil {
		return nil, err
	}
	renewal := newRenewal(plan, value, c.requests, follower, log)
	if len(plan.Later) > 0 {
		c.sources = secret.NewSources(value, later(plan), renewal, follower, log)
		renewal = c.sources.Run
	}
	c.tasks = []run.Task{{Name: "certificate", Run: renewal}, trusts}
	if dir := s.Certificates.OutputDir; dir != "" {
		c.output = secret.NewOutput(dir, s.Certificates.OutputMode, roots, log)
		c.tasks = append(c.tasks, run.Task{Name: "certificate output", Run: c.output.Run})
	}
	c.sds, err = newSDS(s, roots, follower, log)
	if err != nil {
		return nil, err
	}
	c.tasks = append(c.tasks, c.sds.tasks...)
	return c, nil
}

// newRenewal returns the task that keeps value current: from the files of a mounted certificate, else from the CA.
func newRenewal(plan identity.Plan, value *secret.Value, requests *requests, follower *filewatch.Follower, log *slog.Logger) func(context.Context) error {
	if files := plan.Mounted; files != nil {
		log.Info("the certificate comes from files", "chain", files.Chain)
		return secret.NewFiles(value, secret.FilePaths(*files), follower, log).Run
	}
	return requests.keeper.Run
}

// connectTo fills in the options that all servers of the control plane share. A missing root certificate is an error
// at the start, because that is where users look for errors. [agent L14]
func connectTo(s *spec.Spec, certificate *secret.Value, token tokens, o upstream.Options) (*upstream.Server, error) {
	u := s.Upstream
	o.TLS, o.ServerName, o.ClusterID, o.Keepalive, o.KeepaliveTimeout = s.TLS, u.ServerName, u.ClusterID, u.Keepalive, u.KeepaliveTimeout
	o.Token, o.Certificate, o.ProvisionedDir = token.get, certificate.ClientCertificate, s.Certificates.ProvisionedDir
	switch {
	case upstream.Plaintext(o.Address), o.RootFile == upstream.SystemRoots:
	case o.RootFile == "":
		return nil, identity.ErrNoRoot
	default:
		if _, err := os.Stat(o.RootFile); err != nil {
			return nil, fmt.Errorf("find the root certificate of the %s %s: %w", o.Name, o.Address, err)
		}
	}
	return upstream.New(o)
}

// isFile reports whether a path exists and is not a directory.
func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir()
}

// newXDS opens the XDS socket. kept is nil if no configuration is kept.
func newXDS(s *spec.Spec, c *certificates, dns dnsPart, kept *lastgood.Store, modules *wasm.Cache, changes *dynamicBootstrap, log *slog.Logger) (*xdsproxy.Proxy, error) {
	server, err := connectTo(s, c.value, newTokens(s), upstream.Options{
		Name: "control plane", Address: s.Upstream.Discovery, RootFile: c.plan.DiscoveryRoot, ChooseRootFile: c.discoveryRoot, Trust: c.trust.ControlPlane, Headers: s.Upstream.DiscoveryHeaders,
	})
	if err != nil {
		return nil, err
	}
	o := xdsproxy.Config{Socket: s.Paths.XDSSocket, Upstream: server, Copy: kept, Log: log.With("scope", "xdsproxy"),
		Node: xdsproxy.Node{ID: s.Node.ID.String(), Namespace: s.Node.Identity.Namespace}}
	if c.sds.pushed != nil {
		o.Observe = c.sds.pushed.Observe
	}
	if s.Envoy.Disabled {
		o.Node.Metadata = ownMetadata(s)
	} else {
		o.Stats = envoy.NewAdmin(s.AdminAddress()).Stats
	}
	if modules != nil {
		o.Extensions = modules
	}
	if s.Upstream.TrustBundle {
		o.Trust = c.trust
	}
	if dns.server != nil {
		o.Names = dns.server
	}
	if changes != nil {
		o.Bootstraps = changes.store
	}
	return xdsproxy.New(o)
}
