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

// Socket listens on a Unix socket at path with mode 0666, and creates its folder with mode 0750 if
// it does not exist. It replaces a socket that no process listens on. If a process listens on it,
// or the file is not a socket, it returns an error. Concurrent calls for one path may replace each
// other's socket: claim its Folder first. [agent P15]
func Socket(path string) (net.Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("listen on %s: path of %d bytes, want at most %d for a Unix socket", path, len(path), maxPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("create socket folder: %w", err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("make socket accessible: %w", err)
	}
	return l, nil
}

// removeStale removes a socket that no process listens on.
func removeStale(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("stat socket: %w", err)
	case st.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("listen on %s: file exists and is not a socket", path)
	}
	c, err := net.DialTimeout("unix", path, dialTimeout)
	switch {
	case err == nil:
		_ = c.Close() // nothing was sent
		return fmt.Errorf("listen on %s: in use by another process", path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("listen on %s: may be in use by another process: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
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
