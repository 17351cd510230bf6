package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is a file or directory of this machine that a container sees.
type mount struct {
	from, to string
	readOnly bool
}

// rootfs describes the file system of a container. Its methods run on the container's thread.
type rootfs struct {
	// at is an empty directory, on which the root is mounted in the container's mount namespace only.
	at string
	// files are those of the image, below /usr/local; mounts are what the Pod has.
	files    map[string]string
	mounts   []mount
	readOnly bool
}

// copied are the files of the machine's /etc that programs need to run at all.
var copied = []string{"passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "localtime", "protocols", "services", "os-release"}

// bound are the directories of the machine's /etc that containers share.
var bound = []string{"ssl", "pki", "ca-certificates", "alternatives", "ld.so.conf.d"}

// enter makes the root directory and moves the thread into it.
func (r rootfs) enter() error {
	if err := unix.Mount("root", r.at, "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return fmt.Errorf("mount the root directory: %w", err)
	}
	if err := errors.Join(r.machine(), r.etc()); err != nil {
		return err
	}
	for to, from := range r.files {
		if err := r.bind(mount{from: from, to: to, readOnly: true}); err != nil {
			return fmt.Errorf("file %s of the image: %w", to, err)
		}
	}
	mounts := slices.Clone(r.mounts)
	// A mount inside another comes after it.
	slices.SortStableFunc(mounts, func(a, b mount) int {
		return strings.Count(filepath.Clean(a.to), "/") - strings.Count(filepath.Clean(b.to), "/")
	})
	for _, m := range mounts {
		// Read-only later: one that is inside may need its mount point made.
		if err := r.bind(mount{from: m.from, to: m.to}); err != nil {
			return fmt.Errorf("mount %s: %w", m.to, err)
		}
	}
	for _, m := range mounts {
		if m.readOnly {
			if err := readOnly(filepath.Join(r.at, m.to)); err != nil {
				return err
			}
		}
	}
	return r.pivot()
}

// machine makes the system's directories.
func (r rootfs) machine() error {
	for _, dir := range []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		info, err := os.Lstat("/" + dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			target, err := os.Readlink("/" + dir)
			if err == nil {
				err = os.Symlink(target, filepath.Join(r.at, dir))
			}
			if err != nil {
				return err
			}
			continue
		}
		if err := r.bind(mount{from: "/" + dir, to: "/" + dir, readOnly: true}); err != nil {
			return err
		}
	}
	if err := unix.Mount("local", filepath.Join(r.at, "usr/local"), "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return fmt.Errorf("mount /usr/local: %w", err)
	}
	for _, dir := range []string{"/proc", "/sys"} {
		if err := r.bind(mount{from: dir, to: dir}); err != nil {
			return err
		}
	}
	if err := r.devices(); err != nil {
		return err
	}
	for dir, mode := range map[string]fs.FileMode{"tmp": 0o777 | fs.ModeSticky, "run": 0o755, "var": 0o755, "var/tmp": 0o777 | fs.ModeSticky, "var/run": 0o755, "var/lib": 0o755, "var/log": 0o755, "root": 0o700, "home": 0o755, "etc": 0o755} {
		path := filepath.Join(r.at, dir)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, mode)); err != nil {
			return err
		}
	}
	return nil
}

// devices makes /dev with what every container has, and the /dev/shm of the Pod.
func (r rootfs) devices() error {
	dev := filepath.Join(r.at, "dev")
	if err := os.Mkdir(dev, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("dev", dev, "tmpfs", unix.MS_NOSUID, "mode=0755"); err != nil {
		return fmt.Errorf("mount /dev: %w", err)
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "shm"} {
		if err := r.bind(mount{from: "/dev/" + name, to: "/dev/" + name}); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	return nil
}

// etc makes /etc.
func (r rootfs) etc() error {
	for _, name := range copied {
		text, err := os.ReadFile("/etc/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(r.at, "etc", name), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range bound {
		if _, err := os.Stat("/etc/" + name); err != nil {
			continue
		}
		if err := r.bind(mount{from: "/etc/" + name, to: "/etc/" + name, readOnly: true}); err != nil {
			return err
		}
	}
	return nil
}

// bind mounts one file or directory; the mount point is made.
func (r rootfs) bind(m mount) error {
	info, err := os.Stat(m.from)
	if err != nil {
		return err
	}
	to := filepath.Join(r.at, m.to)
	if info.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
		var f *os.File
		if f, err = os.OpenFile(to, os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("make the mount point: %w", err)
	}
	if err := unix.Mount(m.from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", m.from, err)
	}
	if m.readOnly {
		return readOnly(to)
	}
	return nil
}

// readOnly makes a bind mount read-only; flags that the machine's mount has must stay.
func readOnly(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return err
	}
	kept := uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_RELATIME)
	if err := unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|kept, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", path, err)
	}
	return nil
}

// pivot makes at the root directory and drops the machine's.
func (r rootfs) pivot() error {
	old := filepath.Join(r.at, ".old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(r.at, old); err != nil {
		return fmt.Errorf("change the root directory: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/.old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's root directory: %w", err)
	}
	if err := os.Remove("/.old"); err != nil {
		return err
	}
	if r.readOnly {
		return readOnly("/")
	}
	return nil
}
