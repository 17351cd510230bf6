package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/pilothouse/pilothouse/test/wait"
)

// execBound is the longest that a command of a test may take.
const execBound = time.Minute

// exec runs a shell command in a container and returns what it wrote.
func (c *cluster) exec(t *testing.T, pod, container, command string) (string, error) {
	t.Helper()
	var out wait.Output
	err := c.stream(t, pod, &corev1.PodExecOptions{Container: container, Command: []string{"/bin/sh", "-c", command}, Stdout: true, Stderr: true},
		remotecommand.StreamOptions{Stdout: &out, Stderr: &out}, false)
	return out.String(), err
}

// stream runs an exec, by WebSocket or by SPDY.
func (c *cluster) stream(t *testing.T, pod string, o *corev1.PodExecOptions, s remotecommand.StreamOptions, ws bool) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), execBound)
	defer cancel()
	req := c.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(c.namespace).Name(pod).SubResource("exec").VersionedParams(o, scheme.ParameterCodec)
	var executor remotecommand.Executor
	var err error
	if ws {
		executor, err = remotecommand.NewWebSocketExecutor(c.Config, http.MethodGet, req.URL().String())
	} else {
		executor, err = remotecommand.NewSPDYExecutor(c.Config, http.MethodPost, req.URL())
	}
	if err != nil {
		return err
	}
	return executor.StreamWithContext(ctx, s)
}

const streamPod = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: app
    image: pilothouse/app
    args: [-service=web, -http=127.0.0.1:9080]
    readinessProbe: {exec: {command: [/bin/sh, -c, "grep -q 2378 /proc/net/tcp"]}, periodSeconds: 1}
  - name: talk
    image: shell
    args: ["i=1; while [ $i -le 5 ]; do echo line $i; i=$((i+1)); done; while [ ! -f /tmp/go ]; do sleep 0.1; done; echo warning >&2; echo more; sleep 1000"]
`

func TestLogs(t *testing.T) {
	c := start(t, nil)
	c.apply(t, streamPod)
	c.running(t, "web")
	wait.NoError(t, "all lines", func() error {
		if got := c.logs(t, "web", "talk", corev1.PodLogOptions{}); !strings.Contains(got, "line 5") {
			return fmt.Errorf("so far %q", got)
		}
		return nil
	})
	if got := c.logs(t, "web", "talk", corev1.PodLogOptions{LimitBytes: new(int64(9))}); got != "line 1\nli" {
		t.Errorf("the first bytes are %q", got)
	}
	if got := c.logs(t, "web", "talk", corev1.PodLogOptions{TailLines: new(int64(2))}); strings.Count(got, "\n") != 2 {
		t.Errorf("the last lines are %q", got)
	}
	stamp, _, _ := strings.Cut(c.logs(t, "web", "talk", corev1.PodLogOptions{Timestamps: true}), " ")
	if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil {
		t.Errorf("a line begins with %q", stamp)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	follow, err := c.Client.CoreV1().Pods(c.namespace).GetLogs("web", &corev1.PodLogOptions{Container: "talk", Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Close()
	if _, err := c.exec(t, "web", "talk", "touch /tmp/go"); err != nil {
		t.Fatal(err)
	}
	var text string
	for buffer := make([]byte, 1024); !strings.Contains(text, "more\n") || !strings.Contains(text, "warning\n"); {
		n, err := follow.Read(buffer)
		if text += string(buffer[:n]); err != nil {
			t.Fatalf("the log that is followed ended after %q: %v", text, err)
		}
	}
	if _, err := c.Client.CoreV1().Pods(c.namespace).GetLogs("web", &corev1.PodLogOptions{Container: "talk", Previous: true}).DoRaw(t.Context()); err == nil {
		t.Error("a container that was started once has a previous log")
	}
}

func TestExec(t *testing.T) {
	c := start(t, nil)
	c.apply(t, streamPod)
	c.running(t, "web")
	for _, ws := range []bool{false, true} {
		var out, errs bytes.Buffer
		err := c.stream(t, "web", &corev1.PodExecOptions{Container: "talk", Command: []string{"/bin/sh", "-c", "cat; echo bad >&2; exit 7"}, Stdin: true, Stdout: true, Stderr: true},
			remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Stderr: &errs}, ws)
		var code utilexec.CodeExitError
		if !errors.As(err, &code) || code.Code != 7 || out.String() != "hello" || errs.String() != "bad\n" {
			t.Errorf("WebSocket %v: output %q, errors %q, error %v", ws, out.String(), errs.String(), err)
		}
	}
	if _, err := c.exec(t, "web", "none", "true"); err == nil {
		t.Error("a container that does not exist ran a command")
	}
	if err := c.stream(t, "web", &corev1.PodExecOptions{Container: "talk", Command: []string{"true"}, Stdout: true, TTY: true}, remotecommand.StreamOptions{Stdout: io.Discard, Tty: true}, false); err == nil {
		t.Error("exec with a terminal was accepted")
	}
}

// The server in the Pod listens on loopback only.
func TestPortForward(t *testing.T) {
	c := start(t, nil)
	c.apply(t, streamPod)
	c.running(t, "web")
	transport, upgrader, err := spdy.RoundTripperFor(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	url := c.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(c.namespace).Name("web").SubResource("portforward").URL()
	stop, ready := make(chan struct{}), make(chan struct{})
	defer close(stop)
	f, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url), []string{"127.0.0.1"}, []string{":9080", ":9"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || !strings.Contains(string(text), `"web"`) {
			t.Fatalf("answer %q, error %v", text, err)
		}
	}
	// A port where nobody listens is an error of that connection.
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", ports[1].Local))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The client gives up as a whole then.
	if err := <-done; !errors.Is(err, portforward.ErrLostConnectionToPod) {
		t.Errorf("after a connection to a closed port: %v", err)
	}
}
