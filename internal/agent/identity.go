package agent

import (
	"context"
	"fmt"
	"io/fs"
	"os"

	"github.com/pilothouse/pilothouse/internal/agent/identity"
	"github.com/pilothouse/pilothouse/internal/agent/sds"
	"github.com/pilothouse/pilothouse/internal/agent/secret"
	"github.com/pilothouse/pilothouse/internal/agent/upstream"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/run"
)

// ownSocket is the name of the socket that this agent serves.
const ownSocket = "socket"

// identity finds out where the workload's certificate comes from, and takes its socket.
// Nothing is asked of anybody here: Envoy starts meanwhile and waits by itself.
func (a *Agent) identity() error {
	wd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	a.credentials, err = identity.Decide(identity.Input{
		Upstream: a.o.Settings.Upstream, Secrets: a.o.Settings.Secrets, Env: a.o.Node.Env, WorkingDir: wd, IsFile: isFile,
	})
	if err != nil {
		return err
	}
	s, log := a.o.Settings.Secrets, a.log.With("scope", "secret")
	a.secret = secret.NewValue()
	a.follower = filewatch.NewFollower(filewatch.FollowerOptions{Log: log})
	a.serve("files", a.follower.Run)
	if files := a.credentials.Mounted; files != nil {
		a.serve("certificate", secret.NewFiles(a.secret, secret.FilePaths(*files), a.follower, log).Run)
		a.log.Info("the certificate comes from files", "chain", files.Chain)
	} else {
		u := a.o.Settings.Upstream
		ca, err := a.upstream(upstream.Options{
			Name: "CA", Address: u.CA, RootFile: a.credentials.CARoot, Headers: u.CAHeaders, PlaintextToken: true,
		})
		if err != nil {
			return err
		}
		a.serve("certificate", secret.NewKeeper(a.secret, secret.Options{
			Identity: a.o.Node.Identity, KeyKind: s.Key, PKCS8: s.PKCS8, TTL: s.TTL, Ratio: s.GraceRatio, Jitter: s.Jitter,
		}, secret.NewCA(ca, s.Signer), log).Run)
	}
	if s.OutputDir != "" {
		mode := fs.FileMode(0o600)
		if a.o.Node.Env["KUBERNETES_SERVICE_HOST"] != "" {
			mode = 0o644 // other containers of the Pod run as other users [agent E39]
		}
		a.serve("certificate output", secret.Output{Dir: s.OutputDir, Mode: mode, Source: a.secret, Log: log}.Run)
	}
	return a.secretSocket()
}

// upstream fills in what is the same for all servers of the control plane. A missing root is told
// at the start, where a person looks. [agent L14]
func (a *Agent) upstream(o upstream.Options) (*upstream.Server, error) {
	u := a.o.Settings.Upstream
	o.ServerName, o.ClusterID, o.Keepalive, o.KeepaliveTimeout = u.ServerName, u.ClusterID, u.Keepalive, u.KeepaliveTimeout
	o.TokenFile, o.Certificate, o.ProvisionedDir = identity.TokenFile, a.secret.ClientCertificate, a.o.Settings.Secrets.ProvisionedDir
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

// isFile says whether there is something at path that is not a directory.
func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir()
}

// secretSocket serves the secrets, unless the environment names somebody else's socket.
// [agent E17, S19]
func (a *Agent) secretSocket() error {
	path := a.sdsSocket()
	if !a.ownsSecrets() {
		if st, err := os.Stat(path); err != nil || st.Mode()&fs.ModeSocket == 0 {
			return fmt.Errorf("WORKLOAD_IDENTITY_SOCKET_FILE names %s, and no socket is there: start its server first", path)
		}
		return nil
	}
	a.files = secret.NewNamed(secret.SystemBundles, a.follower, a.log.With("scope", "secret"))
	server, err := sds.New(path, a.secret, a.files, a.log.With("scope", "sds"))
	if err != nil {
		return err
	}
	a.undo.Add("close "+path, server.Close)
	a.serve("file secrets", a.files.Run)
	a.serve("sds", server.Run)
	return nil
}

// ownsSecrets says whether Envoy gets its certificate from this agent.
func (a *Agent) ownsSecrets() bool { return a.o.Settings.Secrets.SocketName == ownSocket }

// discovery takes the socket for Envoy's configuration.
func (a *Agent) discovery() error {
	u := a.o.Settings.Upstream
	server, err := a.upstream(upstream.Options{
		Name: "control plane", Address: u.Discovery, RootFile: a.credentials.DiscoveryRoot, Headers: u.DiscoveryHeaders,
	})
	if err != nil {
		return err
	}
	a.xds, err = xdsproxy.New(xdsproxy.Config{Socket: a.xdsSocket(), Upstream: server, Log: a.log.With("scope", "xdsproxy")})
	if err != nil {
		return err
	}
	a.undo.Add("close "+a.xdsSocket(), a.xds.Close)
	a.serve("xds", a.xds.Run)
	return nil
}

// serve adds a server; it runs until Envoy has ended.
func (a *Agent) serve(name string, runs func(context.Context) error) {
	a.servers = append(a.servers, run.Task{Name: name, Run: runs})
}
