package main

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/require"
)

// asDemo is the variable with which this program is the demo.
const asDemo = "PILOTHOUSE_TEST_DEMO"

func TestMain(m *testing.M) {
	if os.Getenv(asDemo) != "" {
		main()
		return
	}
	require.Root()
	require.Envoy()
	require.Kube()
	os.Exit(m.Run())
}

// Ctrl-C while Pods run and others start: no process, network interface or file is left.
func TestInterruptedDemoLeavesNothing(t *testing.T) {
	tmp, err := os.MkdirTemp("", "demo-") // sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	before := links(t)
	d := exec.Command("/proc/self/exe")
	d.Env, d.Stderr = append(os.Environ(), asDemo+"=1", "TMPDIR="+tmp), os.Stderr
	out, err := d.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	text := ""
	var programs []process
	for lines := bufio.NewScanner(out); lines.Scan(); {
		text += lines.Text() + "\n"
		if programs == nil && strings.Contains(lines.Text(), "Pods in bookshop are ready") {
			programs = descendants(d.Process.Pid)
			if err := d.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
		}
	}
	var exit *exec.ExitError
	if err := d.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it ended with %v, want exit code 1, after\n%s", err, text)
	}
	// etcd, the API server, the controllers, the scheduler, two replicas of pilot-discovery.
	if len(programs) < 6 {
		t.Errorf("only %d programs ran: what is looked for is not there to be found", len(programs))
	}
	for _, p := range programs {
		if now := find(p.pid); now == p {
			t.Errorf("process %+v is left", p)
		}
	}
	if now := links(t); !slices.Equal(now, before) {
		t.Errorf("network interfaces were %v, are %v", before, now)
	}
	files, err := os.ReadDir(tmp)
	for _, f := range files {
		// Go's own, of the programs that it builds.
		if err != nil || !strings.HasPrefix(f.Name(), "go-") {
			t.Errorf("%s is left, %v", f.Name(), err)
		}
	}
}

// process is a process, which its number and the time of its start tell from all others.
type process struct {
	pid           int
	name, started string
}

// find is the process with a number, or the zero value.
func find(pid int) process {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return process{}
	}
	name, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 || fields[0] == "Z" {
		return process{}
	}
	return process{pid, name, fields[19]}
}

// descendants are the children of a process, and theirs.
func descendants(pid int) []process {
	lists, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children")
	var all []process
	for _, list := range lists {
		text, _ := os.ReadFile(list) // of a thread that has ended meanwhile
		for child := range strings.FieldsSeq(string(text)) {
			n, err := strconv.Atoi(child)
			if p := find(n); err == nil && p.pid != 0 {
				all = append(all, p)
			}
			all = append(all, descendants(n)...)
		}
	}
	return all
}

// links are the network interfaces of this machine.
func links(t *testing.T) []string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

// The scenarios begin when every Envoy has endpoints for what is called; a service that it has not heard of, and one
// without endpoints, are waited for.
func TestScenariosWaitForEndpoints(t *testing.T) {
	var clusters []string
	page := func() []byte { return []byte(`{"cluster_statuses":[` + strings.Join(clusters, ",") + `]}`) }
	const host = ".bookshop.svc.cluster.local"
	for _, name := range []string{"outbound|9080||productpage", "outbound|9080|v1|reviews", "outbound|9080|v2|reviews", "outbound|9080||ratings"} {
		clusters = append(clusters, `{"name":"`+name+host+`","host_statuses":[{}]}`)
	}
	if err := hasEndpoints(page()); err == nil || !strings.Contains(err.Error(), "outbound|5432||db") {
		t.Errorf("without the database: %v", err)
	}
	clusters = append(clusters, `{"name":"outbound|5432||db`+host+`"}`)
	if err := hasEndpoints(page()); err == nil || !strings.Contains(err.Error(), "outbound|5432||db") {
		t.Errorf("without an endpoint of the database: %v", err)
	}
	clusters = append(clusters, `{"name":"outbound|5432||db`+host+`","host_statuses":[{}]}`)
	if err := hasEndpoints(page()); err != nil {
		t.Error(err)
	}
}
