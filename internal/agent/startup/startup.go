// Package startup takes the resources that only one agent can use: its folders and its ports.
//
// Take comes before anything is written or started, so that an agent that cannot take them fails without
// having changed anything that another one uses. Folders are locked until Release; the lock ends with the process,
// however it ends.
package startup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/run"
)

// takeTimeout bounds the wait for an agent that is about to end, or for an Envoy whose agent was killed.
const takeTimeout = 3 * time.Second

// Taken holds the resources of one agent.
type Taken struct {
	// Status listens at the status port. The caller closes it.
	Status  net.Listener
	folders run.Cleanups
}

// Release unlocks the folders. It does not close Status.
func (t *Taken) Release() error { return t.folders.Close() }

// Take locks the agent's folders, listens at the status port, and checks that Envoy's own ports are free. If another process
// uses one of them, the error names it and the setting to change.
func Take(ctx context.Context, s *spec.Spec, log *slog.Logger) (*Taken, error) {
	t := &Taken{}
	err := t.lockAll(ctx, s, log)
	if err == nil {
		t.Status, err = ports(ctx, s)
	}
	if err != nil {
		return nil, errors.Join(err, t.Release())
	}
	return t, nil
}

func (t *Taken) lockAll(ctx context.Context, s *spec.Spec, log *slog.Logger) error {
	user := (*envoy.User)(s.Envoy.RunAs)
	if user != nil {
		log.Info("Envoy runs as another user than the agent, which is root to serve DNS on port 53", "uid", user.UID, "gid", user.GID, "binds_low_ports", user.BindPorts)
		if file := s.Envoy.OutlierLog; file != "" {
			if err := user.LogFile(file); err != nil {
				return err
			}
		}
	}
	if err := user.Folder(s.Paths.ConfigDir); err != nil {
		return fmt.Errorf("make the configuration folder: %w", err)
	}
	config, err := t.lock(ctx, s.Paths.ConfigDir, "configuration folder", "give this one a folder of its own (configPath)", log)
	if err != nil || !s.Certificates.Own {
		return err
	}
	if err := user.Folder(s.Paths.SDSDir); err != nil {
		return fmt.Errorf("make the folder of the SDS socket: %w", err)
	}
	if config != nil && config.Is(s.Paths.SDSDir) {
		return nil
	}
	_, err = t.lock(ctx, s.Paths.SDSDir, "folder of the SDS socket", "start this one in another working directory", log)
	return err
}

// lock locks a folder. The result is nil if the file system does not support locks.
func (t *Taken) lock(ctx context.Context, path, what, remedy string, log *slog.Logger) (*claim.Lock, error) {
	held, err := claim.Folder(ctx, path, takeTimeout, func(err error) {
		log.Warn("another agent has the "+what, "reason", err, "waiting_at_most", takeTimeout)
	})
	var taken *claim.TakenError
	switch {
	case errors.As(err, &taken):
		return nil, fmt.Errorf("take the %s: %w, a running agent: end that one first, or %s", what, err, remedy)
	case errors.Is(err, claim.ErrUnsupported):
		log.Warn("other agents are not kept out of the "+what, "reason", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("take the %s: %w", what, err)
	}
	t.folders.Add("unlock "+path, held.Release)
	return held, nil
}

// ports takes the status port and checks that Envoy's ports are free: Envoys of one user can share the ports of
// their listeners, and requests to an admin port that another Envoy uses would reach that one.
func ports(ctx context.Context, s *spec.Spec) (net.Listener, error) {
	within := time.Duration(0)
	if exists(s.Paths.XDSSocket) || exists(s.Paths.Bootstrap) {
		within = takeTimeout // an agent was killed here: its Envoy may still be ending
	}
	wildcard := "0.0.0.0"
	if s.IPv6Only() {
		wildcard = "::"
	}
	status, err := claim.Port(ctx, ":"+strconv.Itoa(s.Status.Port), within)
	if err != nil {
		return nil, fmt.Errorf("take the status port (statusPort in PROXY_CONFIG): %w", claim.PortError(err))
	}
	if s.Envoy.Disabled {
		return status, nil
	}
	onAll := func(port int) string { return net.JoinHostPort(wildcard, strconv.Itoa(port)) }
	wanted := []struct {
		what, address string
		generated     bool // only in the generated bootstrap
	}{
		{"admin port (proxyAdminPort in PROXY_CONFIG)", s.AdminAddress(), false},
		{"health port (ENVOY_STATUS_PORT)", onAll(s.Envoy.HealthPort), true},
		{"metrics port (ENVOY_PROMETHEUS_PORT)", onAll(s.Envoy.PrometheusPort), true},
		{"port of metrics over mutual TLS (ENVOY_SECURE_METRICS_PORT)", onAll(s.Envoy.SecureMetricsPort), true},
		{"port of merged metrics over mutual TLS (ENVOY_SECURE_MERGED_METRICS_PORT)", onAll(s.Envoy.SecureMergedMetricsPort), true},
	}
	for _, port := range wanted {
		if port.address == onAll(0) {
			continue
		}
		if port.generated && s.Envoy.CustomBootstrap != "" {
			continue
		}
		l, err := claim.Port(ctx, port.address, within)
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("check that Envoy's %s is free: %w", port.what, claim.PortError(err)), status.Close())
		}
	}
	return status, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
