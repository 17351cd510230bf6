package netmesh

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Container is a part of a Pod with mounts of its own: an OS thread in the Pod's network, IPC and UTS namespaces,
// and in a mount namespace that began as a copy of the Pod's. All methods may be called from several goroutines.
type Container struct {
	pod    *Pod
	thread *thread
	// mounts is the inode of the mount namespace, by which its processes are known.
	mounts uint64
}

// podNamespaces are the namespaces that the containers of a Pod share, and that of the mounts, which is copied.
var podNamespaces = []struct {
	name string
	flag int
}{
	{"net", unix.CLONE_NEWNET}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"mnt", unix.CLONE_NEWNS},
}

// NewContainer makes a Container. Setup runs on its thread before anything else does, and may change the mounts, the
// root directory and the capabilities that programs started later can get.
func (p *Pod) NewContainer(setup func() error) (*Container, error) {
	c, err := p.newContainer(setup)
	if err != nil {
		return nil, fmt.Errorf("make a container in Pod %s: %w", p.name, err)
	}
	return c, nil
}

func (p *Pod) newContainer(setup func() error) (*Container, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end.begun {
		return nil, errGone
	}
	fds := make([]int, 0, len(podNamespaces))
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	err := p.thread.do(func() (err error) {
		fds, err = openNamespaces("/proc/thread-self/ns/", fds)
		return err
	})
	if err != nil {
		return nil, err
	}
	c := &Container{pod: p}
	c.thread, err = startThread(func(*thread) error { return c.join(fds) }, setup)
	if err != nil {
		return nil, err
	}
	p.containers = append(p.containers, c)
	return c, nil
}

// openNamespaces opens the namespaces of a Pod below dir, and appends them to fds, also if it fails.
func openNamespaces(dir string, fds []int) ([]int, error) {
	for _, n := range podNamespaces {
		fd, err := unix.Open(dir+n.name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fds, fmt.Errorf("open the Pod's namespace %s: %w", n.name, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// enter moves the calling thread, which is locked, to namespaces that openNamespaces has opened.
func enter(fds []int) error {
	// The kernel refuses a mount namespace to a thread that shares its root directory with others.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	for i, n := range podNamespaces {
		if err := unix.Setns(fds[i], n.flag); err != nil {
			return fmt.Errorf("enter the Pod's namespace %s: %w", n.name, err)
		}
	}
	return nil
}

// RunAs runs a command as a user in the namespaces of a Pod of another process, which [Pod.Task] names, and waits for its end. It
// needs root, and changes the command's SysProcAttr.
func RunAs(pid, task int, uid, gid uint32, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	fds, err := openNamespaces(fmt.Sprintf("/proc/%d/task/%d/ns/", pid, task), nil)
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		return err
	}
	started := make(chan error)
	go func() {
		// Never unlocked: the thread ends with this goroutine.
		runtime.LockOSThread()
		err := enter(fds)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		return err
	}
	return cmd.Wait()
}

// join runs on the container's thread.
func (c *Container) join(fds []int) error {
	if err := enter(fds); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("create a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/mnt", &st); err != nil {
		return fmt.Errorf("read the new mount namespace: %w", err)
	}
	c.mounts = st.Ino
	return nil
}

// Start starts a program in the container, as [Pod.Start] does; Path must be a path, which is that in the container.
func (c *Container) Start(cmd Command) (*Process, error) { return c.pod.start(c.thread, cmd) }

// Do runs fn on the container's thread, with the limits of [Pod.Do].
func (c *Container) Do(fn func() error) error {
	if err := c.thread.do(fn); err != nil {
		return fmt.Errorf("in a container of Pod %s: %w", c.pod.name, err)
	}
	return nil
}

// Kill kills all processes of the container and waits for their end.
func (c *Container) Kill() error {
	if left := killAll("mnt", c.mounts); len(left) > 0 {
		return fmt.Errorf("end a container of Pod %s: processes %v did not end", c.pod.name, left)
	}
	return nil
}

// Close kills what runs in the container and ends its mount namespace. It may be called more than once, and after the
// Pod's Close, which closes its containers.
func (c *Container) Close() error {
	c.pod.mu.Lock()
	i := slices.Index(c.pod.containers, c)
	if i >= 0 {
		c.pod.containers = slices.Delete(c.pod.containers, i, i+1)
	}
	c.pod.mu.Unlock()
	if i < 0 {
		return nil
	}
	err := c.Kill()
	c.thread.close()
	return err
}
