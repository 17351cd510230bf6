package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
)

// bound is the longest that anything here is waited for.
const bound = 5 * time.Minute

// plane is a control plane in this process, over a directory with the synthetic mesh,
// and the process of its clients.
type plane struct {
	dir, spare string
	addr       discovery.Ports
	stop       func()
	child      *exec.Cmd
	orders     *json.Encoder
	answers    *json.Decoder
	close      io.Closer
	before     uint64 // heap bytes in use before any client came
}

// changed is the service whose objects stand in files of their own, to be edited.
const changed = 400

// newPlane starts everything and waits until the configuration has been read.
func newPlane(b *testing.B, z size) *plane {
	b.Helper()
	p := &plane{dir: b.TempDir(), spare: b.TempDir()}
	for n, text := range z.yaml() {
		for _, own := range []string{z.pod(changed, 2, 0), z.virtualService(changed, 90), z.destinationRule(changed, 100)} {
			text = strings.Replace(text, own+"---\n", "", 1)
		}
		p.write(b, z.namespace(n)+".yaml", text)
	}
	p.write(b, "pod.yaml", z.pod(changed, 2, 0))
	p.write(b, "virtualservice.yaml", z.virtualService(changed, 90))
	p.write(b, "destinationrule.yaml", z.destinationRule(changed, 100))

	const any = "127.0.0.1:0"
	s, err := discovery.New(b.Context(), discovery.Options{
		ConfigDir: p.dir, StateDir: b.TempDir(), Names: discovery.Names{Domain: "cluster.local", TrustDomain: "cluster.local", Namespace: "istio-system"},
		Ports:     discovery.Ports{HTTP: any, GRPC: any, Monitoring: any},
		Keepalive: discovery.Keepalive{Interval: 30 * time.Second, Timeout: 10 * time.Second},
		CA:        discovery.CAOptions{Limits: policy.Limits{DefaultTTL: time.Hour, MaxTTL: time.Hour}, RootTTL: 24 * time.Hour},
		Version:   "bench", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	p.addr = s.Addresses()
	p.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
	p.startClients(b)
	p.await(b, "the configuration to be read", func() bool {
		resp, err := http.Get("http://" + p.addr.HTTP + "/ready")
		if err != nil {
			b.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	p.before = heap()
	b.Cleanup(p.end)
	return p
}

func (p *plane) startClients(b *testing.B) {
	b.Helper()
	p.child = exec.Command(os.Args[0])
	p.child.Env = append(os.Environ(), clientsEnv+"=1")
	p.child.Stderr = os.Stderr
	in, err := p.child.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := p.child.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := p.child.Start(); err != nil {
		b.Fatal(err)
	}
	p.orders, p.answers, p.close = json.NewEncoder(in), json.NewDecoder(out), in
}

func (p *plane) end() {
	_ = p.close.Close()
	_ = p.child.Wait() // its streams break while it ends, which it may call an error
	p.stop()
}

// write puts a whole file into the directory in one step.
func (p *plane) write(b *testing.B, name, text string) {
	b.Helper()
	if err := os.WriteFile(filepath.Join(p.spare, name), []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	if err := os.Rename(filepath.Join(p.spare, name), filepath.Join(p.dir, name)); err != nil {
		b.Fatal(err)
	}
}

// tell gives the clients an order and waits for its answer.
func (p *plane) tell(b *testing.B, c command) answer {
	b.Helper()
	if err := p.orders.Encode(c); err != nil {
		b.Fatal(err)
	}
	var a answer
	if err := p.answers.Decode(&a); err != nil {
		b.Fatal(err)
	}
	if a.Error != "" {
		b.Fatal(a.Error)
	}
	return a
}

// await polls for a condition.
func (p *plane) await(b *testing.B, what string, ok func() bool) {
	b.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(bound)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			b.Fatalf("waited %s for %s", bound, what)
		}
	}
}

// applied is how often a proxy has applied all of a view, as the control plane counts.
func (p *plane) applied(b *testing.B) int { return p.metric(b, "pilot_proxy_convergence_time_count") }

// connected is how many streams the control plane counts.
func (p *plane) connected(b *testing.B) int { return p.metric(b, "pilot_xds") }

func (p *plane) metric(b *testing.B, name string) int {
	b.Helper()
	resp, err := http.Get("http://" + p.addr.Monitoring + "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	sum := 0.0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), " ")
		if n, _, _ := strings.Cut(series, "{"); n == name {
			var v float64
			if _, err := fmt.Sscan(value, &v); err != nil {
				b.Fatal(err)
			}
			sum += v
		}
	}
	return int(sum)
}

// cpu is the processor time that this process has used, its kernel side included.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap is what is in use after everything that can be freed has been.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
