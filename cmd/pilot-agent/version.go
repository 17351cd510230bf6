package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// version is set by the linker.
var version = "unknown"

// build is what is known of the program's making.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"golang_version"`
	// Status is Clean or Modified, as the working tree was.
	Status string `json:"status"`
}

func thisBuild() build {
	b := build{Version: version, Revision: "unknown", Go: runtime.Version(), Status: "Unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			b.Revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			b.Status = "Modified"
		case s.Key == "vcs.modified":
			b.Status = "Clean"
		}
	}
	return b
}

// String is the long form of one line. [agent C5]
func (b build) String() string { return b.Version + "-" + b.Revision + "-" + b.Status }

func readVersion(v *settings.Values) (short bool, output string) {
	return v.Bool("short"), v.Enum("output")
}

func newVersion() *cobra.Command {
	c := &cobra.Command{
		Use: "version",
		Example: `  pilot-agent version
  pilot-agent version -s`,
		Short: "Print the agent's version",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), nil, settings.AgentVersion)
			short, output := readVersion(v)
			if err := v.Err(); err != nil {
				return err
			}
			b := thisBuild()
			text, err := []byte(b.String()), error(nil)
			switch {
			case output == "json":
				text, err = json.MarshalIndent(map[string]build{"clientVersion": b}, "", "  ")
			case output == "yaml":
				text, err = yaml.Marshal(map[string]build{"clientVersion": b})
			case short:
				text = []byte(b.Version)
			}
			if err != nil {
				return fmt.Errorf("print the version: %w", err)
			}
			if n := len(text); n > 0 && text[n-1] == '\n' {
				text = text[:n-1]
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n", text)
			return err
		},
	}
	cli.Add(c, settings.AgentVersion)
	return c
}
