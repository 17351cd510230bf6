package up

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// DefaultRunDir is where meshes that run are recorded.
const DefaultRunDir = "/run/pilothouse/up"

// Mesh is a mesh that runs.
type Mesh struct {
	// PID is the process that runs it.
	PID int
	// Dir is the directory of its YAML.
	Dir string
	// LogDir has the logs of its programs.
	LogDir string
	// Discovery is the address of pilot-discovery's debug port on this machine.
	Discovery string
	UID, GID  uint32
	Home      string
	Path      string
	Pods      []Pod
	Published []Published
}

// Pod is a Pod of a mesh that runs.
type Pod struct {
	Namespace, Name, Workload string
	// Task is the thread that holds its namespaces.
	Task       int
	IP         string
	Containers []string
	Proxied    bool
}

// Key is "name.namespace".
func (p Pod) Key() string { return p.Name + "." + p.Namespace }

// Published is a port of a Pod on this machine's loopback.
type Published struct {
	Address, Pod string
	Port         uint16
	// Scheme is that of its URLs: "http", "https", or "" for a port that speaks neither.
	Scheme string
}

// URL is what a person opens: the address alone if the port speaks no HTTP.
func (p Published) URL() string {
	if p.Scheme == "" {
		return p.Address
	}
	return p.Scheme + "://" + p.Address
}

// record is the file of this run, which is locked while it runs.
type record struct {
	Mesh
	file *os.File
}

func newRecord(dir string) (*record, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("record the mesh: %w", err)
	}
	if err := removeStale(dir); err != nil {
		return nil, fmt.Errorf("remove the records of meshes that run no more: %w", err)
	}
	f, err := lockedFile(dir)
	if err != nil {
		return nil, fmt.Errorf("record the mesh: %w", err)
	}
	return &record{file: f, Mesh: Mesh{PID: os.Getpid()}}, nil
}

// lockedFile makes a file and locks it.
func lockedFile(dir string) (*os.File, error) {
	const tries = 10 // another process may look at a file or remove it before it is locked; the next one has another name
	for i := 0; ; i++ {
		f, err := os.CreateTemp(dir, strconv.Itoa(os.Getpid())+"-*.json")
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && isAt(f, f.Name()) {
			return f, nil
		}
		if err = errors.Join(fmt.Errorf("lock %s: %w", f.Name(), cmp.Or(err, errors.New("it was removed meanwhile"))), f.Close()); i == tries {
			return nil, err
		}
		_ = os.Remove(f.Name()) // if it is still there
	}
}

// isAt reports whether a file is still the one of a path.
func isAt(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(mine, there)
}

// removeStale removes the records of processes that were killed. Who runs holds the lock of its record, whatever has its number
// since.
func removeStale(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if filepath.Ext(path) != ".json" || !e.Type().IsRegular() {
			continue
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil && isAt(f, path) {
			err = os.Remove(path)
		} else {
			err = nil
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// write writes what runs now.
func (r *record) write(s *session) error {
	dir, err := filepath.Abs(s.o.Dir)
	if err != nil {
		return err
	}
	r.Dir, r.LogDir = dir, filepath.Join(s.work, "log")
	r.UID, r.GID, r.Home, r.Path = s.o.User.UID, s.o.User.GID, s.o.User.Home, s.o.User.Path
	r.Pods = nil
	for _, p := range s.mesh.Pods() {
		out := Pod{
			Namespace: p.Spec.Namespace, Name: p.Spec.Name, Workload: p.Spec.Workload, Task: p.Net.Task(), IP: p.Spec.IP.String(), Proxied: p.Spec.Proxied(),
		}
		for _, prog := range p.Spec.Programs {
			out.Containers = append(out.Containers, prog.Container)
		}
		r.Pods = append(r.Pods, out)
	}
	text, err := json.Marshal(r.Mesh)
	if err != nil {
		return fmt.Errorf("record the mesh: %w", err)
	}
	if _, err := r.file.WriteAt(text, 0); err != nil {
		return fmt.Errorf("record the mesh: %w", err)
	}
	if err := r.file.Truncate(int64(len(text))); err != nil {
		return fmt.Errorf("record the mesh: %w", err)
	}
	return nil
}

func (r *record) remove() error { return errors.Join(os.Remove(r.file.Name()), r.file.Close()) }

// Running lists the meshes that run. Records of processes that were killed are left out.
func Running(dir string) ([]Mesh, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("find the meshes that run: %w: they are root's: run it with sudo", err)
	}
	if err != nil {
		return nil, fmt.Errorf("find the meshes that run: %w", err)
	}
	var out []Mesh
	for _, e := range entries {
		m, ok, err := readRecord(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("find the meshes that run: %w", err)
		}
		if ok {
			out = append(out, m)
		}
	}
	return out, nil
}

// readRecord reads a record, if the process that has written it runs: then it holds the lock.
func readRecord(path string) (Mesh, bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Mesh{}, false, nil
	}
	if err != nil {
		return Mesh{}, false, err
	}
	defer func() { _ = f.Close() }()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err == nil {
		return Mesh{}, false, nil
	}
	var m Mesh
	if err := json.NewDecoder(f).Decode(&m); err != nil {
		return m, false, nil // it is being written for the first time
	}
	return m, true, nil
}

// PrintLogs prints logs, one after the other, and with follow what is appended to them until ctx ends.
func PrintLogs(ctx context.Context, out io.Writer, paths []string, follow bool) error {
	at := map[string]int64{}
	for {
		for _, path := range paths {
			f, err := os.Open(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue // nothing has been printed yet
			}
			if err != nil {
				return fmt.Errorf("print a log: %w", err)
			}
			text, err := io.ReadAll(io.NewSectionReader(f, at[path], math.MaxInt64-at[path]))
			at[path] += int64(len(text))
			_, writeErr := io.WriteString(out, printable.EscapeOutput(string(text)))
			if err := errors.Join(err, writeErr, f.Close()); err != nil {
				return fmt.Errorf("print a log: %w", err)
			}
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(look):
		}
	}
}
