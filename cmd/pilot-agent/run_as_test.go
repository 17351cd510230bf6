package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// An agent that is root to answer DNS on port 53 runs Envoy as the proxy's user, which
// reaches the agent's sockets, writes logs, binds ports below 1024 and restarts hot. [agent L13]
func TestEnvoyOfARootAgentWithDNSRunsAsTheProxysUser(t *testing.T) {
	plane := agenttest.NewPlane(t)
	// An address of its own: ports 53 and 443 of the others may be taken.
	address := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	l := tlsListener(t, "443")
	l.Address.GetSocketAddress().Address = address
	for _, path := range []string{"/dev/stdout", "./logs/access.log"} {
		l.AccessLog = append(l.AccessLog, &accesslogv3.AccessLog{Name: "file", ConfigType: &accesslogv3.AccessLog_TypedConfig{
			TypedConfig: packed(t, &filelogv3.FileAccessLog{Path: path}),
		}})
	}
	plane.Give(agenttest.ListenerType, map[string]proto.Message{"tls": l})
	plane.Start()
	a := agenttest.New(t, plane, "binaryPath: ./envoy\ndrainDuration: 1s",
		"PARENT_SHUTDOWN_DURATION=1s", "ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR="+address+":53")
	a.Cmd.Args = append(a.Cmd.Args, "--outlierLogPath=./outlier.log")
	copyFile(t, envoytest.Binary(t), filepath.Join(a.Dir, "envoy"))
	logs := filepath.Join(a.Dir, "logs")
	if err := errors.Join(os.Chmod(filepath.Dir(a.Dir), 0o755), os.Mkdir(logs, 0o700), os.Chown(logs, 1337, 1337)); err != nil {
		t.Fatal(err)
	}
	a.Start()
	for epoch := range 2 {
		agenttest.Until(t, "the proxy is ready", a.Ready)
		pid, err := a.Envoy()
		if err != nil {
			t.Fatal(err)
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"\nUid:\t1337\t1337\t1337\t1337\n", "\nGid:\t1337\t1337\t1337\t1337\n"} {
			if !strings.Contains(string(status), want) {
				t.Errorf("epoch %d: the status lacks %q:\n%s", epoch, want, status)
			}
		}
		// Its configuration and its certificate came over the agent's sockets.
		agenttest.Until(t, "port 443 is served with the certificate", func() error {
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
				MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, // the names do not matter here
			}}, Timeout: agenttest.Bound}
			resp, err := client.Get("https://" + net.JoinHostPort(address, "443") + "/healthz/ready")
			if err != nil {
				return err
			}
			return resp.Body.Close()
		})
		if epoch == 0 {
			var out strings.Builder
			if code := run(t.Context(), []string{"restart", "--statusPort", a.Status}, process{stdout: &out, stderr: &out}); code != 0 {
				t.Fatal(out.String())
			}
			awaitEpoch(t, a, 1)
		}
	}
	agenttest.Until(t, "the logs", func() error {
		text, err := os.ReadFile(filepath.Join(logs, "access.log"))
		if err == nil && (len(text) == 0 || !strings.Contains(a.Output(), string(text[:20]))) {
			err = fmt.Errorf("the file has %d bytes, and the output not the same", len(text))
		}
		return err
	})
	st, err := os.Stat(filepath.Join(a.Dir, "outlier.log"))
	if err != nil || st.Sys().(*syscall.Stat_t).Uid != 1337 {
		t.Errorf("the log of ejected endpoints: %v, %v", st, err)
	}
	if out := a.Output(); strings.Contains(out, "a plain restart was needed") || strings.Contains(out, "hot restarts are off") {
		t.Error("the restart was not a hot one")
	}
	a.Stop()
	if code := a.Wait(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	for _, id := range between(a.Output(), "--base-id ", " ") {
		if left, _ := filepath.Glob("/dev/shm/*_" + id + "*"); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// Under TPROXY Envoy needs CAP_NET_ADMIN and stays root.
func TestEnvoyOfTPROXYStaysRoot(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	address := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	a := agenttest.New(t, plane, "", "ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR="+address+":53", "ISTIO_META_INTERCEPTION_MODE=TPROXY")
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	pid, err := a.Envoy()
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil || st.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("Envoy is not root's: %v", err)
	}
}

// A folder that Envoy's user cannot reach ends the start, and the error says what to do.
func TestAFolderThatEnvoysUserCannotReach(t *testing.T) {
	plane := agenttest.NewPlane(t)
	address := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	a := agenttest.New(t, plane, "configPath: ./closed/proxy", "ISTIO_META_DNS_CAPTURE=true", "DNS_PROXY_ADDR="+address+":53")
	if err := errors.Join(os.Chmod(filepath.Dir(a.Dir), 0o755), os.Mkdir(filepath.Join(a.Dir, "closed"), 0o700)); err != nil {
		t.Fatal(err)
	}
	a.Start()
	if code := a.Wait(); code != 255 || !strings.Contains(a.Output(), "/closed/proxy: it cannot pass "+filepath.Join(a.Dir, "closed: ")) {
		t.Errorf("exit code %d, want 255 and the reason", code)
	}
}

// between returns what stands between two texts, each time.
func between(text, from, to string) (out []string) {
	for {
		_, after, ok := strings.Cut(text, from)
		if !ok {
			return out
		}
		var word string
		word, text, _ = strings.Cut(after, to)
		out = append(out, word)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	if os.Link(from, to) == nil {
		return
	}
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(dst, src); err != nil {
		t.Fatal(err)
	}
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
}
