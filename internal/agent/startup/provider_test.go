package startup

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/claim"
)

func TestExternal(t *testing.T) {
	self := []uint32{uint32(os.Getuid())}
	// What is at the path of the socket.
	nothing := func(*testing.T, string) {}
	file := func(t *testing.T, path string) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stale := func(t *testing.T, path string) {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	live := func(t *testing.T, path string) {
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	agents := func(t *testing.T, path string) {
		live(t, path)
		lock, err := claim.Folder(t.Context(), filepath.Dir(path), 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lock.Release() })
	}
	for name, tt := range map[string]struct {
		at       func(*testing.T, string)
		sds      spec.SDS
		external bool
		fails    string
	}{
		"prefer, nothing":              {nothing, spec.SDS{Policy: spec.PreferExternal}, false, ""},
		"prefer, a stale socket":       {stale, spec.SDS{Policy: spec.PreferExternal}, false, ""},
		"prefer, a file":               {file, spec.SDS{Policy: spec.PreferExternal}, false, ""},
		"prefer, a server":             {live, spec.SDS{Policy: spec.PreferExternal, Users: self}, true, ""},
		"prefer, any server":           {live, spec.SDS{Policy: spec.PreferExternal, AllUsers: true}, true, ""},
		"prefer, a stranger's server":  {live, spec.SDS{Policy: spec.PreferExternal, Users: []uint32{4711}}, false, "WORKLOAD_IDENTITY_SOCKET_UIDS"},
		"prefer, another agent":        {agents, spec.SDS{Policy: spec.PreferExternal, Users: self}, false, ""},
		"require, nothing":             {nothing, spec.SDS{Policy: spec.RequireExternal}, true, ""},
		"require, a stale socket":      {stale, spec.SDS{Policy: spec.RequireExternal}, true, ""},
		"require, a server":            {live, spec.SDS{Policy: spec.RequireExternal, Users: self}, true, ""},
		"require, a stranger's server": {live, spec.SDS{Policy: spec.RequireExternal, Users: []uint32{4711}}, false, "WORKLOAD_IDENTITY_SOCKET_UIDS"},
		"must exist, nothing":          {nothing, spec.SDS{Policy: spec.RequireExternal, MustExist: true}, false, "WORKLOAD_IDENTITY_SOCKET_FILE"},
		"must exist, a file":           {file, spec.SDS{Policy: spec.RequireExternal, MustExist: true}, false, "not a socket"},
		"must exist, a stale socket":   {stale, spec.SDS{Policy: spec.RequireExternal, MustExist: true}, true, ""},
		"ignore, a server":             {live, spec.SDS{Policy: spec.IgnoreExternal, Users: self}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "socket")
			tt.at(t, path)
			before, _ := os.Lstat(path)
			external, err := External(t.Context(), &spec.Spec{SDS: tt.sds, Paths: spec.Paths{SDSSocket: path}}, slog.New(slog.DiscardHandler))
			if external != tt.external || (err == nil) != (tt.fails == "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("external %v, error %v; want %v, %q", external, err, tt.external, tt.fails)
			}
			if after, _ := os.Lstat(path); before != nil && !os.SameFile(before, after) {
				t.Error("the file was replaced")
			}
		})
	}
}
