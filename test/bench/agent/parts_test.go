package agent

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/agenttest"
)

// BenchmarkAgentParts says which part of an agent with everything costs what: of the anonymous memory at rest, and of the time from its
// exec until the proxy is ready, as milliseconds since the exec. The parts of the memory are the heap's objects and what is
// between them, goroutines' stacks, the program's variables, and the rest, which is what the Go runtime keeps for itself; "init" is what packages do before main, of which those that take 0.3 ms or 100 kB are logged.
func BenchmarkAgentParts(b *testing.B) {
	plane := agenttest.NewPlane(b)
	plane.Give(clusterType, staticClusters())
	plane.GiveBytes(mesh.NameTableType, "", nameTable())
	plane.Start()
	group := newGroup(b)
	everything := &use{env: []string{`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","port":"` + application(b) + `","path":"/metrics"}`}, dns: true}
	sums := map[string]float64{}
	for b.Loop() {
		ms, mb := packageInit(b)
		sums["init-ms"] += ms
		sums["init-MB"] += mb
		a := everything.start(b, plane, group, nil)
		untilReady(b, a)
		sums["ready-ms"] += time.Since(a.Started).Seconds() * 1e3
		<-time.After(quiet) // the agent hears that Envoy is live after the proxy is ready
		for name, line := range map[string]string{"main-ms": "FLAG: ", "spec-ms": "Proxy role", "exec-ms": "Envoy command", "certificate-ms": "certificate obtained", "live-ms": "Envoy is live"} {
			sums[name] += logged(b, a.Output(), line).Sub(a.Started).Seconds() * 1e3
		}
		_, anonymous, err := group.charged()
		if err != nil {
			b.Fatal(err)
		}
		// Without gc=1: a collection for the page would change what is measured.
		_, page, err := a.Get(a.Status, "/debug/pprof/heap?debug=1")
		if err != nil {
			b.Fatal(err)
		}
		variables, err := variables(a.Cmd.Process.Pid)
		if err != nil {
			b.Fatal(err)
		}
		heap, stacks := stat(b, page, "HeapInuse"), stat(b, page, "Stack")
		live := stat(b, page, "HeapAlloc")
		unused := stat(b, page, "HeapIdle") - stat(b, page, "HeapReleased")
		sums["anonymous-MB"] += anonymous
		sums["heap-objects-MB"] += live
		sums["heap-between-MB"] += heap - live
		sums["heap-unused-MB"] += unused
		sums["stacks-MB"] += stacks
		sums["variables-MB"] += variables
		sums["runtime-MB"] += anonymous - heap - unused - stacks - variables
		a.Stop()
	}
	for name, sum := range sums {
		b.ReportMetric(sum/float64(b.N), name)
	}
	b.ReportMetric(0, "ns/op")
}

// initLine is a line of GODEBUG=inittrace=1: the package, its time in ms and its bytes.
var initLine = regexp.MustCompile(`(?m)^init (\S+) @\S+ ms, (\S+) ms clock, (\d+) bytes`)

// packageInit returns how long packages take before main, in ms, and what they allocate, in MB.
func packageInit(b *testing.B) (ms, mb float64) {
	b.Helper()
	cmd := exec.Command(agenttest.Binary(b), "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1", "GOMAXPROCS=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	for _, m := range initLine.FindAllStringSubmatch(string(out), -1) {
		clock, err1 := strconv.ParseFloat(m[2], 64)
		bytes, err2 := strconv.ParseFloat(m[3], 64)
		if err1 != nil || err2 != nil {
			b.Fatalf("%s", m[0])
		}
		if clock >= 0.3 || bytes >= 100<<10 {
			b.Logf("init %s: %.1f ms, %.0f kB", m[1], clock, bytes/1024)
		}
		ms, mb = ms+clock, mb+bytes/(1<<20)
	}
	return ms, mb
}

// logged returns when the first line with the text was logged.
func logged(b *testing.B, output, text string) time.Time {
	b.Helper()
	for line := range strings.Lines(output) {
		if stamp, rest, ok := strings.Cut(line, "\t"); ok && strings.Contains(rest, text) {
			at, err := time.Parse(time.RFC3339Nano, stamp)
			if err != nil {
				b.Fatal(err)
			}
			return at
		}
	}
	b.Fatalf("no line has %q", text)
	return time.Time{}
}

// stat reads the runtime's figure of a heap profile's page, in MB: of those with two, the first, which is in use.
func stat(b *testing.B, page, name string) float64 {
	b.Helper()
	_, rest, ok := strings.Cut(page, "# "+name+" = ")
	var n float64
	if _, err := fmt.Sscan(rest, &n); !ok || err != nil {
		b.Fatalf("no %s in the heap's profile", name)
	}
	return n / (1 << 20)
}

// variables returns the anonymous memory of a process's program file, its written and its zero variables, in MB.
func variables(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, err
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return 0, err
	}
	var sum float64
	counts, end := false, ""
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if from, to, ok := strings.Cut(f[0], "-"); ok && len(f) >= 5 {
			// Zero variables are a mapping without a file, which follows.
			counts = len(f) > 5 && f[5] == exe || len(f) == 5 && counts && from == end
			end = to
		} else if counts && f[0] == "Anonymous:" {
			n, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				return 0, err
			}
			sum += n / 1024
		}
	}
	return sum, nil
}
