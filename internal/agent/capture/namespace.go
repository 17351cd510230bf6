package capture

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// In runs fn in the network namespace that path names, such as /proc/1234/ns/net, and returns its
// error. It needs the capability CAP_SYS_ADMIN. The thread that entered ends with it.
func In(path string, fn func() error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the network namespace: %w", err)
	}
	defer f.Close()
	done := make(chan error)
	go func() {
		// Never unlocked: no other goroutine may run in that namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace %s: %w", path, err)
			return
		}
		done <- fn()
	}()
	return <-done
}
