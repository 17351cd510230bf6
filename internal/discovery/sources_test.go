package discovery

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the control plane keeps is not configuration.
func TestStateIsNotKeptAmongConfiguration(t *testing.T) {
	top := t.TempDir()
	if err := os.Chmod(top, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(top, link); err != nil {
		t.Fatal(err)
	}
	_, err := New(t.Context(), Options{ConfigDir: link, StateDir: top, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "it is the configuration directory: choose another with --stateDir") {
		t.Errorf("got %v, want an error", err)
	}
}
