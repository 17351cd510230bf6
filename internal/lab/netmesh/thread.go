package netmesh

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// thread is one OS thread that lives in namespaces of its own and runs what it is given. The
// namespaces have no name: they end with the last thread, process or socket inside.
type thread struct {
	calls chan call
	quit  chan struct{}
	gone  chan struct{}
	tid   int
	// netns is the namespace's inode, by which its processes are known; nsfd keeps a handle to
	// it for moving links in.
	netns uint64
	nsfd  int
}

type call struct {
	fn  func() error
	err chan error
}

// startThread starts a thread, which calls enter to get its namespaces, and then setup before it takes calls.
func startThread(enter func(*thread) error, setup func() error) (*thread, error) {
	t := &thread{calls: make(chan call), quit: make(chan struct{}), gone: make(chan struct{}), nsfd: -1}
	started := make(chan error, 1)
	go t.main(func() error {
		if err := enter(t); err != nil {
			return err
		}
		return setup()
	}, started)
	if err := <-started; err != nil {
		<-t.gone
		t.close()
		return nil, err
	}
	return t, nil
}

// main never unlocks: the runtime ends a thread whose goroutine ends locked, and with it the
// namespaces, so that no other goroutine ever runs in them.
func (t *thread) main(setup func() error, started chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The first thread can't end before the program, and /proc/self shows its namespaces:
		// while it is held here, the goroutine started next has to run on another one.
		handed := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(handed)
			t.run(setup, started)
		}()
		<-handed
		runtime.UnlockOSThread()
		return
	}
	t.run(setup, started)
}

func (t *thread) run(setup func() error, started chan<- error) {
	defer close(t.gone)
	t.tid = unix.Gettid()
	if err := setup(); err != nil {
		started <- err
		return
	}
	started <- nil
	for {
		select {
		case c := <-t.calls:
			// A function that ends its goroutine (a test's FailNow) takes the thread along;
			// its caller must hear of it all the same.
			func() {
				err := fmt.Errorf("the function ended the thread that it ran on")
				defer func() { c.err <- err }()
				err = c.fn()
			}()
		case <-t.quit:
			return
		}
	}
}

// unshare gives the calling thread its namespaces, with mounts that don't spread to the machine's.
func (t *thread) unshare() error {
	const flags = unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_FS
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("create namespaces (needs root, or the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN): %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the new network namespace: %w", err)
	}
	t.nsfd = fd
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("read the new network namespace: %w", err)
	}
	t.netns = st.Ino
	return nil
}

// do runs fn on the thread and returns its error, or errGone.
func (t *thread) do(fn func() error) error {
	c := call{fn: fn, err: make(chan error, 1)}
	select {
	case t.calls <- c:
		return <-c.err
	case <-t.gone:
		return errGone
	}
}

// close ends the thread and waits until the kernel has forgotten it. It may be called once.
func (t *thread) close() {
	close(t.quit)
	<-t.gone
	if t.nsfd >= 0 {
		_ = unix.Close(t.nsfd)
	}
	if t.tid != 0 {
		await(2*time.Second, func() bool {
			_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", t.tid))
			return err != nil
		})
	}
}

// await asks ok again and again, ever more seldom, for at most the given time.
func await(limit time.Duration, ok func() bool) bool {
	end := time.NewTimer(limit)
	defer end.Stop()
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if ok() {
			return true
		}
		select {
		case <-end.C:
			return ok()
		case <-time.After(pause):
		}
	}
}
