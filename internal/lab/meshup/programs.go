package meshup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Programs are the paths of what a mesh runs.
type Programs struct {
	Agent, Discovery, App, Envoy string
}

// In finds our own programs in a folder of built ones, and takes envoy as given.
func In(bin, envoy string) (Programs, error) {
	p := Programs{
		Agent: filepath.Join(bin, "pilot-agent"), Discovery: filepath.Join(bin, "pilot-discovery"),
		App: filepath.Join(bin, "app"), Envoy: envoy,
	}
	for _, path := range []string{p.Agent, p.Discovery, p.App} {
		if _, err := os.Stat(path); err != nil {
			return p, fmt.Errorf("find the programs (make build makes them): %w", err)
		}
	}
	if _, err := os.Stat(envoy); err != nil {
		return p, fmt.Errorf("find Envoy (make tools fetches it, ENVOY=/path names another): %w", err)
	}
	return p, nil
}

// placed puts the programs into dir, where every user may run them: the folder that they
// were built in may be closed to the proxy's user.
func (p Programs) placed(dir string) (Programs, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return p, fmt.Errorf("make a folder for the programs: %w", err)
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
			return p, fmt.Errorf("place program %s: %w", f.from, err)
		}
	}
	return out, nil
}

// place links a file, or copies it where that cannot be.
func place(from, to string) error {
	real, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(real)
	if err != nil {
		return err
	}
	// A link shares the file's mode: only one that all may run will do.
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
