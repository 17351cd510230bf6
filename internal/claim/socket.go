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
	// maxPath is what a Unix socket's address has room for, in bytes.
	maxPath = 107
	// knock bounds the look whether anybody listens on a Unix socket.
	knock = time.Second
)

// Socket listens on a Unix socket at path, open to all who get through its folder (mode 0666), which is made where it is
// missing (mode 0750). A socket that nobody listens on any more is replaced; one that somebody does is left alone, as is
// whatever is no socket. Processes that might do this at once for one path claim its folder before.
func Socket(path string) (net.Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("listen on %s: the path has %d bytes, a Unix socket's at most %d", path, len(path), maxPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make socket folder: %w", err)
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
		return nil, fmt.Errorf("open socket to others: %w", err)
	}
	return l, nil
}

// removeStale removes a socket that nobody listens on.
func removeStale(path string) error {
	st, found, err := there(path)
	switch {
	case err != nil:
		return fmt.Errorf("look at socket: %w", err)
	case !found:
		return nil
	case st.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("listen on %s: something that is no socket is there", path)
	}
	c, err := net.DialTimeout("unix", path, knock)
	switch {
	case err == nil:
		_ = c.Close() // it was only to see whether somebody is there
		return fmt.Errorf("listen on %s: another process does", path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("listen on %s: another process may: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket: %w", err)
	}
	return nil
}

// Port listens on a TCP address, and where another process does, tries again for at most within.
func Port(ctx context.Context, address string, within time.Duration) (net.Listener, error) {
	until := time.Now().Add(within)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		l, err := net.Listen("tcp", address)
		if err == nil || !errors.Is(err, unix.EADDRINUSE) || !time.Now().Before(until) {
			return l, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
