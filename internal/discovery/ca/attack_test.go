package ca

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

// What somebody else may have written, or still can, is not used: not as the key, and not as the folder
// that it is in.
func TestStateFolderOfOthersIsRefused(t *testing.T) {
	const stranger = 12345
	chmod := func(mode os.FileMode, name ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			check(t, os.Chmod(filepath.Join(append([]string{dir}, name...)...), mode))
		}
	}
	chown := func(name ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			check(t, os.Chown(filepath.Join(append([]string{dir}, name...)...), stranger, -1))
		}
	}
	link := func(name ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(append([]string{dir}, name...)...)
			away := filepath.Join(wait.Folder(t), "away")
			check(t, os.Rename(path, away))
			check(t, os.Symlink(away, path))
		}
	}
	fifo := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, rootFolder, name)
			check(t, os.Remove(path))
			check(t, syscall.Mkfifo(path, 0o600))
		}
	}
	type row struct {
		name, why string
		change    func(t *testing.T, dir string)
	}
	var rows []row
	if os.Geteuid() == 0 { // only root can give files to others
		rows = []row{
			{"a key of another user", "owned by uid 12345, want", chown(rootFolder, rootKey)},
			{"a certificate of another user", "owned by uid 12345, want", chown(rootFolder, rootCert)},
			{"a root folder of another user", "owned by uid 12345, want", chown(rootFolder)},
			{"a state folder of another user", "owned by uid 12345, want", chown()},
		}
	}
	for _, tt := range append(rows, []row{
		{"a key that others can read", "mode 0640 gives others access, want 0600", chmod(0o640, rootFolder, rootKey)},
		{"a certificate that others can write", "mode 0666 lets others write it, want 0600", chmod(0o666, rootFolder, rootCert)},
		{"a root folder that anyone can write", "mode 0777 lets others write it, want 0700", chmod(0o777, rootFolder)},
		{"a root folder that its group can write", "mode 0770 lets others write it, want 0700", chmod(0o770, rootFolder)},
		{"a state folder that anyone can write", "mode 0777 lets others write it, want 0700", chmod(0o777)},
		{"a state folder like /tmp", "mode 0777 lets others write it, want 0700", chmod(0o777 | os.ModeSticky)},
		{"a key that is a link", "symbolic link", link(rootFolder, rootKey)},
		{"a certificate that is a link", "symbolic link", link(rootFolder, rootCert)},
		{"a root folder that is a link", "symbolic link", link(rootFolder)},
		{"a key that is a named pipe", "not a regular file", fifo(rootKey)},
		{"a certificate that is a named pipe", "not a regular file", fifo(rootCert)},
	}...) {
		t.Run(tt.name, func(t *testing.T) {
			dir := wait.Folder(t)
			open(t, dir)
			tt.change(t, dir)
			done := make(chan error, 1)
			go func() {
				_, err := OpenRoot(dir, "cluster.local", 0, "")
				done <- err
			}()
			select {
			case err := <-done:
				if err == nil || !strings.Contains(err.Error(), tt.why) {
					t.Errorf("%v, want %q", err, tt.why)
				}
			case <-time.After(wait.Bound):
				t.Fatal("it hangs")
			}
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The state folder itself may be reached by a link: who starts the program has chosen the path.
func TestStateFolderMayBeALink(t *testing.T) {
	real := wait.Folder(t)
	link := filepath.Join(wait.Folder(t), "state")
	check(t, os.Symlink(real, link))
	first := open(t, link).State().Issuer.Root()
	if !open(t, real).State().Issuer.Root().Equal(first) {
		t.Error("another root")
	}
}

func TestRootIsCreatedInAnEmptyFolder(t *testing.T) {
	dir := wait.Folder(t)
	check(t, os.Mkdir(filepath.Join(dir, rootFolder), 0o700))
	first := open(t, dir).State().Issuer.Root()
	if !open(t, dir).State().Issuer.Root().Equal(first) {
		t.Error("another root after a restart")
	}
}

// A start that was killed before it could rename its folder leaves it behind; the next start removes it,
// but neither that of a start that runs nor what an administrator has put there.
func TestFoldersOfKilledStartsAreRemoved(t *testing.T) {
	dir := wait.Folder(t)
	for _, name := range []string{".ca-123", ".ca-backup", ".ca-456"} {
		check(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		check(t, os.WriteFile(filepath.Join(dir, name, rootKey), []byte("x"), 0o600))
	}
	live, err := os.Open(filepath.Join(dir, ".ca-456"))
	check(t, err)
	defer live.Close()
	check(t, syscall.Flock(int(live.Fd()), syscall.LOCK_EX))
	for range 2 { // when the root is created, and when it is loaded
		open(t, dir)
		if _, err := os.Stat(filepath.Join(dir, ".ca-123")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the folder of a killed start: %v", err)
		}
		for _, name := range []string{".ca-backup", ".ca-456"} {
			if _, err := os.Stat(filepath.Join(dir, name, rootKey)); err != nil {
				t.Error(err)
			}
		}
		check(t, os.MkdirAll(filepath.Join(dir, ".ca-123"), 0o700))
	}
}
