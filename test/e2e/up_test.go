package e2e_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// session is a "pilotctl up" that runs.
type session struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu   sync.Mutex
	text strings.Builder
}

func (s *session) output() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// up runs a copy of a sample until the end of the test.
func up(t *testing.T, sample string, args ...string) (s *session, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), filepath.Base(sample))
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, sample))); err != nil {
		t.Fatal(err)
	}
	return upIn(t, dir, args...), dir
}

// upIn runs a directory until the end of the test.
func upIn(t *testing.T, dir string, args ...string) *session {
	t.Helper()
	s := &session{done: make(chan struct{})}
	s.cmd = exec.Command(pilotctlPath(), append([]string{"up", dir, "--bin", filepath.Dir(programs.Agent), "--envoy", programs.Envoy}, args...)...)
	s.cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = s.cmd.Stdout
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			s.mu.Lock()
			s.text.WriteString(lines.Text() + "\n")
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // if the test has not ended it
		<-s.done
		_ = s.cmd.Wait()
		if t.Failed() {
			t.Logf("pilotctl up %s:\n%s", dir, s.output())
		}
	})
	wait.Until(t, "every Pod of "+dir+" is ready", func() bool {
		select {
		case <-s.done:
			t.Fatalf("pilotctl up has ended:\n%s", s.output())
		default:
		}
		return strings.Contains(s.output(), "Ctrl-C ends everything")
	})
	return s
}

// discovery is the URL of the debug port of the mesh's pilot-discovery.
func (s *session) discovery() string {
	if m := regexp.MustCompile(`--discovery (\S+)`).FindStringSubmatch(s.output()); m != nil {
		return m[1]
	}
	return "http://127.0.0.1:8080"
}

func pilotctlPath() string { return filepath.Join(filepath.Dir(programs.Agent), "pilotctl") }

// in runs a shell command in a Pod and returns what it prints.
func in(t *testing.T, pod, script string) string {
	t.Helper()
	out, err := tryIn(pod, script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tryIn is in for what may fail.
func tryIn(pod, script string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.Command(pilotctlPath(), "exec", pod, "--", "bash", "-c", script)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("in %s: %w\n%s%s", pod, err, out, stderr.String())
	}
	return string(out), err
}

// request is a shell command that makes an HTTP request, without a program that a machine may lack.
func request(host string, port int) string {
	return fmt.Sprintf(`exec 3<>/dev/tcp/%s/%d && printf 'GET /x HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n' >&3 && cat <&3`, host, port, host, port)
}

// Deployments become Pods, Services get addresses, the Gateway a router; edits take effect; nothing is left.
func TestUpRunsWorkloads(t *testing.T) {
	before, rulesBefore := links(t), hostRules(t)
	s, dir := up(t, "samples/hello")
	answer := in(t, "caller", request("greeter", 80))
	if !strings.Contains(answer, `"peer":"spiffe://cluster.local/ns/hello/sa/caller"`) {
		t.Errorf("the greeter answered %q, want the identity of the caller in it", answer)
	}
	if got := in(t, "caller", "id -u"); strings.TrimSpace(got) == "0" {
		t.Error("programs run as root")
	}
	var code *exec.ExitError
	if err := exec.Command(pilotctlPath(), "exec", "caller", "--", "bash", "-c", "exit 7").Run(); !errors.As(err, &code) || code.ExitCode() != 7 {
		t.Errorf("the exit code of pilotctl exec: %v, want 7", err)
	}

	// Who is not root is told what to do.
	program, err := os.ReadFile(pilotctlPath())
	open, openErr := os.MkdirTemp("", "pilotctl-") // where another user gets to: the folders of tests are private
	t.Cleanup(func() { _ = os.RemoveAll(open) })
	copied := filepath.Join(open, "pilotctl")
	if err := errors.Join(err, openErr, os.Chmod(open, 0o755), os.WriteFile(copied, program, 0o755)); err != nil {
		t.Fatal(err)
	}
	refused := exec.Command(copied, "exec", "caller", "--", "id")
	refused.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if text, err := refused.CombinedOutput(); os.Geteuid() == 0 && (err == nil || !strings.Contains(string(text), "run it with sudo")) {
		t.Errorf("pilotctl exec of another user: %v, %s", err, text)
	}
	if want := "  " + pilotctlPath() + " exec caller-1.hello -- curl -s http://greeter.hello:80/\n"; !strings.Contains(s.output(), want) {
		t.Errorf("it does not propose %q", want)
	}
	view := regexp.MustCompile(`(http://\S+/ui) +services`).FindStringSubmatch(s.output())
	if view == nil || !strings.Contains(fetch(t, view[1]), "<title>") {
		t.Errorf("the page is not served at %v", view)
	}
	entry := regexp.MustCompile(`(http://\S+) +port 80 of`).FindStringSubmatch(s.output())
	if entry == nil {
		t.Fatal("the gateway is not opened")
	}
	if body := fetch(t, entry[1]); !strings.Contains(body, "sa/istio-ingressgateway") {
		t.Errorf("through the gateway: %q", body)
	}

	editFile(t, filepath.Join(dir, "routing.yaml"), "weight: 90", "weight: 0", "weight: 10", "weight: 100")
	wait.Until(t, "requests go to version 2", func() bool {
		return strings.Contains(in(t, "caller", request("greeter", 80)), `"version":"v2"`)
	})
	editFile(t, filepath.Join(dir, "hello.yaml"), "name: greeter-v2\n  namespace: hello\nspec:", "name: greeter-v2\n  namespace: hello\nspec:\n  replicas: 2")
	wait.Until(t, "the new Pod answers", func() bool {
		return strings.Contains(in(t, "caller", request("greeter", 80)), `"pod":"greeter-v2-2"`)
	})
	wait.Until(t, "the log has the request", func() bool {
		return strings.Contains(s.output(), `greeter-v2-2.hello.greeter | GET "/x" 200 from spiffe://cluster.local/ns/hello/sa/caller`)
	})
	out, err := exec.Command(pilotctlPath(), "logs", "greeter-v2-2").CombinedOutput()
	if err != nil || !strings.Contains(string(out), `GET "/x" 200`) {
		t.Errorf("pilotctl logs: %v\n%s", err, out)
	}
	editFile(t, filepath.Join(dir, "routing.yaml"), "weight: 0", "wieght: 0")
	wait.Until(t, "the mistake is told with its place", func() bool {
		return strings.Contains(s.output(), filepath.Join(dir, "routing.yaml")+":") && strings.Contains(s.output(), "did you mean weight")
	})

	used := s.uses(t)
	if len(used.namespaces) < 5*len([]string{"net", "mnt"}) {
		t.Errorf("only %d namespaces while it runs: what is looked for below is not there to be found", len(used.namespaces))
	}
	if now := links(t); !slices.Equal(now, before) {
		t.Errorf("network interfaces of this machine were %v, are %v", before, now)
	}
	if now := hostRules(t); now != rulesBefore {
		t.Errorf("rules and routes of this machine are others while it runs:\n%s\nbefore:\n%s", now, rulesBefore)
	}
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-s.done
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("after SIGINT: %v", err)
	}
	used.left(t, dir)
	if now := links(t); !slices.Equal(now, before) {
		t.Errorf("network interfaces of this machine were %v, are %v after the end", before, now)
	}
	if now := hostRules(t); now != rulesBefore {
		t.Errorf("rules and routes of this machine are others after the end:\n%s\nbefore:\n%s", now, rulesBefore)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/run/pilothouse/up/%d-*.json", s.cmd.Process.Pid)); len(left) > 0 {
		t.Error("the record of the mesh is left")
	}
	for _, p := range processes(t, dir) {
		t.Errorf("left: %s", p)
	}
}

// hostRules are the packet filters, routes and routing rules of this machine, without counters and times; it reads what the machine has a program for.
func hostRules(t *testing.T) string {
	t.Helper()
	moving := regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]|packets \d+ bytes \d+| expires \S+| # handle \d+`)
	var out strings.Builder
	read := 0
	for _, command := range []string{
		"nft list ruleset", "iptables-save", "ip6tables-save", "iptables-legacy-save", "ip6tables-legacy-save",
		"ip rule show", "ip -6 rule show", "ip route show table all", "ip -6 route show table all",
	} {
		words := strings.Fields(command)
		path, err := exec.LookPath(words[0])
		if err != nil {
			continue
		}
		text, err := exec.Command(path, words[1:]...).Output()
		if err != nil {
			t.Logf("%s: %v", command, err)
			continue
		}
		read++
		fmt.Fprintf(&out, "%s:\n%s", command, moving.ReplaceAllString(string(text), ""))
	}
	if read == 0 {
		t.Log("no program of this machine shows packet filters and routes: they are not compared")
	}
	return out.String()
}

// footprint is what a session uses of the machine while it runs.
type footprint struct {
	// namespaces are those that this process is not in, as "net:[4026532000]"; cgroups are paths of control groups, processes process ids.
	namespaces, cgroups map[string]bool
	processes           []string
	// folder has its files.
	folder string
	// mounts are lines of this process's mountinfo, and at is the time, in clock ticks since the machine has started. The kernel gives the
	// number of a namespace that has ended to the next one, which another test may make.
	mounts map[string]bool
	at     uint64
}

// uses finds the processes that the session has started, and what they are in.
func (s *session) uses(t *testing.T) footprint {
	t.Helper()
	u := footprint{namespaces: map[string]bool{}, cgroups: map[string]bool{}, mounts: map[string]bool{}}
	for _, line := range mountLines(t) {
		u.mounts[line] = true
	}
	children := map[string][]string{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 {
			children[fields[1]] = append(children[fields[1]], filepath.Base(filepath.Dir(path)))
		}
	}
	for next := children[strconv.Itoa(s.cmd.Process.Pid)]; len(next) > 0; next = next[1:] {
		u.processes = append(u.processes, next[0])
		next = append(next, children[next[0]]...)
	}
	folder := regexp.MustCompile(`/[^\x00]*/pilothouse-mesh-\d+`)
	for _, pid := range u.processes {
		if line, err := os.ReadFile("/proc/" + pid + "/cmdline"); err == nil && u.folder == "" {
			u.folder = string(folder.Find(line))
		}
		for _, kind := range []string{"net", "mnt", "uts", "pid", "ipc"} {
			own, ownErr := os.Readlink("/proc/self/ns/" + kind)
			if ns, err := os.Readlink("/proc/" + pid + "/ns/" + kind); err == nil && ownErr == nil && ns != own {
				u.namespaces[ns] = true
			}
		}
		if text, err := os.ReadFile("/proc/" + pid + "/cgroup"); err == nil {
			for line := range strings.Lines(string(text)) {
				u.cgroups[strings.TrimSpace(line[strings.LastIndexByte(line, ':')+1:])] = true
			}
		}
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(own)) {
		delete(u.cgroups, strings.TrimSpace(line[strings.LastIndexByte(line, ':')+1:]))
	}
	now, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Fatal(err)
	}
	seconds, _, _ := strings.Cut(string(now), " ")
	uptime, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		t.Fatal(err)
	}
	const ticks = 100 // in a second, on all architectures that Envoy is built for
	u.at = uint64(uptime * ticks)
	return u
}

// startOf is when a process has started, in clock ticks since the machine has; false if it has ended.
// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
func startOf(pid string) (ticks uint64, ok bool) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, false
	}
	ticks, err = strconv.ParseUint(fields[19], 10, 64)
	return ticks, err == nil
}

func mountLines(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// left reports what remains of a session that has ended: its folder, processes, namespaces, with which their rules and interfaces end, mounts, and
// control groups.
func (u footprint) left(t *testing.T, dir string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/ns/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		ns, err := os.Readlink(path)
		if err != nil || !u.namespaces[ns] {
			continue
		}
		if started, ok := startOf(strings.Split(path, "/")[2]); ok && started <= u.at {
			t.Errorf("%s is left: %s", ns, path)
		}
	}
	if _, err := os.Stat(u.folder); err == nil || u.folder == "" {
		t.Errorf("the folder %q is left, or was not found", u.folder)
	}
	for _, line := range mountLines(t) {
		if strings.Contains(line, dir) {
			t.Errorf("a mount is left: %s", line)
		}
		for ns := range u.namespaces {
			if u.mounts[line] && strings.Contains(line, ns) {
				t.Errorf("the mount of a namespace is left: %s", line)
			}
		}
	}
	for group := range u.cgroups {
		if found, _ := filepath.Glob("/sys/fs/cgroup" + group); len(found) > 0 && group != "/" {
			t.Errorf("the control group %s is left", group)
		}
	}
}

// What is wrong is told when it is written, with paths that can be pasted: also references that lead nowhere, which are
// valid. What names files by an invalid name is not run; what a program may do, a set-user-ID bit does not widen.
func TestUpTellsWhatIsWrong(t *testing.T) {
	s, dir := up(t, "samples/hello", "--yes", "--exec", "greeter-v1=grep -E ^(NoNewPrivs|Uid|CapBnd) /proc/self/status")
	told := func(what, want string) {
		t.Helper()
		wait.Until(t, what, func() bool { return strings.Contains(s.output(), want) })
	}
	told("the program may not gain privileges", "greeter-v1-1.hello.greeter | NoNewPrivs:\t1")
	if strings.Contains(s.output(), "greeter | Uid:\t0") {
		t.Error("a program runs as root")
	}

	routing, pods := filepath.Join(dir, "routing.yaml"), filepath.Join(dir, "more.yaml")
	editFile(t, routing, "host: greeter, subset: v1", "host: greeter, subset: v9")
	told("the subset that does not exist", "warning: "+routing+":24: VirtualService hello/greeter: spec.http[0].route[0].destination.subset: no DestinationRule for greeter has the subset \"v9\"")
	told("what the edit changed", `configuration changed	generation=`)
	editFile(t, routing, "subset: v9", "subset: v1")
	told("that nothing is wrong any more", "no object has a problem any more")
	editFile(t, routing, "  hosts: [greeter]", "   hosts: [greeter]")
	told("the file that does not parse", "error: "+routing+":")
	if strings.Contains(s.output(), "note: "+routing+":") {
		t.Error("the file that does not parse is told twice")
	}

	if err := os.WriteFile(pods, []byte(`apiVersion: v1
kind: Pod
metadata: {name: ../../../escaped, namespace: hello}
spec: {containers: [{name: c, image: x}]}
---
apiVersion: v1
kind: Pod
metadata: {name: fine, namespace: hello}
spec:
  containers: [{name: ../../../escaped, image: x, volumeMounts: [{name: etc, mountPath: /etc}]}]
  volumes: [{name: etc, hostPath: {path: /etc}}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	told("the invalid name of a Pod", "error: "+pods+":3: Pod hello/../../../escaped: metadata.name: invalid name")
	told("the invalid name of a container", "error: "+pods+":6: Pod hello/fine: invalid name of a container \"../../../escaped\"")
	told("that volumes are not mounted", "note: "+pods+":6: Pod hello/fine: volumes are not mounted")
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*escaped*")); len(left) > 0 || strings.Contains(s.output(), "started ../") {
		t.Errorf("a Pod with an invalid name was run: %q", left)
	}
	list, err := exec.Command(pilotctlPath(), "--discovery", s.discovery(), "objects", "--all").CombinedOutput()
	if err != nil || strings.Contains(string(list), "escaped") {
		t.Errorf("%v:\n%s", err, list)
	}
}

// A file that does not parse is told once, before the Pods start.
func TestUpTellsABrokenFileOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hello")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(root, "samples/hello"))); err != nil {
		t.Fatal(err)
	}
	broken, routing := filepath.Join(dir, "broken.yaml"), filepath.Join(dir, "routing.yaml")
	if err := os.WriteFile(broken, []byte("a: ["), 0o600); err != nil {
		t.Fatal(err)
	}
	editFile(t, routing, "host: greeter, subset: v1", "host: greeter, subset: v9")
	s := upIn(t, dir)
	wait.Until(t, "the problems of objects are told", func() bool { return strings.Contains(s.output(), "warning: "+routing) })
	if before, _, _ := strings.Cut(s.output(), "starting pilot-discovery"); !strings.Contains(before, "error: "+broken+":1: the YAML does not parse") {
		t.Error("the file that does not parse is not told before the start")
	}
	editFile(t, routing, "subset: v9", "subset: v8")
	wait.Until(t, "the next problems are told", func() bool { return strings.Contains(s.output(), `subset "v8"`) })
	if n := strings.Count(s.output(), broken); n != 1 {
		t.Errorf("the file that does not parse is told %d times, want once", n)
	}
}

// processes are the command lines that contain a text.
func processes(t *testing.T, text string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, path := range paths {
		line, err := os.ReadFile(path)
		if err == nil && bytes.Contains(line, []byte(text)) {
			out = append(out, string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		}
	}
	return out
}

// A directory that says what a cluster has reported runs as it is written; a program that was not confirmed does not run.
func TestUpRunsPodsAsWritten(t *testing.T) {
	s, _ := up(t, "samples/bookshop")
	if got := in(t, "shopper-1", request("productpage", 9080)); !strings.Contains(got, `"service":"ratings"`) {
		t.Errorf("the product page answered %q", got)
	}
	if !regexp.MustCompile(`bookshop/legacy-1 +none`).MatchString(s.output()) {
		t.Error("legacy-1 has a proxy")
	}
	entry := regexp.MustCompile(`(http://\S+) +port 8080 of ingress-1`).FindStringSubmatch(s.output())
	if entry == nil {
		t.Fatal("the ingress gateway is not opened")
	}
	wait.Until(t, "the product page answers through the gateway", func() bool {
		res, err := http.Get(entry[1])
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		return err == nil && strings.Contains(string(text), `"peer":"spiffe://cluster.local/ns/bookshop/sa/ingress"`)
	})
	wait.Until(t, "the Secret that the gateway lacks is named", func() bool {
		return strings.Contains(s.output(), `kubernetes://bookshop-certificate`) && strings.Contains(s.output(), "there is no such Secret")
	})
	cmd := exec.Command(pilotctlPath(), "up", filepath.Join(root, "samples/hello"), "--exec", "greeter-v1=sleep 1000", "--bin", filepath.Dir(programs.Agent), "--envoy", programs.Envoy)
	out, err := cmd.CombinedOutput()
	var code *exec.ExitError
	if !errors.As(err, &code) || code.ExitCode() != 2 || !strings.Contains(string(out), "give --yes to run it without a question") {
		t.Errorf("without confirmation: %v\n%s", err, out)
	}
}

func editFile(t *testing.T, path string, pairs ...string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.NewReplacer(pairs...).Replace(string(text))
	if changed == string(text) {
		t.Fatalf("%s has none of %q", path, pairs)
	}
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %s", url, res.Status, err, text)
	}
	return string(text)
}
