package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// TestAccessLogOfWhatNoChainTakes has a server write an access log: it has the requests of the mesh without their queries, a line each,
// and the connections without TLS that the server's policy forbids, until the log of listeners is disabled.
func TestAccessLogOfWhatNoChainTakes(t *testing.T) {
	m, config := start(t, "tokens")
	serveHeaders(t, m, "server-1.tokens", ":9090")
	original, err := os.ReadFile(filepath.Join(config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	server := m.Pod("server-1.tokens")
	// Envoy appends to the file, which is its user's.
	for _, name := range []string{"one", "two"} {
		if err := server.Write("logs/"+name, nil); err != nil {
			t.Fatal(err)
		}
	}
	log := func(name string) string { return filepath.Join(server.Dir, "logs", name) }
	configure := func(more string) {
		t.Helper()
		put(t, config, "mesh.yaml", strings.Replace(string(original), "  mesh: |\n", "  mesh: |\n    "+strings.ReplaceAll(more, "\n", "\n    ")+"\n", 1))
	}
	const format = "\naccessLogFormat: \"%REQ(:METHOD)% %REQ_WITHOUT_QUERY(:PATH)% %RESPONSE_FLAGS%\""
	mesh := func(ctx context.Context) error {
		got, err := ask(ctx, m, "client-1.tokens", "server:9090", "http://server:9090/path?secret=1", nil)
		if err == nil && got.Status != http.StatusOK {
			err = fmt.Errorf("status %d", got.Status)
		}
		return err
	}
	plain := func(ctx context.Context) error {
		if got, err := ask(ctx, m, "outside-1.tokens", "server:9090", "http://10.99.0.12:9090/", nil); err == nil {
			return fmt.Errorf("status %d without TLS, want no answer", got.Status)
		}
		return nil
	}
	await := func(name, want string, other func(lines []string) error) {
		t.Helper()
		if err := meshup.Await(t.Context(), time.Minute, "the access log has "+want, func(ctx context.Context) error {
			if err := errors.Join(mesh(ctx), plain(ctx)); err != nil {
				return err
			}
			text, err := os.ReadFile(log(name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			for _, l := range lines {
				if l == want {
					return other(lines)
				}
			}
			return fmt.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
		}); err != nil {
			t.Fatal(err)
		}
	}
	configure("accessLogFile: " + log("one") + format)
	await("one", "- - NR", func([]string) error { return nil })
	await("one", "GET /path -", func([]string) error { return nil })

	configure("disableEnvoyListenerLog: true\naccessLogFile: " + log("two") + format)
	await("two", "GET /path -", func(lines []string) error {
		for _, l := range lines {
			if strings.HasSuffix(l, "NR") {
				t.Errorf("%q is logged, though the log of listeners is disabled", l)
			}
		}
		return nil
	})
}
