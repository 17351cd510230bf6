package discovery

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/filewatch"
)

func TestMeshFileBeingRewrittenIsAwaited(t *testing.T) {
	for !awaitsRewriting(t) {
		t.Log("the machine is so busy that the file was not rewritten in time: again")
	}
}

// awaitsRewriting starts a control plane while its mesh file is rewritten. It returns false if that took so long that the
// file may have been used meanwhile.
func awaitsRewriting(t *testing.T) (steady bool) {
	t.Helper()
	const text = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n"
	file := filepath.Join(t.TempDir(), "mesh")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	<-time.After(100 * time.Millisecond) // it is not a new file
	began := time.Now()
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		<-time.After(200 * time.Millisecond)
		err := os.WriteFile(file, []byte(text), 0o600)
		steady = time.Since(began) < filewatch.DefaultQuietPeriod*3/4
		wrote <- err
	}()
	p := start(t, func(o *Options) { o.MeshFile = file })
	p.emit(shop, true)
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	c := p.dial("", "").open()
	c.until("9080", "block_all")
	if steady && strings.Contains(strings.Join(c.seen, " "), "allow_any") {
		t.Error("a proxy was served by a file that was not whole")
	}
	return steady
}

// A control plane does not start with what it cannot read to the end.
func TestMeshFileMustBeAFile(t *testing.T) {
	at := newPlace(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/dev/zero": "a device: want a regular file", pipe: "a named pipe: want a regular file"} {
		at.mesh = path
		if _, err := New(t.Context(), at.options("", slog.New(slog.DiscardHandler))); err == nil || !strings.Contains(err.Error(), "read mesh configuration: read "+path+": "+want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
