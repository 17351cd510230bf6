package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

// problem is one entry of /debug/objectz.
type problem struct {
	Object   string `json:"object"`
	Origin   string `json:"origin"`
	Severity string `json:"severity"`
	Field    string `json:"field"`
	Text     string `json:"text"`
	// Meanwhile is what is in force instead of a rejected object.
	Meanwhile string `json:"meanwhile"`
	// Proxies is how many proxies the newest change that is in force concerns, Applied how many of
	// them have it; nil where that is not known.
	Proxies *int `json:"proxies"`
	Applied *int `json:"applied"`
}

// progress is Applied of Proxies; empty where that is not known.
func (p problem) progress() string {
	if p.Proxies == nil || p.Applied == nil {
		return ""
	}
	return fmt.Sprintf("%d/%d", *p.Applied, *p.Proxies)
}

func newObjects(f *flags) *cobra.Command {
	c := &cobra.Command{
		Use:   "objects",
		Short: "List the objects that are rejected, not enforced, or without effect, and why",
		Long: `List the objects that are rejected, not enforced, or without effect, and why.

An error is an object that is rejected (its last good value stays in force, if there is one)
or whose rules are NOT enforced. A warning is an object of which a part has no effect. Objects
of kinds that the mesh does not use, such as Deployments, are counted in a line below.

APPLIED is how many of the connected proxies that the object's newest change concerns have
acknowledged it; 0/0 if it concerns none. With --all it is shown for all objects in force, with
the generation of the change.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			v := cli.Read(c.Flags(), nil, settings.PilotctlObjects)
			if listsAll(v) {
				return printAll(c, f)
			}
			var all []problem
			text, err := fetchInto(c.Context(), f.discovery, "debug/objectz", nil, &all)
			if err != nil {
				return err
			}
			if f.output != "table" {
				return printJSON(c.OutOrStdout(), f.output, text)
			}
			return printProblems(c.OutOrStdout(), all)
		},
	}
	cli.Add(c, settings.PilotctlObjects)
	return c
}

// listsAll reads settings.PilotctlObjects.
func listsAll(v *settings.Values) bool { return v.Bool("all") }

// printAll prints all objects in force.
func printAll(c *cobra.Command, f *flags) error {
	var answer appliedAnswer
	if _, err := fetchInto(c.Context(), f.discovery, appliedPage, nil, &answer); err != nil {
		return err
	}
	if f.output != "table" {
		return printValue(c.OutOrStdout(), f.output, answer.Objects)
	}
	var rows [][]string
	for _, o := range answer.Objects {
		rows = append(rows, []string{o.Kind, o.Namespace, o.Name, strconv.FormatUint(o.Generation, 10), fmt.Sprintf("%d/%d", o.Applied, o.Proxies), o.Origin})
	}
	return printTable(c.OutOrStdout(), []string{"KIND", "NAMESPACE", "NAME", "GENERATION", "APPLIED", "WHERE"}, rows)
}

// printProblems prints a table of errors and warnings, then lines with the counts of ignored objects.
func printProblems(w io.Writer, all []problem) error {
	var rows [][]string
	var ignored []string
	for _, r := range all {
		if r.Severity == "info" {
			ignored = append(ignored, printable.Escape(r.Origin+": "+r.Text))
			continue
		}
		rows = append(rows, []string{r.Severity, r.Object, r.Field, r.Origin, r.Text, r.Meanwhile, r.progress()})
	}
	if len(rows) > 0 {
		if err := printTable(w, []string{"SEVERITY", "OBJECT", "FIELD", "WHERE", "WHAT", "MEANWHILE", "APPLIED"}, rows); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintln(w, "all objects are applied"); err != nil {
		return err
	}
	for _, line := range ignored {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
