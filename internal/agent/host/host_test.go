package host

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
)

func TestRead(t *testing.T) {
	h, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	if h.UID != os.Getuid() || h.CPULimit < 0 {
		t.Errorf("user %d, CPU limit %d", h.UID, h.CPULimit)
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	if !slices.ContainsFunc(h.Interfaces, func(i spec.Interface) bool { return slices.Contains(i.Addrs, loopback) }) {
		t.Errorf("interfaces %v, want one with %s", h.Interfaces, loopback)
	}
}

func TestLookupUser(t *testing.T) {
	if uid, gid, err := LookupUser("root"); err != nil || uid != 0 || gid != 0 {
		t.Errorf("root: %d, %d, %v; want 0, 0", uid, gid, err)
	}
	if _, _, err := LookupUser("no-user-of-this-name"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want fs.ErrNotExist", err)
	}
}
