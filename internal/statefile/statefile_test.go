package statefile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestCreateOnceConcurrently(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "state")
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			text := fmt.Appendf(nil, "%d", i)
			if err := CreateOnce(parent, "ca", map[string][]byte{"cert": text, "key": text}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	cert, err := ReadPrivate(filepath.Join(parent, "ca", "cert"))
	key, err2 := ReadPrivate(filepath.Join(parent, "ca", "key"))
	if err != nil || err2 != nil || string(cert) != string(key) {
		t.Errorf("cert %q (%v) and key %q (%v) are from different writers", cert, err, key, err2)
	}
	left, _ := os.ReadDir(parent)
	if len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	for path, want := range map[string]os.FileMode{parent: 0o700, parent + "/ca": 0o700, parent + "/ca/key": 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: mode %v, want %v (%v)", path, st.Mode().Perm(), want, err)
		}
	}
}

func TestReadPrivateChecksTheMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("k"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadPrivate(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
	if _, err := ReadPrivate(path + "x"); !os.IsNotExist(err) && (err == nil || !strings.Contains(err.Error(), "no such file")) {
		t.Errorf("a missing file: %v", err)
	}
}
