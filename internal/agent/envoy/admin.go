package envoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// adminTimeout bounds every call but a scrape [agent H4].
const adminTimeout = 3 * time.Second

// maxAnswer is how much of an answer is read, in bytes.
const maxAnswer = 8 << 20

// Admin talks to Envoy's admin interface. It may be used by many goroutines.
type Admin struct {
	base   string
	client *http.Client
}

// NewAdmin makes a client for the admin interface at address (host:port, or the path of a
// Unix socket). Connections are not kept: in a hot restart the interface changes hands.
func NewAdmin(address string) *Admin {
	network, base := "tcp", "http://"+address
	if strings.HasPrefix(address, "/") {
		network, base = "unix", "http://envoy-admin"
	}
	dial := net.Dialer{Timeout: adminTimeout}
	return &Admin{base: base, client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial.DialContext(ctx, network, address)
		},
		DisableKeepAlives: true,
		// Questions are short, and each has a connection of its own.
		ReadBufferSize: 1 << 10, WriteBufferSize: 512,
	}}}
}

// ServerInfo is what matters of /server_info.
type ServerInfo struct {
	// State is LIVE, DRAINING, PRE_INITIALIZING or INITIALIZING.
	State string `json:"state"`
	// Version is revision/version/build, as Envoy says it.
	Version string `json:"version"`
	// Options are those of the command line that the agent asks for.
	Options struct {
		RestartEpoch int `json:"restart_epoch"`
		Concurrency  int `json:"concurrency"`
		// BaseID is that of its shared memory, which no two agents have in common.
		BaseID int `json:"base_id,string"`
	} `json:"command_line_options"`
}

// ServerInfo asks who serves the interface and how far it is.
func (a *Admin) ServerInfo(ctx context.Context) (ServerInfo, error) {
	var info ServerInfo
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	resp, err := a.send(ctx, http.MethodGet, "/server_info")
	if err != nil {
		return info, err
	}
	defer resp.Body.Close()
	if err := info.read(json.NewDecoder(io.LimitReader(resp.Body, maxAnswer))); err != nil {
		return info, fmt.Errorf("read Envoy's /server_info: %w", err)
	}
	return info, nil
}

// read takes what it needs and leaves the rest unread: what follows is the node with all
// extensions of Envoy, a hundred kilobytes of garbage for each poll.
func (i *ServerInfo) read(d *json.Decoder) error {
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(errors.New("no JSON object"), err)
	}
	fields := map[string]any{"state": &i.State, "version": &i.Version, "command_line_options": &i.Options}
	for len(fields) > 0 && d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := name.(string)
		into := fields[key]
		delete(fields, key)
		if into == nil {
			into = new(json.RawMessage)
		}
		if err := d.Decode(into); err != nil {
			return err
		}
	}
	if len(fields) == 0 {
		return nil
	}
	_, err := d.Token() // the end of the object, if this is a whole one
	return err
}

// HotRestartVersion asks the Envoy that runs, see the function of that name.
func (a *Admin) HotRestartVersion(ctx context.Context) (string, error) {
	body, err := a.ask(ctx, http.MethodGet, "/hot_restart_version")
	return strings.TrimSpace(string(body)), err
}

// SetLogLevel changes the levels of all loggers to level, then of single ones by
// components ("misc:error,upstream:debug", may be empty).
func (a *Admin) SetLogLevel(ctx context.Context, level, components string) error {
	if _, err := a.ask(ctx, http.MethodPost, "/logging?level="+url.QueryEscape(level)); err != nil {
		return err
	}
	if components == "" {
		return nil
	}
	_, err := a.ask(ctx, http.MethodPost, "/logging?paths="+url.QueryEscape(components))
	return err
}

// Ready returns nil when Envoy says that it is live.
func (a *Admin) Ready(ctx context.Context) error {
	_, err := a.ask(ctx, http.MethodGet, "/ready")
	return err
}

// DrainListeners tells Envoy to send its clients away gracefully while it goes on accepting,
// and not to end by itself when that is over: the agent owns the end. With inboundOnly only
// listeners marked as inbound are drained, and the workload's own calls go on.
func (a *Admin) DrainListeners(ctx context.Context, inboundOnly bool) error {
	path := "/drain_listeners?graceful&skip_exit"
	if inboundOnly {
		path = "/drain_listeners?inboundonly&graceful&skip_exit"
	}
	_, err := a.ask(ctx, http.MethodPost, path)
	return err
}

// QuitQuitQuit tells Envoy to end at once. Never use it on an epoch above 0 that is not live:
// it would end its parent with it.
func (a *Admin) QuitQuitQuit(ctx context.Context) error {
	_, err := a.ask(ctx, http.MethodPost, "/quitquitquit")
	return err
}

// Stats returns the counters and gauges whose names match the regular expression (RE2),
// those that were never set included.
func (a *Admin) Stats(ctx context.Context, filter string) (map[string]uint64, error) {
	body, err := a.ask(ctx, http.MethodGet, "/stats?filter="+url.QueryEscape(filter))
	if err != nil {
		return nil, err
	}
	return parseStats(string(body)), nil
}

// Scrape copies the metrics in Prometheus' text format to w. query is Envoy's ("usedonly",
// "filter=…"), raw, and may be empty. Only ctx bounds it.
func (a *Admin) Scrape(ctx context.Context, query string, w io.Writer) error {
	resp, err := a.send(ctx, http.MethodGet, "/stats/prometheus?"+query)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("read Envoy's /stats/prometheus: %w", err)
	}
	return nil
}

// ask sends a request and reads the whole answer, at most maxAnswer of it, within the admin timeout.
func (a *Admin) ask(ctx context.Context, method, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	resp, err := a.send(ctx, method, path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read Envoy's %s: %w", path, err)
	}
	return body, nil
}

// send returns the answer if its status is 200.
func (a *Admin) send(ctx context.Context, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask Envoy for %s: %w", path, err)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask Envoy: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		resp.Body.Close()
		return nil, &statusError{path, resp.Status, strings.TrimSpace(string(text))}
	}
	return resp, nil
}

// statusError is an answer that is not 200.
type statusError struct{ path, status, text string }

func (e *statusError) Error() string {
	return "ask Envoy for " + e.path + ": " + e.status + " " + e.text
}

// parseStats reads lines of "name: number"; others (histograms, text) are left out.
func parseStats(text string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			out[name] = n
		}
	}
	return out
}

// activeConnections is the filter of the stats that countConnections reads.
const activeConnections = `downstream_cx_active$`

// countConnections adds up the connections of the workload's listeners [agent L8]:
// not those of single workers (counted in their listener), of internal listeners, of admin,
// nor of the listeners on the ports to ignore (probes and metrics).
func countConnections(stats map[string]uint64, ignore []int) int {
	sum := 0
	for name, n := range stats {
		address, ok := strings.CutPrefix(name, "listener.")
		if !ok || strings.Contains(name, "worker_") || strings.HasPrefix(address, "envoy_internal_") {
			continue
		}
		address, ok = strings.CutSuffix(address, ".downstream_cx_active")
		if !ok || address == "admin" || strings.HasPrefix(address, "admin.") {
			continue
		}
		_, port, _ := strings.Cut(address[max(0, strings.LastIndexByte(address, '_')):], "_")
		ignored := false
		for _, p := range ignore {
			ignored = ignored || port == strconv.Itoa(p)
		}
		if !ignored {
			sum += int(n)
		}
	}
	return sum
}
