// Package machine writes, reads and removes what package vm decides to be on a virtual machine, and runs its service.
//
// All paths are below the machine's root, and links are not followed out of the folders that are written. A
// [Change] is undone whole if one of its steps fails. Methods are called by one goroutine at a time; two
// processes that change the same machine exclude each other by [Machine.Lock]. [agent V1, V2, V5]
package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/agent/vm"
	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// maxFile bounds the files that are read, in bytes.
const maxFile = 4 << 20

// Machine is a machine whose files are below Root.
type Machine struct {
	// Root is / or, for tests and images, another folder; absolute.
	Root string
	// UID and GID are those of the proxy.
	UID, GID uint32
}

// Path is the path of a file below the root.
func (m *Machine) Path(p string) string { return filepath.Join(m.Root, p) }

// Read reads a file; one that does not exist is nil.
func (m *Machine) Read(p string) ([]byte, error) {
	text, err := filewatch.ReadFile(m.Path(p), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// Exists reports whether there is something at a path.
func (m *Machine) Exists(p string) bool {
	_, err := os.Lstat(m.Path(p))
	return err == nil
}

// Lock excludes other processes that change the machine until the file is closed.
func (m *Machine) Lock() (io.Closer, error) {
	path := m.Path("var/lib/istio/.lock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("lock the machine: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the machine: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the machine: another pilot-agent join or leave runs: %w", err)
	}
	return f, nil
}

// Dirs makes folders that the proxy's user owns. Those above them are root's.
func (m *Machine) Dirs(paths ...string) error {
	for _, p := range paths {
		if err := os.MkdirAll(m.Path(p), 0o755); err != nil {
			return err
		}
		if err := os.Lchown(m.Path(p), int(m.UID), int(m.GID)); err != nil {
			return err
		}
	}
	return nil
}

// Change is what was written, for Undo.
type Change struct {
	m *Machine
	// before has what was at the paths; nil text for nothing.
	before []before
}

type before struct {
	path string
	text []byte
	mode fs.FileMode
	// uid and gid are the owner's; link is the target of a symbolic link.
	uid, gid int
	link     string
}

// Change begins a change.
func (m *Machine) Change() *Change { return &Change{m: m} }

// Write writes a file, which is whole or not there at any time.
func (c *Change) Write(f vm.File) error {
	path := c.m.Path(f.Path)
	b, err := c.m.state(f.Path)
	if err != nil {
		return fmt.Errorf("read %s, which is to be replaced: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	uid, gid := os.Geteuid(), os.Getegid()
	if f.Proxy {
		uid, gid = int(c.m.UID), int(c.m.GID)
	}
	c.before = append(c.before, b)
	return replace(path, f.Text, f.Mode, uid, gid)
}

// state reads what is at a path.
func (m *Machine) state(p string) (before, error) {
	b := before{path: p}
	fi, err := os.Lstat(m.Path(p))
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return b, err
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		b.uid, b.gid = int(st.Uid), int(st.Gid)
	}
	b.mode = fi.Mode().Perm()
	if fi.Mode()&fs.ModeSymlink != 0 {
		b.link, err = os.Readlink(m.Path(p))
		return b, err
	}
	if !fi.Mode().IsRegular() {
		return b, fmt.Errorf("it is no file: %s", fi.Mode())
	}
	if b.text, err = filewatch.ReadFile(m.Path(p), maxFile); b.text == nil {
		b.text = []byte{}
	}
	return b, err
}

func replace(path string, text []byte, mode fs.FileMode, uid, gid int) (err error) {
	temp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name()) // the first error is returned
		}
	}()
	_, err = temp.Write(text)
	if err = errors.Join(err, temp.Chown(uid, gid), temp.Chmod(mode), temp.Sync(), temp.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(temp.Name(), path)
}

// Undo restores what was there before, last first. The error names what could not be restored.
func (c *Change) Undo() error {
	var errs []error
	for _, b := range slices.Backward(c.before) {
		path := c.m.Path(b.path)
		switch {
		case b.link != "":
			err := os.Remove(path)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				err = os.Symlink(b.link, path)
			}
			errs = append(errs, err)
		case b.text != nil:
			errs = append(errs, replace(path, b.text, b.mode, b.uid, b.gid))
		default:
			errs = append(errs, c.m.Remove(b.path))
		}
	}
	c.before = nil
	return errors.Join(errs...)
}

// Remove removes a file; one that does not exist is no error.
func (m *Machine) Remove(p string) error {
	if err := os.Remove(m.Path(p)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Empty removes what is in a folder and has one of the names, or begins with two dots; all, without names. Then it removes the
// folder, if it is empty. A link is not followed.
func (m *Machine) Empty(dir string, names ...string) error {
	path := m.Path(dir)
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !fi.IsDir() {
		err = fmt.Errorf("%s is no folder", path)
	}
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(path)
	errs := []error{err}
	for _, e := range entries {
		if len(names) == 0 || slices.Contains(names, e.Name()) || strings.HasPrefix(e.Name(), "..") {
			errs = append(errs, os.RemoveAll(filepath.Join(path, e.Name())))
		}
	}
	_ = os.Remove(path) // it stays if something is in it
	return errors.Join(errs...)
}

// HasSystemd reports whether systemd runs the services of this machine.
func (m *Machine) HasSystemd() bool {
	fi, err := os.Stat("/run/systemd/system")
	return m.Root == "/" && err == nil && fi.IsDir()
}

// Systemctl runs systemctl; the error has its output.
func (m *Machine) Systemctl(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("systemctl %s: %w: %.500s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// process identifies a process across the reuse of its id: its id, when it started in ticks, and the boot.
func process(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The name of the program may have spaces and parentheses.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return "", fs.ErrNotExist
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d %s %s", pid, fields[19], bytes.TrimSpace(boot)), nil
}

// NotePID writes that this process is the agent of the machine.
func (m *Machine) NotePID() error {
	text, err := process(os.Getpid())
	if err != nil {
		return err
	}
	path := m.Path(vm.PIDFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return replace(path, []byte(text+"\n"), 0o644, os.Geteuid(), os.Getegid())
}

// PID returns the process that NotePID wrote, 0 if it does not run any more.
func (m *Machine) PID() int {
	text, err := m.Read(vm.PIDFile)
	if err != nil || len(text) > 200 {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	pid, err := strconv.Atoi(first)
	if err != nil || pid <= 1 {
		return 0
	}
	if now, err := process(pid); err != nil || now != strings.TrimSpace(string(text)) {
		return 0
	}
	return pid
}

// Stop asks the process to end, and kills it if it has not after the grace. Nothing happens if it does not run.
func (m *Machine) Stop(ctx context.Context, grace time.Duration) error {
	pid := m.PID()
	if pid == 0 {
		return nil
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	killed := false
	deadline := time.After(grace)
	for m.PID() == pid {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			if killed {
				return fmt.Errorf("process %d does not end", pid)
			}
			killed = true
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("end process %d: %w", pid, err)
			}
			deadline = time.After(grace)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// Detach starts a program that goes on when this one ends, with its output in LogFile. It returns a channel with the error with
// which it ended while this program lives.
func (m *Machine) Detach(program string, args ...string) (<-chan error, error) {
	path := m.Path(vm.LogFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o640)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	c := exec.Command(program, args...)
	c.Dir, c.Stdout, c.Stderr = m.Root, log, log
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() {
		err := c.Wait()
		if err == nil {
			err = errors.New("it has ended")
		}
		ended <- err
	}()
	return ended, nil
}

// LogEnd is the end of LogFile.
func (m *Machine) LogEnd(lines int) string {
	f, err := filewatch.OpenRegular(m.Path(vm.LogFile))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, end-16<<10), io.SeekStart)
	}
	text, _ := io.ReadAll(io.LimitReader(f, 16<<10))
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Become changes this process's user and group for good.
func Become(uid, gid uint32) error {
	return errors.Join(syscall.Setgroups([]int{int(gid)}), syscall.Setgid(int(gid)), syscall.Setuid(int(uid)))
}
