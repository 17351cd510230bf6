package agent

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/pilothouse/pilothouse/internal/agent/identity"
	"github.com/pilothouse/pilothouse/internal/agent/sds"
	"github.com/pilothouse/pilothouse/internal/agent/secret"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/upstream"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/run"
)

// certificates are the parts that get, renew and serve the workload's certificate.
type certificates struct {
	plan  identity.Plan
	value *secret.Value
	// token is the source of the token that authenticates this workload until it has a certificate; gce is nil if that is a file.
	token func(context.Context) (string, error)
	gce   *upstream.GCE
	// issued is nil if the certificate does not come from the CA.
	issued *issued
	sds    sdsPart
	tasks  []run.Task
}

// issued are the parts that get the certificate from the CA.
type issued struct {
	keeper *secret.Keeper
	ca     *secret.CA
	copy   *secret.Copy // nil for none
}

// newCertificates opens the SDS socket. The first certificate is requested by the tasks: Envoy starts at the same time and waits
// for it.
func newCertificates(s *spec.Spec, follower *filewatch.Follower, log *slog.Logger) (*certificates, error) {
	wd, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find the working directory: %w", err)
	}
	plan, err := identity.Decide(s, identity.Host{WorkingDir: wd, IsFile: isFile})
	if err != nil {
		return nil, err
	}
	log = log.With("scope", "secret")
	c := &certificates{plan: plan, value: secret.NewValue(), token: upstream.TokenFile(s.Upstream.TokenFile)}
	if host := s.Upstream.MetadataServer; host != "" {
		c.gce = upstream.NewGCE(host, s.Node.Identity.TrustDomain)
		c.token = c.gce.Token
	}
	if files := plan.Mounted; files != nil {
		log.Info("the certificate comes from files", "chain", files.Chain)
		c.tasks = []run.Task{{Name: "certificate", Run: secret.NewFiles(c.value, secret.FilePaths(*files), follower, log).Run}}
	} else {
		if c.issued, err = newIssued(s, c, log); err != nil {
			return nil, err
		}
		c.tasks = []run.Task{{Name: "certificate", Run: c.issued.keeper.Run}}
	}
	if dir := s.Certificates.OutputDir; dir != "" {
		output := secret.Output{Dir: dir, Mode: s.Certificates.OutputMode, Source: c.value, Log: log}
		c.tasks = append(c.tasks, run.Task{Name: "certificate output", Run: output.Run})
	}
	if c.sds, err = newSDS(s, c.value, follower, log); err != nil {
		return nil, err
	}
	c.tasks = append(c.tasks, c.sds.tasks...)
	return c, nil
}

// newIssued makes the parts that get the certificate from the CA.
func newIssued(s *spec.Spec, c *certificates, log *slog.Logger) (*issued, error) {
	var upstreams []secret.Upstream
	for _, address := range s.Upstream.CA {
		u, err := connectTo(s, c, upstream.Options{
			Name: "CA", Address: address, RootFile: c.plan.CARoot, Headers: s.Upstream.CAHeaders, PlaintextToken: true,
		})
		if err != nil {
			return nil, err
		}
		upstreams = append(upstreams, u)
	}
	o := s.Certificates
	out := &issued{ca: secret.NewCA(upstreams, o.Signer)}
	if o.CopyDir != "" {
		var err error
		out.copy, err = secret.OpenCopy(secret.CopyOptions{Dir: o.CopyDir, KeyFile: o.CopyKeyFile, Optional: o.CopyOptional, Log: log})
		if err != nil {
			return nil, fmt.Errorf("%w: set IDENTITY_COPY_KEY_FILE to a file on another volume, or IDENTITY_COPY_DIR to a folder in memory, or to none", err)
		}
	}
	out.keeper = secret.NewKeeper(c.value, secret.Options{
		Identity: s.Node.Identity, KeyKind: o.Key, PKCS8: o.PKCS8, TTL: o.TTL, Ratio: o.RenewalRatio, Jitter: o.Jitter,
		Source: strings.Join(s.Upstream.CA, ","), Copy: out.copy,
	}, out.ca, log)
	return out, nil
}

// sdsPart serves secrets to Envoy.
type sdsPart struct {
	files *secret.Named // nil if another server serves the secrets
	tasks []run.Task
	close func() error
}

// newSDS opens the SDS socket, unless the environment names the socket of another server. [agent E17, S19]
func newSDS(s *spec.Spec, value *secret.Value, follower *filewatch.Follower, log *slog.Logger) (sdsPart, error) {
	path := s.Paths.SDSSocket
	if !s.Certificates.Own {
		if st, err := os.Stat(path); err != nil || st.Mode()&fs.ModeSocket == 0 {
			return sdsPart{}, fmt.Errorf("WORKLOAD_IDENTITY_SOCKET_FILE: find the socket %s: start its server first", path)
		}
		return sdsPart{close: func() error { return nil }}, nil
	}
	files := secret.NewNamed(secret.SystemBundles, follower, log)
	server, err := sds.New(path, value, files, log.With("scope", "sds"))
	if err != nil {
		return sdsPart{}, err
	}
	tasks := []run.Task{{Name: "file secrets", Run: files.Run}, {Name: "sds", Run: server.Run}}
	return sdsPart{files: files, tasks: tasks, close: server.Close}, nil
}

// connectTo fills in the options that all servers of the control plane share. A missing root certificate is an error
// at the start, because that is where users look for errors. [agent L14]
func connectTo(s *spec.Spec, c *certificates, o upstream.Options) (*upstream.Server, error) {
	u := s.Upstream
	o.ServerName, o.ClusterID, o.Keepalive, o.KeepaliveTimeout = u.ServerName, u.ClusterID, u.Keepalive, u.KeepaliveTimeout
	o.Token, o.Certificate, o.ProvisionedDir = c.token, c.value.ClientCertificate, s.Certificates.ProvisionedDir
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

// newXDS opens the XDS socket.
func newXDS(s *spec.Spec, c *certificates, log *slog.Logger) (*xdsproxy.Proxy, error) {
	server, err := connectTo(s, c, upstream.Options{
		Name: "control plane", Address: s.Upstream.Discovery, RootFile: c.plan.DiscoveryRoot, Headers: s.Upstream.DiscoveryHeaders,
	})
	if err != nil {
		return nil, err
	}
	return xdsproxy.New(xdsproxy.Config{Socket: s.Paths.XDSSocket, Upstream: server, Log: log.With("scope", "xdsproxy")})
}
