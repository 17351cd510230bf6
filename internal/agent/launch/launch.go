// Package launch writes Envoy's bootstraps and makes the command lines that use them.
//
// A Folder owns the bootstraps of one agent: it writes one for each Spec that Envoy is started
// with, keeps those that may be started again, and removes the others. A bootstrap that the user wrote is used as
// it is and never removed. One goroutine at a time uses a Folder.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/bootstrap"
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
)

// First is the hash of the Launch that an agent starts with.
const First = "first"

// Differs is the hash of the Launch that an agent starts with if discovery changes something in the bootstrap.
const Differs = "differs"

// validation bounds the validation of a bootstrap that is not the agent's alone.
const validation = 30 * time.Second

// Folder writes the bootstraps of an agent.
type Folder struct {
	dir     string
	log     *slog.Logger
	written map[string]string // paths by hash
}

// FindEnvoy checks that Envoy's binary exists, unless there is to be none. The error names the setting to change.
func FindEnvoy(s *spec.Spec) error {
	if s.Envoy.Disabled {
		return nil
	}
	if _, err := exec.LookPath(s.Envoy.Binary); err != nil {
		return fmt.Errorf("find Envoy (binaryPath): %w", err)
	}
	return nil
}

// Open takes over the agent's configuration folder, which must exist and be locked by this agent. It removes the
// bootstraps that a killed agent has left there.
func Open(s *spec.Spec, log *slog.Logger) (*Folder, error) {
	f := &Folder{dir: s.Paths.ConfigDir, log: log, written: map[string]string{}}
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, fmt.Errorf("look for old bootstraps: %w", err)
	}
	custom, _ := os.Stat(s.Envoy.CustomBootstrap) // nil if there is none
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || !isRestart(e.Name()) || custom != nil && os.SameFile(custom, info) {
			continue
		}
		if err := os.Remove(filepath.Join(f.dir, e.Name())); err != nil {
			log.Warn("remove the bootstrap of an agent that was killed", "error", err)
			continue
		}
		log.Info("removed the bootstrap of an agent that was killed", "name", e.Name())
	}
	return f, nil
}

// isRestart reports whether a file name has the form that path gives to the bootstrap of a restart, envoy-rev-HASH-N.json, or to one that
// has differences, with .pb.
func isRestart(name string) bool {
	name, hasPrefix := strings.CutPrefix(name, "envoy-rev-")
	name, binary := strings.CutSuffix(name, ".pb")
	if binary && hasPrefix && name == Differs {
		return true
	}
	name, hasSuffix := strings.CutSuffix(name, ".json")
	hasSuffix = hasSuffix || binary
	hash, n, _ := strings.Cut(name, "-")
	return hasPrefix && hasSuffix && len(hash) == 16 && strings.Trim(hash, "0123456789abcdef") == "" &&
		n != "" && strings.Trim(n, "0123456789") == ""
}

func path(s *spec.Spec, hash string) string {
	if hash == First {
		return s.Paths.Bootstrap
	}
	ending := ".json"
	if len(s.Envoy.Differences) > 0 {
		ending = ".pb" // Envoy reads it as protobuf
	}
	return strings.TrimSuffix(s.Paths.Bootstrap, ".json") + "-" + hash + ending
}

// First writes the first bootstrap. A bootstrap or an override that the user wrote is validated by Envoy,
// because nothing else would report its mistakes before the start.
func (f *Folder) First(ctx context.Context, s *spec.Spec) (envoy.Launch, error) {
	l, err := f.Launch(s, First)
	if err != nil || s.Envoy.CustomBootstrap == "" && s.Envoy.Arguments.BootstrapYAML == "" {
		return l, err
	}
	return l, validate(ctx, l)
}

func validate(ctx context.Context, l envoy.Launch) error {
	ctx, cancel := context.WithTimeout(ctx, validation)
	defer cancel()
	return envoy.Validate(ctx, l)
}

// Validated is Launch for a bootstrap that Envoy may refuse. The error has what Envoy says.
func (f *Folder) Validated(ctx context.Context, s *spec.Spec, hash string) (envoy.Launch, error) {
	l, err := f.Launch(s, hash)
	if err != nil {
		return l, err
	}
	return l, validate(ctx, l)
}

// Launch writes the bootstrap of s, unless the user has written one, and returns how Envoy is started with it.
func (f *Folder) Launch(s *spec.Spec, hash string) (envoy.Launch, error) {
	args := s.Envoy.Arguments
	args.Bootstrap = s.Envoy.CustomBootstrap
	if err := readable(args.Bootstrap); err != nil {
		return envoy.Launch{}, err
	}
	if args.Bootstrap == "" {
		args.Bootstrap = path(s, hash)
		if err := f.write(s, args.Bootstrap); err != nil {
			return envoy.Launch{}, err
		}
		f.written[hash] = args.Bootstrap
	}
	l := envoy.Launch{Hash: hash, Binary: s.Envoy.Binary, Env: s.Envoy.Env, As: (*envoy.User)(s.Envoy.RunAs)}
	if args.HotRestart {
		l.Workers, args.Concurrency = args.Concurrency, 0
	}
	l.Args = args.List()
	return l, nil
}

// readable returns an error if the bootstrap of the user exists and is not a file: Envoy would read a device
// without end. It reports any other mistake itself.
func readable(custom string) error {
	if custom == "" {
		return nil
	}
	fi, err := os.Stat(custom)
	if err != nil || fi.Mode().IsRegular() {
		return nil //nolint:nilerr // Envoy reports it
	}
	return fmt.Errorf("customConfigFile %s: want a regular file", custom)
}

func (f *Folder) write(s *spec.Spec, path string) error {
	b, err := bootstrap.Build(s)
	if err != nil {
		return err
	}
	for _, w := range b.Warnings {
		f.log.Warn(w)
	}
	var text []byte
	if len(s.Envoy.Differences) > 0 {
		text, err = b.Merged(s.Envoy.Differences)
	} else {
		text, err = b.Encode()
	}
	if err != nil {
		return err
	}
	// No fsync: it is written again at every start.
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("write Envoy's bootstrap: %w", err)
	}
	return nil
}

// Keep removes all bootstraps except those of the given hashes.
func (f *Folder) Keep(hashes ...string) {
	for hash, path := range f.written {
		if slices.Contains(hashes, hash) {
			continue
		}
		delete(f.written, hash)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.log.Warn("remove an old bootstrap", "error", err)
		}
	}
}

// Close removes the bootstraps. Envoy must have ended.
func (f *Folder) Close() error {
	var errs []error
	for _, path := range f.written {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
