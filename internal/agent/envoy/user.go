package envoy

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// User is the user that Envoy runs as where that is not the agent's own. A nil User stands
// for the agent's own; its methods then do what needs no other user.
type User struct {
	UID, GID uint32
	// BindPorts gives Envoy CAP_NET_BIND_SERVICE, which the agent must have.
	BindPorts bool
}

// attributes are those of a process that runs as the user.
func (u *User) attributes(to *syscall.SysProcAttr) {
	if u == nil {
		return
	}
	to.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID}
	if u.BindPorts {
		to.AmbientCaps = []uintptr{unix.CAP_NET_BIND_SERVICE}
	}
}

// own makes the user the owner of an open file.
func (u *User) own(f *os.File) error {
	if u == nil {
		return nil
	}
	return f.Chown(int(u.UID), int(u.GID))
}

// Folder creates the directory path and its missing parents with mode 0750,
// and lets the user's group traverse the created ones and path itself. An existing parent
// that the user cannot traverse is an error, because the agent does not change the modes of other programs' directories.
func (u *User) Folder(path string) error {
	if u == nil {
		return os.MkdirAll(path, 0o750)
	}
	// Envoy resolves its paths from the root (realpath), relative ones too.
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	at := "/"
	names := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	for i := -1; i < len(names); i++ {
		if i >= 0 {
			at = filepath.Join(at, names[i])
		}
		err := os.Mkdir(at, 0o750)
		if err != nil && !os.IsExist(err) {
			return err
		}
		if made := err == nil; !made && u.passes(at) {
			continue
		} else if !made && i < len(names)-1 {
			return fmt.Errorf("let Envoy's user %d reach %s: it cannot pass %s: give others the right to search that directory (chmod o+x), or choose another one", u.UID, path, at)
		}
		if err := os.Chown(at, -1, int(u.GID)); err != nil {
			return err
		}
		if err := os.Chmod(at, 0o750); err != nil { // whatever the umask is
			return err
		}
	}
	return nil
}

// passes says whether the user may search a directory.
func (u *User) passes(dir string) bool {
	st, err := os.Stat(dir)
	if err != nil {
		return false
	}
	owner, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return false
	case owner.Uid == u.UID:
		return st.Mode()&0o100 != 0
	case owner.Gid == u.GID:
		return st.Mode()&0o010 != 0
	}
	return st.Mode()&0o001 != 0
}

// LogFile lets the user write to a log file, which is created if missing. A path that is not a
// regular file is not changed.
func (u *User) LogFile(path string) error {
	if u == nil {
		return nil
	}
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, fs.FileMode(0o644))
	if err != nil {
		return fmt.Errorf("let Envoy's user %d write a log: %w", u.UID, err)
	}
	defer f.Close()
	return u.own(f)
}

// Capabilities are those that this process may use (permitted), a bit for each as in
// capabilities(7); none where the kernel does not tell.
func Capabilities() uint64 {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0
	}
	return uint64(data[0].Permitted) | uint64(data[1].Permitted)<<32
}
