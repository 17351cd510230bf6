package envoytest

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pilothouse/pilothouse/test/wait"
)

// Start runs an Envoy with the bootstrap until the test ends and returns, once it is
// live, the address of each of its listeners by name. Listeners may ask for port 0; the
// admin interface is added.
func Start(t testing.TB, b *bootstrapv3.Bootstrap) map[string]string {
	t.Helper()
	dir := t.TempDir()
	b.Admin = &bootstrapv3.Admin{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0},
	}}}}
	config, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	file, adminFile := filepath.Join(dir, "bootstrap.json"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), Binary(t), "-c", file, "--admin-address-path", adminFile, "--disable-hot-restart", "--concurrency", "1", "-l", "warning")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if out, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("envoy:\n%s", out)
		}
	})
	admin := ""
	wait.Until(t, "Envoy is live", func() bool {
		if a, err := os.ReadFile(adminFile); err == nil {
			admin = strings.TrimSpace(string(a))
		}
		return admin != "" && strings.Contains(get("http://"+admin+"/ready"), "LIVE")
	})
	return listeners(t, get("http://"+admin+"/listeners?format=json"))
}

func listeners(t testing.TB, body string) map[string]string {
	t.Helper()
	var answer struct {
		Statuses []struct {
			Name  string `json:"name"`
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    uint32 `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("listeners of Envoy: %v in %q", err, body)
	}
	out := map[string]string{}
	for _, s := range answer.Statuses {
		out[s.Name] = net.JoinHostPort(s.Local.Socket.Address, strconv.FormatUint(uint64(s.Local.Socket.Port), 10))
	}
	return out
}

// get is "" where there is no answer yet.
func get(url string) string {
	resp, err := http.Get(url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}
