package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/agent"
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/status"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// agentPage is /debug/status.
type agentPage struct {
	status.Verdict
	Facts  status.Facts `json:"facts"`
	Detail agent.Detail `json:"detail"`
	// Configuration is what Envoy's own statistics say of its clusters and listeners; nil if it did not answer.
	Configuration []configuration `json:"configuration,omitempty"`
}

// configuration is what Envoy has of one type.
type configuration struct {
	Type    string    `json:"type"`
	Version string    `json:"version,omitempty"`
	Updated time.Time `json:"updated,omitzero"`
}

func readStatus(v *settings.Values) (statusPort int, output string) {
	return v.Int("statusPort"), v.Enum("output")
}

// newStatus prints the state of the agent that runs. Its exit code is 0 if the proxy is ready.
func newStatus() *cobra.Command {
	c := &cobra.Command{
		Use: "status",
		Example: `  pilot-agent status
  kubectl exec web-1 -c istio-proxy -- pilot-agent status -o json`,
		Short: "Print the state of the agent that runs: identity, configuration, Envoys, capture, DNS",
		Long: `Print the state of the agent that runs: its identity and the certificate's end, the configuration and
its age, the Envoys, the rules of capture, DNS, and the streams to the control plane.

The exit code is 0 if the proxy is ready, else 255. pilot-agent doctor finds out why it is not.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), nil, settings.AgentStatus)
			port, output := readStatus(v)
			if err := v.Err(); err != nil {
				return err
			}
			page, err := askAgent(c.Context(), port)
			if err != nil {
				return err
			}
			page.Configuration = askConfiguration(c.Context(), page.Detail.Admin)
			if output == "json" {
				enc := json.NewEncoder(c.OutOrStdout())
				enc.SetIndent("", "  ")
				err = enc.Encode(page)
			} else {
				err = printStatus(c.OutOrStdout(), page, time.Now())
			}
			switch {
			case err != nil:
				return fmt.Errorf("print the status: %w", err)
			case !page.Ready:
				return fmt.Errorf("not ready: %s", page.Reason)
			}
			return nil
		},
	}
	cli.Add(c, settings.AgentStatus)
	return c
}

// askAgent asks the agent at a status port for its state.
func askAgent(ctx context.Context, port int) (*agentPage, error) {
	text, err := askStatusPort(ctx, port, http.MethodGet, "/debug/status", "")
	if err != nil {
		return nil, err
	}
	page := &agentPage{}
	if err := json.Unmarshal([]byte(text), page); err != nil || page.Detail.Node == "" {
		return nil, fmt.Errorf("ask for the state: the answer of port %d is not that of the status port of pilot-agent", port)
	}
	return page, nil
}

// askConfiguration asks Envoy which configuration it has. Without an answer it is nil: the agent's state says whether
// Envoy runs.
func askConfiguration(ctx context.Context, admin string) []configuration {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	filter := `^(cluster_manager\.cds|listener_manager\.lds)\.(update_time|version_text)$`
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/stats?filter="+strings.ReplaceAll(filter, `\`, "%5C"), http.NoBody)
	if err != nil {
		return nil
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil
	}
	return configurations(string(text))
}

// configurations reads lines of statistics, name: value.
func configurations(text string) []configuration {
	out := []configuration{{Type: "clusters"}, {Type: "listeners"}}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		c := &out[0]
		if strings.HasPrefix(name, "listener_manager.") {
			c = &out[1]
		}
		switch {
		case strings.HasSuffix(name, ".version_text"):
			c.Version = strings.Trim(value, `"`)
		case strings.HasSuffix(name, ".update_time"):
			if ms, err := strconv.ParseInt(value, 10, 64); err == nil && ms > 0 {
				c.Updated = time.UnixMilli(ms)
			}
		}
	}
	return out
}

// printStatus prints a page as lines of a name and a text.
func printStatus(w io.Writer, p *agentPage, now time.Time) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(out, "%s\t%s\n", name, printable.Escape(fmt.Sprintf(format, args...)))
	}
	d := &p.Detail
	if p.Ready {
		line("ready", "yes")
	} else {
		line("ready", "no: %s", p.Reason)
	}
	line("agent", "pid %d, version %s, started %s", d.PID, d.Version, span(d.Started, now))
	line("node", "%s", d.Node)
	printHeld(line, d, now)
	if d.Connected {
		line("discovery", "%s, connected since %s, streams %d", d.Discovery, span(d.Since, now), d.Streams)
	} else {
		text := "not connected"
		if !d.Since.IsZero() {
			text += " since " + span(d.Since, now)
		}
		if problem := p.Facts.Upstream.Problem; problem != "" {
			text += ": " + problem
		}
		line("discovery", "%s, %s", d.Discovery, text)
	}
	printCopy(line, d, now)
	line("messages", "%d requests, %d responses, %d refused", d.Requests, d.Responses, d.Refused)
	printConfiguration(line, p, now)
	printEpochs(line, d, now)
	switch c := d.Capture; {
	case c == nil:
		line("capture", "rules are not kept in force by this agent")
	case c.Problem != "":
		line("capture", "%s: %s", c.Backend, c.Problem)
	default:
		line("capture", "%s, in force %s, restored %d times", c.Backend, span(c.Checked, now), c.Restored)
		if c.Restored > 0 {
			line("", "the last time %s: %s", span(c.Last, now), c.Found)
		}
	}
	if n := d.DNS; n == nil {
		line("dns", "not captured")
	} else {
		line("dns", "%s, %d queries, %d answered, %d forwarded, %d without a response", n.Address, n.Queries, n.Answered, n.Upstream, n.Failures)
		switch names := n.Names; {
		case names.Received.IsZero():
			line("", "no names of the mesh yet: all queries are forwarded")
		case names.Saved:
			line("", "%d names of the mesh, saved %s by an earlier agent; discovery has sent none yet", names.Hosts, span(names.Received, now))
		default:
			line("", "%d names of the mesh, received %s", names.Hosts, span(names.Received, now))
		}
		if p := n.Names.Problem; p != "" {
			line("", "not saved for the next agent: %s", p)
		}
	}
	for _, problem := range p.Facts.Files {
		line("file", "%s", problem)
	}
	return out.Flush()
}

// printCopy prints the copy of the configuration.
func printCopy(line printLine, d *agent.Detail, now time.Time) {
	switch c := d.Copy; {
	case c == nil:
		line("copy", "the configuration is not kept")
	case c.Serving:
		line("copy", "%s, of %s, serves Envoy while discovery is away", c.Path, span(c.Confirmed, now))
	case c.Confirmed.IsZero() && c.Problem == "":
		line("copy", "%s, none yet", c.Path)
	case c.Confirmed.IsZero():
		line("copy", "none: %s", c.Problem)
	default:
		text := fmt.Sprintf("%s, %d resources, %d bytes, of %s", c.Path, c.Resources, c.Bytes, span(c.Confirmed, now))
		if c.Problem != "" {
			text += ": " + c.Problem
		}
		line("copy", "%s", text)
	}
}

type printLine = func(name, format string, args ...any)

// printHeld prints the identity. All of it is printed by pilot-agent identity.
func printHeld(line printLine, d *agent.Detail, now time.Time) {
	switch h := d.Certificate.Held; {
	case h == nil && d.Certificate.Problem != "":
		line("identity", "%s, no certificate: %s", d.Identity, d.Certificate.Problem)
	case h == nil:
		line("identity", "%s, no certificate", d.Identity)
	default:
		line("identity", "%s, certificate until %s", h.ID, span(h.NotAfter, now))
		if d.Certificate.Problem != "" {
			line("", "not renewed: %s", d.Certificate.Problem)
		}
	}
}

func printConfiguration(line printLine, p *agentPage, now time.Time) {
	name := "configuration"
	if len(p.Configuration) == 0 {
		line(name, "not known: Envoy does not answer at %s", p.Detail.Admin)
	}
	for _, c := range p.Configuration {
		switch {
		case c.Updated.IsZero():
			line(name, "%s: none yet", c.Type)
		case c.Version == "":
			line(name, "%s: accepted %s", c.Type, span(c.Updated, now))
		default:
			line(name, "%s: version %s, accepted %s", c.Type, c.Version, span(c.Updated, now))
		}
		name = ""
	}
	if n := len(p.Detail.Refusals); n > 0 {
		last := p.Detail.Refusals[n-1]
		line("refused", "%s at %s: %s", last.Type, span(last.At, now), last.Message)
	}
}

func printEpochs(line printLine, d *agent.Detail, now time.Time) {
	name := "envoy"
	for _, e := range d.Restarts.Epochs {
		text := fmt.Sprintf("epoch %d, %s", e.Number, e.Phase)
		if i := slices.IndexFunc(d.Restarts.Processes, func(p envoy.Process) bool { return p.Epoch == e.Number }); i >= 0 {
			text += fmt.Sprintf(", pid %d, started %s", d.Restarts.Processes[i].PID, span(d.Restarts.Processes[i].Started, now))
		}
		line(name, "%s", text)
		name = ""
	}
	if name != "" {
		line(name, "none runs")
	}
	if w := d.Restarts.Waiting; w != "" {
		line("", "the next one waits: %s", w)
	}
	if len(d.Restarts.ColdChanges) > 0 {
		line("", "changed, in effect with the next agent: %s", strings.Join(d.Restarts.ColdChanges, ", "))
	}
}
