package kubetest

import (
	"context"
	"sync"
	"syscall"
	"testing"
)

// PauseAPIServer stops the API server with SIGSTOP: connections stay open and nothing is answered. The function that
// it returns lets it go on; that happens at the end of the test at the latest. On a cluster of [Start] only.
func (c *Cluster) PauseAPIServer(t testing.TB) (resume func()) {
	t.Helper()
	p := c.program(apiServerName)
	p.signal(syscall.SIGSTOP)
	resume = sync.OnceFunc(func() { p.signal(syscall.SIGCONT) })
	t.Cleanup(resume)
	return resume
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
// has to have been stopped.
func (c *Cluster) StartAPIServer(t testing.TB) {
	t.Helper()
	if err := c.RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// RestartAPIServer ends the API server in order if it runs, starts it again, and returns when it is ready.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	c.program(apiServerName).stop()
	return c.startAPIServer(ctx)
}
