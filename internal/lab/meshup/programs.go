package meshup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Programs are the paths of the programs of a mesh.
type Programs struct {
	Agent, Discovery, App, Envoy string
}

// In are the programs of this repository in the directory bin, and the given Envoy.
func In(bin, envoy string) (Programs, error) {
	p := Programs{
		Agent: filepath.Join(bin, "pilot-agent"), Discovery: filepath.Join(bin, "pilot-discovery"),
		App: filepath.Join(bin, "app"), Envoy: envoy,
	}
	for _, path := range []string{p.Agent, p.Discovery, p.App} {
		if _, err := os.Stat(path); err != nil {
			return p, fmt.Errorf("find the programs (run 'make build'): %w", err)
		}
	}
	if _, err := os.Stat(envoy); err != nil {
		return p, fmt.Errorf("find Envoy (run 'make tools', or set ENVOY=/path/to/envoy): %w", err)
	}
	return p, nil
}

// placed links or copies the programs to dir, where every user may run them: the proxy's user may have no access
// to the directory that they were built in.
func (p Programs) placed(dir string) (Programs, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return p, fmt.Errorf("make a directory for the programs: %w", err)
	}
	out := Programs{}
	for _, f := range []struct {
		from string
		name string
		to   *string
	}{
		{p.Agent, "pilot-agent", &out.Agent}, {p.Discovery, "pilot-discovery", &out.Discovery},
		{p.App, "app", &out.App}, {p.Envoy, "envoy", &out.Envoy},
	} {
		*f.to = filepath.Join(dir, f.name)
		if err := place(f.from, *f.to); err != nil {
			return p, fmt.Errorf("copy program %s: %w", f.from, err)
		}
	}
	return out, nil
}

// place links a file, or copies it if it cannot be linked.
func place(from, to string) error {
	real, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(real)
	if err != nil {
		return err
	}
	// A link has the mode of the file, which all users must be allowed to run.
	if info.Mode().Perm()&0o005 == 0o005 && os.Link(real, to) == nil {
		return nil
	}
	src, err := os.Open(real)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}
