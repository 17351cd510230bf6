package netmesh

import (
	"fmt"
	"os"
	"runtime"
)

// Supported makes and closes a mesh of one Pod. It returns nil if that is possible on this machine, or an error
// that names what is missing.
func Supported() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("a mesh on one machine needs root to make network namespaces (this is user %d): run it with sudo", os.Geteuid())
	}
	if runtime.GOOS != "linux" {
		return fmt.Errorf("a mesh on one machine needs Linux, this is %s", runtime.GOOS)
	}
	m, err := New(Options{})
	if err != nil {
		return unsupported(err)
	}
	_, err = m.AddPod(PodOptions{Name: "probe"})
	if closeErr := m.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return unsupported(err)
	}
	return nil
}

func unsupported(err error) error {
	return fmt.Errorf("make network namespaces (in a container, run it privileged): %w", err)
}
