package meshup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// ports are the ports of one of the app's flags, -http or -tcp.
func (p PodSpec) ports(flag string) []string {
	var out []string
	for _, a := range p.Args {
		list, ok := strings.CutPrefix(a, flag+"=")
		if !ok {
			continue
		}
		for addr := range strings.SplitSeq(list, ",") {
			out = append(out, addr[strings.LastIndexByte(addr, ':')+1:])
		}
	}
	return out
}

// Dialer makes connections from a Pod or to one.
type Dialer interface {
	Dial(ctx context.Context, network, addr string) (net.Conn, error)
}

// Inspector asks the programs of a Pod on its loopback, past its capture. Its methods may be called from several goroutines.
type Inspector struct {
	// Name is the Pod's, for errors.
	Name string
	// From makes connections from the Pod.
	From Dialer
	// AppPort is the app's first HTTP port, "" if it has none.
	AppPort string
	// OnlyIPv6 is set if the Pod has no IPv4 address but that of loopback.
	OnlyIPv6 bool
	// AgentPID finds the process of the agent.
	AgentPID func() (int, error)
}

// Ready probes the Pod as the kubelet does. It returns nil if agent and Envoy are ready.
func (p *Pod) Ready(ctx context.Context) error {
	port := mesh.HealthPort
	if p.Spec.Proxyless() {
		port = mesh.StatusPort // the other one is Envoy's
	}
	_, err := p.mesh.Get(ctx, p.mesh.Net.Host(), fmt.Sprintf("http://%s/healthz/ready", netip.AddrPortFrom(p.Spec.IP, uint16(port))))
	return err
}

// Admin requests a page of Envoy's admin interface; page begins with a slash.
func (p Inspector) Admin(ctx context.Context, page string) ([]byte, error) {
	loopback := "127.0.0.1"
	if p.OnlyIPv6 {
		loopback = "[::1]"
	}
	return Get(ctx, p.From, fmt.Sprintf("http://%s:%d%s", loopback, mesh.AdminPort, page))
}

// Stats reads Envoy's counters and gauges whose name matches a regular expression.
func (p Inspector) Stats(ctx context.Context, filter string) (map[string]int64, error) {
	text, err := p.Admin(ctx, "/stats?format=json&filter="+filter)
	if err != nil {
		return nil, fmt.Errorf("read the statistics of %s: %w", p.Name, err)
	}
	var page struct {
		Stats []struct {
			Name  string          `json:"name"`
			Value json.RawMessage `json:"value"`
		} `json:"stats"`
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return nil, fmt.Errorf("read the statistics of %s: %w", p.Name, err)
	}
	out := map[string]int64{}
	for _, s := range page.Stats {
		// Histograms have no name, and texts no number.
		if n, err := strconv.ParseInt(string(s.Value), 10, 64); err == nil && s.Name != "" {
			out[s.Name] = n
		}
	}
	return out, nil
}

// Served is the number of HTTP requests that the app has answered. Reading it bypasses the proxy
// and is not counted.
func (p Inspector) Served(ctx context.Context) (int64, error) {
	if p.AppPort == "" {
		return 0, fmt.Errorf("read the counters of the app of %s: it has no HTTP port", p.Name)
	}
	text, err := Get(ctx, p.From, "http://127.0.0.1:"+p.AppPort+"/stats")
	if err != nil {
		return 0, fmt.Errorf("read the counters of the app of %s: %w", p.Name, err)
	}
	var n struct{ HTTP int64 }
	if err := json.Unmarshal(text, &n); err != nil {
		return 0, fmt.Errorf("read the counters of the app of %s: %w", p.Name, err)
	}
	return n.HTTP, nil
}

// CertificateEnds is the time when the first of Envoy's certificates expires.
func (p Inspector) CertificateEnds(ctx context.Context) (time.Time, error) {
	text, err := p.Admin(ctx, "/certs")
	if err != nil {
		return time.Time{}, fmt.Errorf("read the certificates of %s: %w", p.Name, err)
	}
	var page struct {
		Certificates []struct {
			Chain []struct {
				Expiration time.Time `json:"expiration_time"`
			} `json:"cert_chain"`
		} `json:"certificates"`
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return time.Time{}, fmt.Errorf("read the certificates of %s: %w", p.Name, err)
	}
	var first time.Time
	for _, c := range page.Certificates {
		if len(c.Chain) > 0 && (first.IsZero() || c.Chain[0].Expiration.Before(first)) {
			first = c.Chain[0].Expiration
		}
	}
	if first.IsZero() {
		return first, fmt.Errorf("read the certificates of %s: Envoy has none", p.Name)
	}
	return first, nil
}

// EnvoyPID finds the newest Envoy that the Pod's agent has started.
func (p Inspector) EnvoyPID() (int, error) {
	agent, err := p.AgentPID()
	if err != nil {
		return 0, fmt.Errorf("find Envoy of %s: %w", p.Name, err)
	}
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", agent))
	if err != nil {
		return 0, fmt.Errorf("find Envoy of %s: %w", p.Name, err)
	}
	found := 0
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("find Envoy of %s: %w", p.Name, err)
		}
		for child := range strings.FieldsSeq(string(text)) {
			pid, _ := strconv.Atoi(child)
			exe, _ := os.Readlink("/proc/" + child + "/exe")
			if filepath.Base(exe) == "envoy" && pid > found {
				found = pid
			}
		}
	}
	if found == 0 {
		return 0, fmt.Errorf("find Envoy of %s: process %d, its agent, has no such child", p.Name, agent)
	}
	return found, nil
}

// KillEnvoy sends SIGKILL to the Pod's Envoy and returns its process id.
func (p Inspector) KillEnvoy() (int, error) {
	pid, err := p.EnvoyPID()
	if err != nil {
		return 0, err
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return pid, fmt.Errorf("kill Envoy %d of %s: %w", pid, p.Name, err)
	}
	return pid, nil
}
