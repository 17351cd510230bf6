package kubetest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// PauseAPIServer stops the API server with SIGSTOP: connections stay open and nothing is answered. The function that
// it returns lets it go on; that happens at the end of the test at the latest. On a cluster of [Start] only.
func (c *Cluster) PauseAPIServer(t testing.TB) (resume func()) {
	t.Helper()
	p := c.program(apiServerName)
	return Pause(t, p.cmd.Process.Pid)
}

// Pause stops a process with SIGSTOP, and returns when all of its threads have stopped: until then some go on. The function
// that it returns lets the process go on; that happens at the end of the test at the latest. That the process has ended
// is not an error.
func Pause(t testing.TB, pid int) (resume func()) {
	t.Helper()
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	resume = sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(resume)
	wait.NoError(t, fmt.Sprintf("all threads of process %d have stopped", pid), func() error { return stopped(pid) })
	return resume
}

// stopped returns an error if a thread of a process can run.
func stopped(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	for _, path := range threads {
		text, _ := os.ReadFile(path) // of a thread that has ended meanwhile
		// The name in front of the state may have any characters.
		_, state, _ := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" "))
		if len(state) > 0 && !bytes.ContainsRune([]byte("TtZX"), rune(state[0])) {
			return fmt.Errorf("the state of %s is %c", path, state[0])
		}
	}
	return nil
}

// StopAPIServer ends the API server in order, and returns when it has ended: connections are refused. etcd keeps
// running. On a cluster of [Start] only.
func (c *Cluster) StopAPIServer(t testing.TB) {
	t.Helper()
	c.program(apiServerName).stop()
}

// KillAPIServer is [Cluster.StopAPIServer] with SIGKILL.
func (c *Cluster) KillAPIServer(t testing.TB) {
	t.Helper()
	c.program(apiServerName).kill()
}

// StartAPIServer starts the API server again, with the same etcd and keys at the same port, and waits until it is ready. It
// has to have been stopped. Its clients are started again as well, see [Cluster.RestartAPIServer].
func (c *Cluster) StartAPIServer(t testing.TB) {
	t.Helper()
	if err := c.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// RestartAPIServer ends the API server in order if it runs, starts it again, and returns when it is ready. It starts the controller
// manager and the scheduler again, too. Each of their watches would try again only after a pause of its own, of up to a minute
// once the API server was away for half of one. Meanwhile the controller of EndpointSlices knows how Pods change but not what
// it has written before: each change of a Pod doubles the time until it looks at the Service again, to 1,000 s, or makes it give up,
// and it does not look earlier when it has caught up. Until the next change of a Pod, the Service leads to Pods that are gone.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	c.program(apiServerName).stop()
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	for _, name := range []string{controllersName, schedulerName} {
		if p := c.program(name); p != nil {
			p.kill()
		}
	}
	return c.startClients()
}
