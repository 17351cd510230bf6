package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/agent/logging"
	"github.com/pilothouse/pilothouse/internal/logline"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// logFlags are the logging flags that every command takes. [agent F12]
type logFlags struct {
	json    bool
	levels  string
	targets []string
	repeat  time.Duration
}

// readLog reads settings.AgentLog.
func readLog(v *settings.Values) *logFlags {
	return &logFlags{json: v.Bool("log_as_json"), levels: v.Text("log_output_level"), targets: v.List("log_target"), repeat: v.Duration("log_repeat_period")}
}

// logger makes the logger that the flags ask for, with its levels. Files are opened for the rest of the
// process's life.
func (l *logFlags) logger(s process) (*slog.Logger, *logging.Levels, error) {
	levels, err := logging.ParseLevels(l.levels)
	if err != nil {
		return nil, nil, fmt.Errorf("log_output_level %w", err)
	}
	var outs []io.Writer
	for _, t := range l.targets {
		switch t {
		case "stdout":
			outs = append(outs, s.stdout)
		case "stderr":
			outs = append(outs, s.stderr)
		default:
			f, err := os.OpenFile(t, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				return nil, nil, fmt.Errorf("open log target: %w", err)
			}
			outs = append(outs, f)
		}
	}
	out := io.Discard
	switch len(outs) {
	case 0:
	case 1:
		out = outs[0]
	default:
		out = io.MultiWriter(outs...)
	}
	h := logline.Text(out, logline.Options{})
	if l.json {
		h = logline.JSON(out, logline.Options{})
	}
	if l.repeat > 0 {
		h = logging.Limit(h, l.repeat)
	}
	return slog.New(levels.Handler(h)), levels, nil
}

func readLogLevel(v *settings.Values) (statusPort int) { return v.Int("statusPort") }

// newLogLevel prints or changes what the agent that runs logs.
func newLogLevel() *cobra.Command {
	c := &cobra.Command{
		Use:   "log-level [SCOPE:LEVEL,...]",
		Short: "Print or change what the agent that runs logs",
		Long: `Print the least level that the agent logs of each scope, or change it until the agent ends.

A level is debug, info, warn, error or none. A level without a scope, or of the scope default, is that of the scopes that
have none of their own; all:LEVEL is that of all scopes. The start has --log_output_level. Envoy's own
levels are changed by its admin interface: pilot-agent request POST '/logging?level=debug'.`,
		Example: "  pilot-agent log-level\n  pilot-agent log-level xdsproxy:debug,dns:none",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			v := cli.Read(c.Flags(), nil, settings.AgentLogLevel)
			port := readLogLevel(v)
			if err := v.Err(); err != nil {
				return err
			}
			method, body := http.MethodGet, ""
			if len(args) > 0 {
				method, body = http.MethodPost, args[0]
			}
			text, err := askStatusPort(c.Context(), port, method, "/debug/log-level", body)
			if err != nil {
				return err
			}
			return printLevels(c.OutOrStdout(), text)
		},
	}
	cli.Add(c, settings.AgentLogLevel)
	return c
}

// printLevels prints lines of scope:level.
func printLevels(w io.Writer, text string) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(out, "SCOPE\tLEVEL")
	for line := range strings.Lines(text) {
		scope, level, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			return fmt.Errorf("print the levels: the answer is not that of pilot-agent: %.100q", text)
		}
		_, _ = fmt.Fprintf(out, "%s\t%s\n", scope, level)
	}
	return out.Flush()
}
