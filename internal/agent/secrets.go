package agent

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/identity"
	"github.com/pilothouse/pilothouse/internal/agent/sds"
	"github.com/pilothouse/pilothouse/internal/agent/secret"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/run"
)

// later returns where a certificate may be mounted after the start.
func later(p identity.Plan) []secret.FilePaths {
	out := make([]secret.FilePaths, 0, len(p.Later))
	for _, f := range p.Later {
		out = append(out, secret.FilePaths(f))
	}
	return out
}

// awaitOutput waits until the certificate is written to OUTPUT_CERTS, because a bootstrap may name those files, and Envoy does not start
// if they are missing. If the first attempt to obtain a certificate fails, Envoy starts without: an outage of the
// CA must not prevent that.
func (c *certificates) awaitOutput(ctx context.Context, log *slog.Logger) {
	if c.output == nil {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-c.value.Tried():
	}
	if s, _ := c.value.Current(); s == nil {
		log.Warn("Envoy starts before there is a certificate in OUTPUT_CERTS", "folder", c.output.Dir, "reason", c.value.Problem())
		return
	}
	select {
	case <-ctx.Done():
	case <-c.output.Tried():
	}
}

// sdsPart serves secrets to Envoy.
type sdsPart struct {
	files *secret.Named
	// pushed has the names of files that Envoy may request.
	pushed *sds.Pushed
	tasks  []run.Task
	close  func() error
}

// newSDS opens the SDS socket. If source is nil, another server has the workload's secret, and the secrets of files
// are served at a socket of their own. [agent E17, S19]
func newSDS(s *spec.Spec, source sds.Source, follower *filewatch.Follower, log *slog.Logger) (sdsPart, error) {
	if s.Envoy.Disabled {
		return sdsPart{close: func() error { return nil }}, nil // gRPC libraries read files [agent D11]
	}
	files := secret.NewNamed(secret.SystemBundles, follower, log)
	pushed := sds.NewPushed(s.Envoy.Arguments.BootstrapYAML, customBootstrap(s))
	o := s.SDS
	c := sds.Config{
		Socket: s.Paths.SDSSocket, Access: claim.SocketOptions{Mode: o.Mode, UID: o.UID, GID: o.GID}, Users: sds.Users{All: o.AllUsers, UIDs: o.Users},
		Files: files, Names: pushed, KeyProvider: (*sds.KeyProvider)(o.KeyProvider), Log: log.With("scope", "sds"),
	}
	tasks := []run.Task{{Name: "file secrets", Run: files.Run}}
	if source == nil {
		c.Socket = s.Paths.FilesSocket
	} else {
		c.Source = source
		if o.CRL != "" {
			crl := secret.NewCRL(o.CRL, follower, log)
			c.Lists = crl
			tasks = append(tasks, run.Task{Name: "revocation list", Run: crl.Run})
		}
	}
	if o.AllUsers {
		log.Warn("every user gets the workload's secrets (WORKLOAD_IDENTITY_SOCKET_UIDS)", "socket", c.Socket)
	}
	server, err := sds.New(c)
	if err != nil {
		return sdsPart{}, err
	}
	tasks = append(tasks, run.Task{Name: "sds", Run: server.Run}, run.Task{Name: "sds socket", Run: func(ctx context.Context) error {
		return keepSocket(ctx, server, c.Socket, follower, log)
	}})
	return sdsPart{files: files, pushed: pushed, tasks: tasks, close: server.Close}, nil
}

// keepSocket has the server open its socket again whenever another process has replaced the file, until ctx ends.
func keepSocket(ctx context.Context, server *sds.Server, path string, follower *filewatch.Follower, log *slog.Logger) error {
	wake := make(chan struct{}, 1)
	set := follower.Follow(wake, path)
	defer set.Close()
	// A process that replaces the file again and again does not cause more work, and lines of the log, than this.
	pause := time.NewTimer(restoreInterval)
	defer pause.Stop()
	failure := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
		err := set.Read(func() error { return server.Restore(ctx) })
		switch {
		case err == nil:
			failure = ""
		case !errors.Is(err, filewatch.ErrMoving) && err.Error() != failure:
			failure = err.Error()
			log.Error("secrets cannot be requested", "reason", err)
		}
		pause.Reset(restoreInterval)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}

// restoreInterval is the least time between two looks at the SDS socket.
const restoreInterval = time.Second

// maxBootstrap is the maximum size of a custom bootstrap in bytes.
const maxBootstrap = 16 << 20

// customBootstrap returns the text of the user's bootstrap, empty for none. Envoy's start reports why it cannot be read.
func customBootstrap(s *spec.Spec) string {
	if s.Envoy.CustomBootstrap == "" {
		return ""
	}
	text, _, err := filewatch.Read(s.Envoy.CustomBootstrap, maxBootstrap)
	if err != nil {
		return ""
	}
	return string(text)
}
