package main

import (
	"encoding/json"
	"fmt"
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
	PluggedIn   bool         `json:"pluggedIn"`
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
		Example: "  pilotctl ca status\n  pilotctl ca rotate",
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	status, rotate :=
		&cobra.Command{
			Use: "status", Short: "Show which roots are trusted, which signs, and what a rotation waits for", Args: usage(cobra.NoArgs),
			Long: `Show which roots of the mesh's CA are trusted, which signs, and what a rotation waits for.

ROOT is the beginning of the SHA-256 of the root's certificate. ROLE is signs, next (it is trusted
and signs later), retired (it is trusted until the last certificate that it signed ends) or file (it
is trusted because the files of the CA that is plugged in have it). SERVES says which root issues
the control plane's own certificate: the oldest that is trusted and whose key is there, since agents
may start with an old file.`,
			Example: "  pilotctl ca status\n  pilotctl ca status --discovery http://127.0.0.1:8080 -o json",
			RunE: func(c *cobra.Command, _ []string) error {
				r, err := f.connect(c)
				if err != nil {
					return err
				}
				defer r.Close()
				return printStatus(c, f, r)
			},
		},
		&cobra.Command{
			Use: "rotate", Short: "Begin a rotation of the root", Args: usage(cobra.NoArgs),
			Long: `Begin a rotation of the root.

A new root is made and distributed. It signs when every connected proxy has acknowledged it,
or when all certificates have ended that were issued before. The old root is trusted until
the last certificate that it has signed has ended. The command returns at once; pilotctl ca
status says how far the rotation is.`,
			Example: "  pilotctl ca rotate && pilotctl ca status",
			RunE: func(c *cobra.Command, _ []string) error {
				r, err := f.connect(c)
				if err != nil {
					return err
				}
				defer r.Close()
				return beginRotation(c, f, r)
			},
		}
	asking(status)
	asking(rotate)
	c.AddCommand(status, rotate)
	return c
}

// printStatus prints the state of the roots, which the replicas share, and which of them have read another.
func printStatus(c *cobra.Command, f *flags, r *replicas) error {
	got, lost, err := answered(r.ask(c.Context(), caPage, nil, nil))
	if err != nil {
		return err
	}
	pages, err := decoded[json.RawMessage](got, caPage)
	if err != nil {
		return err
	}
	text, newest, differing, err := joinCA(pages)
	if err != nil {
		return err
	}
	if err := printCA(c, f, text, newest.value); err != nil {
		return err
	}
	if f.output == "table" {
		for _, d := range differing {
			fmt.Fprintf(c.OutOrStdout(), "\n%s differs from %s: phase %s, %s: %s\n", d.replica, newest.replica, printable.Escape(d.value.Phase), count(len(d.value.Roots), "root"),
				"ask again; if it stays so, its log says why it cannot read the state")
		}
	}
	return lost.report(c.ErrOrStderr())
}

// beginRotation has one replica begin a rotation: the first that answers. The request is sent to no other one, since it
// may have been granted even if it seems to have failed.
func beginRotation(c *cobra.Command, f *flags, r *replicas) error {
	got, _, err := answered(r.ask(c.Context(), caPage, nil, nil))
	if err != nil {
		return err
	}
	k := got[0].replica
	text, err := k.fetch(c.Context(), caPage+"/rotate", nil, []byte("{}"))
	if err != nil {
		return err
	}
	var s caStatus
	if err := (answer{replica: k, text: text}).decode(caPage, &s); err != nil {
		return err
	}
	return printCA(c, f, text, s)
}

// printCA prints a status, text being its JSON.
func printCA(c *cobra.Command, f *flags, text []byte, s caStatus) error {
	w := c.OutOrStdout()
	if f.output != "table" {
		return printJSON(w, f.output, text)
	}
	var rows [][]string
	for _, r := range s.Roots {
		serves := ""
		if r.Serving {
			serves = "yes"
		}
		rows = append(rows, []string{printable.Escape(shortRoot(r)), printable.Escape(r.Role), instant(r.NotAfter), instant(r.LastLeaf), serves})
	}
	if err := printTable(w, f.columns(c), []string{"ROOT", "ROLE", "ENDS", "LAST CERTIFICATE ENDS", "SERVES"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(s.lines(), "\n"))
	return err
}

// shortRoot returns the beginning of a root's digest, by which logs name it too.
func shortRoot(r caRoot) string { return r.SHA256[:min(len(r.SHA256), 16)] }

// lines say what happens now, and what comes next.
func (s *caStatus) lines() []string {
	out := []string{"phase: " + printable.Escape(s.Phase)}
	if s.Problem != "" {
		out = append(out, "problem: "+printable.EscapeLines(s.Problem, "    "))
	}
	if s.PluggedIn {
		out = append(out, "the CA is plugged in: replace its files to rotate its root")
	}
	if !s.Due.IsZero() {
		out = append(out, "next rotation: "+instant(s.Due))
	}
	if s.Phase == "distributing" {
		return append(append(out, "reason: "+printable.EscapeLines(s.Why, "    ")), s.distributing()...)
	}
	for _, r := range s.Roots {
		if r.Role == "retired" {
			out = append(out, fmt.Sprintf("root %s is trusted until %s, when the last certificate that it signed ends", printable.Escape(shortRoot(r)), instant(r.LastLeaf)))
		}
	}
	return out
}

// distributing says what the new root waits for.
func (s *caStatus) distributing() []string {
	connected, waiting, names := 0, 0, []string(nil)
	for _, i := range s.Instances {
		connected, waiting, names = connected+i.Connected, waiting+i.Waiting, append(names, i.Names...)
	}
	if s.Distributed.IsZero() {
		return []string{fmt.Sprintf("the new root waits until all instances of the control plane (%d) distribute it", len(s.Instances))}
	}
	who := ""
	switch {
	case waiting > 0:
		who = fmt.Sprintf("not acknowledged by %s: %s", proxies(waiting), printable.Escape(strings.Join(names, ", ")))
		if n := waiting - len(names); n > 0 {
			who += fmt.Sprintf(" and %d more", n)
		}
	case connected > 0:
		who = fmt.Sprintf("acknowledged by all connected proxies (%d)", connected)
	default:
		who = "no proxy is connected"
	}
	held := "a minute"
	if s.PluggedIn {
		held = "five minutes"
	}
	return []string{who, fmt.Sprintf("the new root signs when every connected proxy has acknowledged it for %s, at %s at the latest", held, instant(s.Deadline))}
}

func proxies(n int) string {
	if n == 1 {
		return "1 proxy"
	}
	return strconv.Itoa(n) + " proxies"
}

// instant formats a time; a zero time is empty.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
