package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a server whose costs are read from /proc.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended, and then err is set
	err   error
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stop ends the process and waits for its end.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill() // as before
		<-p.ended
	}
}

func (p *process) file(name string) string {
	return fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, name)
}

// cpu is the processor time that the process has used, its kernel side included.
func (p *process) cpu() (time.Duration, error) {
	// The clock of another process, as clock_getcpuclockid(3) makes its id. /proc/PID/stat counts in steps of
	// 10 ms, which is more than a small change takes.
	const sched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^p.cmd.Process.Pid<<3|sched), &t); err != nil {
		return 0, fmt.Errorf("read the CPU clock of process %d: %w", p.cmd.Process.Pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// resetPeak makes peak count from now on.
func (p *process) resetPeak() error { return os.WriteFile(p.file("clear_refs"), []byte("5"), 0) }

// peak is the greatest resident size since the last resetPeak, in bytes.
func (p *process) peak() (int64, error) {
	b, err := os.ReadFile(p.file("status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kB int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kB); n == 1 {
			return kB << 10, nil
		}
	}
	return 0, fmt.Errorf("parse %s: no VmHWM", p.file("status"))
}

// server is a server under load.
type server interface {
	proc() *process
	// memory is the size in bytes of what is in use of heap and stacks.
	memory(ctx context.Context) (int64, error)
}

// discovery is a pilot-discovery over a directory of its own.
type discovery struct {
	*process
	dir                            string // contains config, state and log
	http, grpc, secure, monitoring string // addresses
}

// servingName is a name of the certificate of the secure port.
const servingName = "istiod.istio-system.svc"

// startDiscovery starts a pilot-discovery over the directory dir/config, and waits until it is ready.
func startDiscovery(ctx context.Context, binary, dir string, streams int) (*discovery, error) {
	d := &discovery{dir: dir}
	for _, to := range []*string{&d.http, &d.grpc, &d.secure, &d.monitoring} {
		var err error
		if *to, err = freeAddress(); err != nil {
			return nil, err
		}
	}
	log, err := os.Create(d.logFile())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(binary, "discovery", "--configDir", d.config(), "--stateDir", filepath.Join(dir, "state"),
		"--meshConfig", filepath.Join(dir, "mesh"), "--httpAddr", d.http, "--grpcAddr", d.grpc, "--secureGRPCAddr", d.secure,
		"--monitoringAddr", d.monitoring, "--httpsAddr", "", "--maxStreams", strconv.Itoa(max(10000, 3*streams)))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "PILOTHOUSE_CERTIFICATES_PER_SECOND=0") // all certificates are asked for over one connection
	if d.process, err = startProcess(cmd); err != nil {
		return nil, err
	}
	err = poll(ctx, func() error {
		select {
		case <-d.ended:
			return &finalError{fmt.Errorf("%s ended: %w", binary, d.err)}
		default:
		}
		_, err := get(ctx, "http://"+d.http+"/ready")
		return err
	})
	if err != nil {
		d.stop()
		return nil, fmt.Errorf("start %s: %w\n%s", binary, err, d.logTail())
	}
	return d, nil
}

func (d *discovery) proc() *process  { return d.process }
func (d *discovery) config() string  { return filepath.Join(d.dir, "config") }
func (d *discovery) logFile() string { return filepath.Join(d.dir, "discovery.log") }

// logTail is what the log says for errors: its last warnings and errors, and its end.
func (d *discovery) logTail() string {
	b, err := os.ReadFile(d.logFile())
	if err != nil {
		return err.Error()
	}
	var bad []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "\twarn\t") || strings.Contains(line, "\terror\t") {
			bad = append(bad, line)
		}
	}
	return strings.Join(bad[max(0, len(bad)-20):], "") + "…\n" + string(b[max(0, len(b)-2048):])
}

// streams is how many streams it counts.
func (d *discovery) streams(ctx context.Context) (int, error) {
	m, err := d.metrics(ctx)
	return int(m["pilot_xds"]), err
}

// metrics are the sums of its metrics by name.
func (d *discovery) metrics(ctx context.Context) (map[string]float64, error) {
	text, err := get(ctx, "http://"+d.monitoring+"/metrics")
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ := strings.Cut(series, "{")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			out[name] += v
		}
	}
	return out, nil
}

// memory is worked out from the collector's own figures: the next collection starts when what the last found in use,
// stacks included, has grown by a percentage. Pages are asked for until three collections have ended, the second of which empties gRPC's
// pools: what the answers allocate starts collections, or the runtime does after two minutes.
func (d *discovery) memory(ctx context.Context) (int64, error) {
	const collections = "go_gc_duration_seconds_count"
	first, err := d.metrics(ctx)
	if err != nil {
		return 0, err
	}
	m := first
	for m[collections] < first[collections]+3 {
		if _, err := get(ctx, "http://"+d.http+"/debug/objectz"); err != nil {
			return 0, err
		}
		if m, err = d.metrics(ctx); err != nil {
			return 0, err
		}
	}
	growth := m["go_gc_gogc_percent"] / 100
	roots := m["go_memstats_stack_inuse_bytes"]
	return int64((m["go_memstats_next_gc_bytes"]-growth*roots)/(1+growth) + roots), nil
}

// wireProcess is a wire server.
type wireProcess struct {
	*process
	address string
	in      io.WriteCloser
	out     *bufio.Reader
}

// wireEnv makes a process of this program, or of its tests, a wire server; its value is the script's file.
// wireCertEnv is the certificate's.
const (
	wireEnv     = "XDSLOAD_WIRE"
	wireCertEnv = "XDSLOAD_WIRE_CERT"
)

func startWire(scriptFile, certFile string) (*wireProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), wireEnv+"="+scriptFile, wireCertEnv+"="+certFile, "GOGC=100")
	cmd.Stderr = os.Stderr
	w := &wireProcess{}
	if w.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// Not StdoutPipe: what is read of that must be read before Wait.
	r, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = out
	w.process, err = startProcess(cmd)
	_ = out.Close() // the process has its own
	if err != nil {
		_ = r.Close() // the error that counts is known
		return nil, err
	}
	w.out = bufio.NewReader(r)
	if w.address, err = w.line(); err != nil {
		w.stop()
		return nil, fmt.Errorf("start the wire server: %w", err)
	}
	return w, nil
}

func (w *wireProcess) proc() *process { return w.process }

func (w *wireProcess) line() (string, error) {
	s, err := w.out.ReadString('\n')
	return strings.TrimSpace(s), err
}

// tell sends a command and returns the answer.
func (w *wireProcess) tell(command string) (string, error) {
	if _, err := fmt.Fprintln(w.in, command); err != nil {
		return "", err
	}
	return w.line()
}

func (w *wireProcess) memory(context.Context) (int64, error) {
	s, err := w.tell(commandMemory)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(s, 10, 64)
}

// finalError ends a poll.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// poll calls ready until it returns nil, a finalError, or the context has ended; then the error has the last of
// ready's.
func poll(ctx context.Context, ready func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready()
		if err == nil || errors.As(err, new(*finalError)) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// get returns the body of an answer, which must be 200.
func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	// Compressing what it answers would cost the server more than the answer.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("get %s: %s: %.200s", url, resp.Status, b)
	}
	return string(b), err
}

// freeAddress is a loopback address whose port is free. The port is below those that the kernel assigns to outgoing
// connections.
func freeAddress() (string, error) {
	for range 1000 {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(10000+rand.IntN(20000))))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().String(), nil
	}
	return "", errors.New("no TCP port is free")
}
