package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/agent"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

func readIdentity(v *settings.Values) (statusPort int, output string) {
	return v.Int("statusPort"), v.Enum("output")
}

// newIdentity prints the certificate of the agent that runs. Its exit code is 0 if that is valid.
func newIdentity() *cobra.Command {
	c := &cobra.Command{
		Use: "identity",
		Example: `  pilot-agent identity
  kubectl exec web-1 -c istio-proxy -- pilot-agent identity -o json`,
		Short: "Print which certificate the agent holds, from where, until when, and what comes next",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), nil, settings.AgentIdentity)
			port, output := readIdentity(v)
			if err := v.Err(); err != nil {
				return err
			}
			r, err := askIdentity(c.Context(), port)
			if err != nil {
				return err
			}
			if output == "json" {
				enc := json.NewEncoder(c.OutOrStdout())
				enc.SetIndent("", "  ")
				err = enc.Encode(r)
			} else {
				err = printIdentity(c.OutOrStdout(), r, time.Now())
			}
			if err != nil {
				return fmt.Errorf("print the identity: %w", err)
			}
			return usable(r, time.Now())
		},
	}
	cli.Add(c, settings.AgentIdentity)
	return c
}

func askIdentity(ctx context.Context, port int) (*agent.IdentityReport, error) {
	text, err := askStatusPort(ctx, port, http.MethodGet, "/debug/status", "")
	if err != nil {
		return nil, err
	}
	var page struct {
		Detail struct {
			Certificate *agent.IdentityReport `json:"certificate"`
		} `json:"detail"`
	}
	if err := json.Unmarshal([]byte(text), &page); err != nil {
		return nil, fmt.Errorf("read the answer of port %d: %w", port, err)
	}
	if page.Detail.Certificate == nil {
		return nil, fmt.Errorf("ask for the identity: the answer of port %d has no certificate: want the status port of pilot-agent", port)
	}
	return page.Detail.Certificate, nil
}

// usable returns an error unless the certificate is valid at a time.
func usable(r *agent.IdentityReport, now time.Time) error {
	switch {
	case r.Held == nil:
		return errors.New("the agent holds no certificate")
	case !now.Before(r.Held.NotAfter):
		return fmt.Errorf("the certificate expired at %s", moment(r.Held.NotAfter))
	}
	return nil
}

func moment(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// span is a moment with its distance from now.
func span(t, now time.Time) string {
	d := t.Sub(now).Round(time.Second)
	if d <= 0 {
		return fmt.Sprintf("%s (%s ago)", moment(t), -d)
	}
	return fmt.Sprintf("%s (in %s)", moment(t), d)
}

// printIdentity prints a report as lines of a name and a text.
func printIdentity(w io.Writer, r *agent.IdentityReport, now time.Time) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(out, "%s\t%s\n", name, printable.Escape(fmt.Sprintf(format, args...)))
	}
	if h := r.Held; h == nil {
		line("certificate", "none yet")
	} else {
		line("identity", "%s", h.ID)
		line("certificate", "serial %s, key %s, version %s", h.Serial, h.KeyKind, h.Version)
		line("valid", "from %s until %s", moment(h.NotBefore), span(h.NotAfter, now))
		if h.EndsWithIssuer {
			line("", "it ends with a certificate that signed it: no renewal can last longer")
		}
		if now.Before(h.NotBefore) {
			line("", "it is not valid yet: the clock of this machine or of the CA is wrong")
		}
		for _, c := range h.Intermediates {
			line("signed by", "%s, until %s, SHA-256 %.16s", c.Subject, moment(c.NotAfter), c.SHA256)
		}
		for _, c := range h.Roots {
			line("root", "%s, until %s, SHA-256 %.16s", c.Subject, moment(c.NotAfter), c.SHA256)
		}
	}
	line("source", "%s", strings.Join(origin(r, now), ", "))
	switch {
	case r.Problem != "" && !r.Next.IsZero():
		line("next", "attempt %d at %s, because %s", r.Failures+1, span(r.Next, now), r.Problem)
	case r.Problem != "":
		line("next", "it is read again when a file changes; the last time: %s", r.Problem)
	case !r.Next.IsZero():
		line("next", "renewal at %s", span(r.Next, now))
	default:
		line("next", "what the source replaces it by")
	}
	if t := r.Token; t != nil {
		switch {
		case t.Problem != "":
			line("token", "%s: %s", t.Source, t.Problem)
		case t.NotAfter.IsZero():
			line("token", "%s", t.Source)
		default:
			line("token", "%s, until %s", t.Source, span(t.NotAfter, now))
		}
	}
	if c := r.Copy; c != nil {
		switch {
		case c.Problem != "":
			line("copy", "%s: not written: %s", c.Path, c.Problem)
		case c.Written.IsZero():
			line("copy", "%s, not written by this agent yet", c.Path)
		default:
			line("copy", "%s, written %s", c.Path, span(c.Written, now))
		}
	}
	return out.Flush()
}

// origin says where the certificate came from.
func origin(r *agent.IdentityReport, now time.Time) []string {
	parts := []string{r.Source}
	if r.Held != nil && !r.Held.Received.IsZero() {
		parts = append(parts, "requested "+span(r.Held.Received, now))
	}
	if r.Held != nil && r.Held.Restored {
		parts = append(parts, "by an earlier agent, whose copy is used")
	}
	return parts
}
