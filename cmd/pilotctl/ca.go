package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// caPage is the page with the state of the roots.
const caPage = "debug/ca"

// caStatus is what the page says.
type caStatus struct {
	Phase       string       `json:"phase"`
	Roots       []caRoot     `json:"roots"`
	Due         time.Time    `json:"due"`
	Why         string       `json:"why"`
	Distributed time.Time    `json:"distributed"`
	Deadline    time.Time    `json:"deadline"`
	Instances   []caInstance `json:"instances"`
	Problem     string       `json:"problem"`
}

type caRoot struct {
	SHA256   string    `json:"sha256"`
	Role     string    `json:"role"`
	NotAfter time.Time `json:"notAfter"`
	LastLeaf time.Time `json:"lastLeaf"`
	Serving  bool      `json:"serving"`
}

type caInstance struct {
	Connected int      `json:"connected"`
	Waiting   int      `json:"waiting"`
	Names     []string `json:"names"`
}

func newCA(f *flags) *cobra.Command {
	c := &cobra.Command{
		Use: "ca", Short: "Show or rotate the root of the mesh's CA", Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		&cobra.Command{
			Use: "status", Short: "Show which roots are trusted, which signs, and what a rotation waits for", Args: usage(cobra.NoArgs),
			RunE: func(c *cobra.Command, _ []string) error {
				var s caStatus
				text, err := fetchInto(c.Context(), f.discovery, caPage, nil, &s)
				if err != nil {
					return err
				}
				return printCA(c.OutOrStdout(), f, text, s)
			},
		},
		&cobra.Command{
			Use: "rotate", Short: "Begin a rotation of the root", Args: usage(cobra.NoArgs),
			Long: `Begin a rotation of the root.

A new root is made and distributed. It signs when every connected proxy has acknowledged it,
or when all certificates have ended that were issued before. The old root is trusted until
the last certificate that it has signed has ended. The command returns at once; pilotctl ca
status says how far the rotation is.`,
			RunE: func(c *cobra.Command, _ []string) error {
				var s caStatus
				text, err := post(c.Context(), f.discovery, caPage+"/rotate", nil, []byte("{}"), &s)
				if err != nil {
					return err
				}
				return printCA(c.OutOrStdout(), f, text, s)
			},
		})
	return c
}

// printCA prints a status, text being its JSON.
func printCA(w io.Writer, f *flags, text []byte, s caStatus) error {
	if f.output != "table" {
		return printJSON(w, f.output, text)
	}
	var rows [][]string
	for _, r := range s.Roots {
		serving := ""
		if r.Serving {
			serving = "yes"
		}
		rows = append(rows, []string{printable.Escape(r.SHA256[:min(len(r.SHA256), 16)]), printable.Escape(r.Role), instant(r.NotAfter), instant(r.LastLeaf), serving})
	}
	if err := printTable(w, []string{"ROOT", "ROLE", "ENDS", "LAST LEAF ENDS", "SERVES"}, rows); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nphase: %s\n", printable.Escape(s.Phase))
	if s.Problem != "" {
		fmt.Fprintf(w, "problem: %s\n", printable.EscapeLines(s.Problem, "    "))
	}
	if !s.Due.IsZero() {
		fmt.Fprintf(w, "next rotation: %s\n", instant(s.Due))
	}
	if s.Phase != "distributing" {
		return nil
	}
	connected, waiting, names := 0, 0, []string(nil)
	for _, i := range s.Instances {
		connected, waiting, names = connected+i.Connected, waiting+i.Waiting, append(names, i.Names...)
	}
	fmt.Fprintf(w, "reason: %s\n", printable.EscapeLines(s.Why, "    "))
	if s.Distributed.IsZero() {
		fmt.Fprintf(w, "waits for all %d instances of the control plane to distribute the new root\n", len(s.Instances))
		return nil
	}
	fmt.Fprintf(w, "the new root signs at %s at the latest\n", instant(s.Deadline))
	if waiting == 0 {
		_, err := fmt.Fprintf(w, "all %d connected proxies have acknowledged it\n", connected)
		return err
	}
	more := ""
	if n := waiting - len(names); n > 0 {
		more = " and " + strconv.Itoa(n) + " more"
	}
	_, err := fmt.Fprintf(w, "%d proxies have not acknowledged it: %s%s\n", waiting, printable.Escape(strings.Join(names, ", ")), more)
	return err
}

// instant formats a time; a zero time is empty.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
