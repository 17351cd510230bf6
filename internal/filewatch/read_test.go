package filewatch_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilothouse/pilothouse/internal/filewatch"
)

// What is not a file is refused at once, with or without links on the way: a pipe without a writer would be
// waited for, and a device has no end.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must(t, syscall.Mkfifo(at("pipe"), 0o600))
	must(t, os.Mkdir(at("folder"), 0o700))
	l, err := net.Listen("unix", at("socket"))
	must(t, err)
	defer l.Close()
	must(t, os.Symlink("/dev/zero", at("device")))
	must(t, os.Symlink("pipe", at("link")))
	write(t, at("long"), strings.Repeat("x", 11))
	write(t, at("file"), strings.Repeat("x", 10))
	must(t, os.Symlink("file", at("mounted")))
	must(t, os.Symlink("nothing", at("dangling")))
	for name, want := range map[string]string{
		"pipe": "a named pipe: want a regular file", "link": "a named pipe: want a regular file", "folder": "a directory: want a regular file",
		"socket": "a socket: want a regular file", "device": "a device: want a regular file", "long": "more than 10 bytes",
		"file": "", "mounted": "", "dangling": "no such file", "none": "no such file",
	} {
		data, err := filewatch.ReadFile(at(name), 10)
		followed, _, errFollowed := filewatch.Read(at(name), 10)
		if want == "" {
			if err != nil || errFollowed != nil || len(data) != 10 || len(followed) != 10 {
				t.Errorf("%s: %d bytes, %v; %d bytes, %v; want 10", name, len(data), err, len(followed), errFollowed)
			}
			continue
		}
		for _, err := range []error{err, errFollowed} {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), at(name)) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
		if missing := want == "no such file"; errors.Is(err, fs.ErrNotExist) != missing {
			t.Errorf("%s: %v: wraps fs.ErrNotExist: %v, want %v", name, err, !missing, missing)
		}
	}
}
