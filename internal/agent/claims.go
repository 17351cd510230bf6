package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// handOver is how long an agent waits for what another one, which is about to end or was just killed, still has.
const handOver = 3 * time.Second

// ofRestart says whether a name is that of a bootstrap that an agent writes for a restart, see desire: envoy-rev-HASH-N.json.
func ofRestart(name string) bool {
	name, began := strings.CutPrefix(name, "envoy-rev-")
	name, ended := strings.CutSuffix(name, ".json")
	hash, n, _ := strings.Cut(name, "-")
	return began && ended && len(hash) == 16 && strings.Trim(hash, "0123456789abcdef") == "" &&
		n != "" && strings.Trim(n, "0123456789") == ""
}

// folders takes the folders that the agent writes into, before it touches anything in them.
func (a *Agent) folders(ctx context.Context) error {
	config := relative(filepath.Clean(a.o.Node.Config.GetConfigPath()))
	if err := os.MkdirAll(config, 0o750); err != nil {
		return fmt.Errorf("make the configuration folder: %w", err)
	}
	held, err := a.folder(ctx, config, "configuration folder", "give this one a folder of its own (configPath)")
	if err != nil || !a.ownsSecrets() {
		return err
	}
	if err := os.MkdirAll(sdsDir, 0o750); err != nil {
		return fmt.Errorf("make the folder of the secrets' socket: %w", err)
	}
	if held != nil && held.Is(sdsDir) {
		return nil
	}
	_, err = a.folder(ctx, sdsDir, "folder of the secrets' socket", "start this one in another working directory")
	return err
}

// folder takes a folder until the agent has ended. Where there are no locks, it is nil.
func (a *Agent) folder(ctx context.Context, path, what, remedy string) (*claim.Held, error) {
	held, err := claim.Folder(ctx, path, handOver, func(err error) {
		a.log.Warn("another agent has the "+what, "reason", err, "waiting_at_most", handOver)
	})
	var taken *claim.TakenError
	switch {
	case errors.As(err, &taken):
		return nil, fmt.Errorf("take the %s: %w, an agent that runs: end that one first, or %s", what, err, remedy)
	case errors.Is(err, claim.ErrUnsupported):
		a.log.Warn("nothing keeps another agent out of the "+what, "reason", err)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("take the %s: %w", what, err)
	}
	a.close.Add("give back "+path, held.Release)
	return held, nil
}

// ports takes the status port, and sees that those of Envoy are free: Envoys of one user can share the ports of their listeners, and
// whoever asks an admin port that another Envoy has speaks to that one.
func (a *Agent) ports(ctx context.Context) error {
	c, s := a.o.Node.Config, a.o.Settings.Envoy
	// Where an agent was killed, its Envoy may still be ending.
	within := time.Duration(0)
	if isFile(a.xdsSocket()) || isFile(a.bootstrapPath(bootstrapName)) {
		within = handOver
	}
	any4 := "0.0.0.0"
	if a.onlyIPv6() {
		any4 = "::"
	}
	var err error
	address := ":" + strconv.Itoa(cmp.Or(int(c.GetStatusPort()), mesh.StatusPort))
	if a.statusPort, err = claim.Port(ctx, address, within); err != nil {
		return fmt.Errorf("take the status port (statusPort): %w", err)
	}
	a.undo.Add("close the status port", a.statusPort.Close)
	for _, port := range []struct {
		what, address string
		generated     bool // it is the generated bootstrap's
	}{
		{"admin port (proxyAdminPort)", a.adminAddress(), false},
		{"health port (ENVOY_STATUS_PORT)", net.JoinHostPort(any4, strconv.Itoa(s.HealthPort)), true},
		{"port of metrics (ENVOY_PROMETHEUS_PORT)", net.JoinHostPort(any4, strconv.Itoa(s.PrometheusPort)), true},
	} {
		if port.generated && c.GetCustomConfigFile() != "" {
			continue
		}
		l, err := claim.Port(ctx, port.address, within)
		if err != nil {
			return fmt.Errorf("find Envoy's %s free: %w", port.what, err)
		}
		if err := l.Close(); err != nil {
			return fmt.Errorf("find Envoy's %s free: %w", port.what, err)
		}
	}
	return nil
}

// clearUp removes the bootstraps of restarts that an agent which was killed left behind. The folder is this agent's by now.
func (a *Agent) clearUp() error {
	dir := relative(filepath.Clean(a.o.Node.Config.GetConfigPath()))
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look for old bootstraps: %w", err)
	}
	own, _ := os.Stat(a.o.Node.Config.GetCustomConfigFile()) // nil where the user has none
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || !ofRestart(e.Name()) || own != nil && os.SameFile(own, info) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			a.log.Warn("remove the bootstrap of an agent that was killed", "error", err)
			continue
		}
		a.log.Info("the bootstrap of an agent that was killed is removed", "name", e.Name())
	}
	return nil
}
