package claim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxPath is the longest path of a Unix socket, in bytes.
	maxPath = 107
	// dialTimeout limits the check whether a process listens on a Unix socket.
	dialTimeout = time.Second
)

// ErrNotSocket is returned for a path that has a file of another kind.
var ErrNotSocket = errors.New("file exists and is not a socket")

// InUseError is returned for a Unix socket that another process serves.
type InUseError struct {
	Path string
	// UID is the user of that process, in the user namespace of this one.
	UID uint32
}

// Error returns a message with the path and the user.
func (e *InUseError) Error() string {
	return fmt.Sprintf("listen on %s: in use by another process (of user %d)", e.Path, e.UID)
}

// SocketOptions say who may connect to a Unix socket.
type SocketOptions struct {
	// Mode is the mode of the socket; a client needs the right to write.
	Mode fs.FileMode
	// UID and GID are the owner; -1 leaves the process's own.
	UID, GID int
}

// AnyUser lets every user connect who can traverse the folder. [agent P15]
var AnyUser = SocketOptions{Mode: 0o666, UID: -1, GID: -1}

// Socket listens on a Unix socket at path, and creates its folder with mode 0750 if it does not
// exist. It replaces a socket that no process listens on. If a process listens on it, it returns an *InUseError,
// and if the file is not a socket, an error. Concurrent calls for one path may replace each
// other's socket: claim its Folder first. Closing the listener removes the socket, unless another one has
// taken its place meanwhile. [agent P15]
func Socket(path string, o SocketOptions) (net.Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("listen on %s: path of %d bytes, want at most %d for a Unix socket", path, len(path), maxPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("create socket folder: %w", err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // socket.Close does it
	s := &socket{UnixListener: l, path: path}
	if s.file, err = setAccess(path, o); err != nil {
		return nil, errors.Join(fmt.Errorf("set who may connect to %s: %w", path, err), s.Close())
	}
	return s, nil
}

// socket is a listener that removes its own file only.
type socket struct {
	*net.UnixListener
	path string
	file identity
}

// identity is a file, whatever its path is.
type identity struct{ dev, inode uint64 }

// Close ends the listener and removes the socket.
func (s *socket) Close() error {
	var st unix.Stat_t
	if unix.Lstat(s.path, &st) == nil && (identity{st.Dev, st.Ino}) == s.file {
		_ = os.Remove(s.path) // another process may have removed it
	}
	return s.UnixListener.Close()
}

// Lost returns why the path of a listener that Socket has returned does not lead to it any more; nil if it does. If
// another process serves the path it is an *InUseError.
func Lost(l net.Listener) error {
	s, ok := l.(*socket)
	if !ok {
		return nil
	}
	var st unix.Stat_t
	if unix.Lstat(s.path, &st) == nil && (identity{st.Dev, st.Ino}) == s.file {
		return nil
	}
	uid, err := Server(s.path)
	if err != nil {
		return err
	}
	return &InUseError{Path: s.path, UID: uid}
}

// setAccess sets mode and owner of the socket at path. It does not follow a symbolic link, which other users
// can put there if the folder is writable to them.
func setAccess(path string, o SocketOptions) (identity, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return identity{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return identity{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return identity{}, errors.New("it was replaced by a file that is not a socket")
	}
	id := identity{st.Dev, st.Ino}
	if o.UID >= 0 || o.GID >= 0 {
		if err := unix.Fchownat(fd, "", o.UID, o.GID, unix.AT_EMPTY_PATH); err != nil {
			return id, fmt.Errorf("owner %d:%d: %w", o.UID, o.GID, err)
		}
	}
	// A descriptor that was opened with O_PATH has no fchmod.
	if err := os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), o.Mode.Perm()); err != nil {
		return id, fmt.Errorf("mode %04o: %w", o.Mode.Perm(), errors.Unwrap(err))
	}
	return id, nil
}

// removeStale removes a socket that no process listens on.
func removeStale(path string) error {
	uid, err := Server(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ECONNREFUSED):
	case err != nil:
		return fmt.Errorf("listen on %s: %w", path, err)
	default:
		return &InUseError{Path: path, UID: uid}
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

// Server returns the user whose process listens on the Unix socket at path, as the kernel recorded it. The
// error wraps fs.ErrNotExist if there is no file, and ECONNREFUSED if no process listens. Nothing is
// sent to the process.
func Server(path string) (uid uint32, err error) {
	st, err := os.Lstat(path)
	switch {
	case err != nil:
		return 0, err
	case st.Mode()&fs.ModeSocket == 0:
		return 0, ErrNotSocket
	}
	c, err := net.DialTimeout("unix", path, dialTimeout)
	if err != nil {
		return 0, fmt.Errorf("may be in use by another process: %w", err)
	}
	defer c.Close()
	return Peer(c.(*net.UnixConn))
}

// Peer returns the user at the other end of a connection, as it was when the connection or, for a client, the
// listener was made. A user without an id in the user namespace of this process has the kernel's overflow id, usually 65534.
func Peer(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, fmt.Errorf("read the credentials of the peer: %w", failed)
	}
	return cred.Uid, nil
}

// PortError adds to an error of listening on a TCP or UDP address what to do, where that is known.
func PortError(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: another program has the port: end it, or choose another port", err)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: want root, the capability CAP_NET_BIND_SERVICE, or a port of 1024 or more", err)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: this machine has no such address", err)
	}
	return err
}

// Port listens on a TCP address. While another process listens on it, Port retries until timeout
// has passed or ctx ends.
func Port(ctx context.Context, address string, timeout time.Duration) (net.Listener, error) {
	deadline := time.Now().Add(timeout)
	tick := time.NewTicker(retryInterval)
	defer tick.Stop()
	for {
		l, err := net.Listen("tcp", address)
		if err == nil || !errors.Is(err, unix.EADDRINUSE) || !time.Now().Before(deadline) {
			return l, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
