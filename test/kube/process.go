package kubetest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// stopBound is how long a program may take to end after SIGTERM before it is killed.
const stopBound = 20 * time.Second

// process is one program of the control plane, with a log file of its own.
type process struct {
	name, log string
	cmd       *exec.Cmd
	stopping  atomic.Bool // its end is wanted
	done      chan struct{}
}

// startProcess runs a program of the binary in dir, with its output at the end of dir/NAME.log. It is
// killed when this process ends, however that happens.
func startProcess(binary, dir, name string, args []string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	p.cmd = exec.Command(binary, append([]string{name}, args...)...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, log, log
	// No proxies, no kubeconfig and no Go settings of the user.
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread ends that forked, and Go ends threads of goroutines
		// that stay locked. So this thread is held until the process has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // how it ended is in ProcessState
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// running reports an end that was not asked for.
func (p *process) running() error {
	select {
	case <-p.done:
		if p.stopping.Load() {
			return nil
		}
		return fmt.Errorf("%s ended: %s\n%s", p.name, p.cmd.ProcessState, p.tail(0))
	default:
		return nil
	}
}

// signal sends a signal; that the process has ended already is not an error.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// stop ends the program with SIGTERM, after stopBound with SIGKILL, and waits until it has ended. It may be
// paused, and may have ended.
func (p *process) stop() {
	p.stopping.Store(true)
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
	timer := time.NewTimer(stopBound)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
	}
}

// kill ends the program with SIGKILL and waits until it has ended.
func (p *process) kill() {
	p.stopping.Store(true)
	p.signal(syscall.SIGKILL)
	<-p.done
}

// logSize is the present length of the log, in bytes.
func (p *process) logSize() int64 {
	info, err := os.Stat(p.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

const (
	tailBytes = 64 << 10
	tailLines = 30
)

// tail is the end of the log from an offset on, at most tailLines lines.
func (p *process) tail(from int64) string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	from = max(from, p.logSize()-tailBytes)
	text, err := io.ReadAll(io.NewSectionReader(f, from, tailBytes))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}

// last are the last tailLines lines of the log for which keep returns true.
func (p *process) last(keep func(line string) bool) string {
	f, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	var lines []string
	scan := bufio.NewScanner(f)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		if !keep(scan.Text()) {
			continue
		}
		if lines = append(lines, scan.Text()); len(lines) > tailLines {
			lines = lines[1:]
		}
	}
	if err := scan.Err(); err != nil {
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "\n")
}
