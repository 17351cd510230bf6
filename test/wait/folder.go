package wait

import (
	"os"
	"testing"
)

// Folder is an empty folder that is removed at the end of the test. It is in memory where the system has a
// file system for that, since programs that sync what they store would wait for the disk of a busy machine.
func Folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "pilothouse-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the test's folder: %v", err)
		}
	})
	return dir
}
