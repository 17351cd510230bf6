package filewatch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Sig distinguishes the states of a file: its identity, size and times. The zero Sig
// is that of a file that is not there.
type Sig struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64 // nanoseconds since 1970
}

// Unknown is the signature of a file that cannot be examined, whether it exists or not.
var Unknown = Sig{size: -1}

// Identity is the file's own, whatever its state.
func (s Sig) Identity() [2]uint64 { return [2]uint64{s.dev, s.ino} }

// Stat returns the signature of the file that the path resolves to.
func Stat(path string) (Sig, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return Sig{}, err
	}
	return SigOf(fi), nil
}

// ErrMoving is returned by Read where the file changed while it was read.
var ErrMoving = errors.New("the file is being written")

// Read returns a file's whole contents with the signature that they belong to, or
// ErrMoving. With any other error the signature is that of the file as far as it is
// known, so that the same failure is not met again before something changes. Only
// regular files of at most maxBytes bytes are read.
func Read(path string, maxBytes int64) ([]byte, Sig, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, Sig{}, err
	}
	before := SigOf(fi)
	f, err := OpenRegular(path)
	if err != nil {
		return nil, before, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, before, err
	}
	after, err := f.Stat()
	if err != nil {
		return nil, before, err
	}
	if SigOf(after) != before {
		return nil, before, ErrMoving
	}
	if int64(len(data)) > maxBytes {
		return nil, before, tooLong(path, maxBytes)
	}
	return data, before, nil
}

func tooLong(path string, maxBytes int64) error {
	return fmt.Errorf("read %s: more than %d bytes", path, maxBytes)
}

// OpenRegular opens a file for reading. It returns an error at once for what is not a regular file: a pipe
// would be waited for, and a device may have no end. Symbolic links are followed.
func OpenRegular(path string) (*os.File, error) {
	// Opening a named pipe waits for a writer, unless O_NONBLOCK is set; regular files ignore that.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		if fi, statErr := os.Stat(path); statErr == nil && !fi.Mode().IsRegular() { // a socket cannot be opened
			err = notRegular(path, fi.Mode())
		}
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = notRegular(path, fi.Mode())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func notRegular(path string, m fs.FileMode) error {
	what := "a device"
	switch {
	case m.IsDir():
		what = "a directory"
	case m&fs.ModeNamedPipe != 0:
		what = "a named pipe"
	case m&fs.ModeSocket != 0:
		what = "a socket"
	}
	return fmt.Errorf("read %s: %s: want a regular file", path, what)
}

// ReadFile returns the contents of a regular file of at most maxBytes bytes, whether it is being written or
// not. The error wraps fs.ErrNotExist if there is no file.
func ReadFile(path string, maxBytes int64) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(data)) > maxBytes:
		return nil, tooLong(path, maxBytes)
	}
	return data, nil
}

// MaybeTruncated says whether text may be only the first part of what replaces old: it has
// fewer complete lines, or is shorter and ends within a line.
func MaybeTruncated(old, text []byte) bool {
	newline := []byte("\n")
	return bytes.Count(text, newline) < bytes.Count(old, newline) || len(text) < len(old) && !bytes.HasSuffix(text, newline)
}

// maxLinks is how many symbolic links one path may pass; more are a loop.
const maxLinks = 40

// Resolve follows every symbolic link on the way to path. real is where it ends (as far
// as it exists); dirs are the directories that hold the links, or the first missing
// component: a change in one of them can make the path lead elsewhere.
func Resolve(path string) (real string, dirs []string) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path, nil
	}
	rest := components(abs)
	real = "/"
	for links := 0; len(rest) > 0; {
		next := filepath.Join(real, rest[0])
		fi, err := os.Lstat(next)
		if err != nil {
			return filepath.Join(append([]string{real}, rest...)...), addDir(dirs, real)
		}
		rest = rest[1:]
		if fi.Mode()&os.ModeSymlink == 0 {
			real = next
			continue
		}
		dirs = addDir(dirs, real)
		target, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return filepath.Join(append([]string{next}, rest...)...), dirs
		}
		if filepath.IsAbs(target) {
			real = "/"
		}
		rest = append(components(target), rest...)
	}
	return real, dirs
}

func components(path string) []string {
	return slices.DeleteFunc(strings.Split(filepath.Clean(path), "/"), func(s string) bool { return s == "" || s == "." })
}

func addDir(dirs []string, dir string) []string {
	if slices.Contains(dirs, dir) {
		return dirs
	}
	return append(dirs, dir)
}

func parent(path string) string { return filepath.Dir(path) }
