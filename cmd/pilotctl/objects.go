package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/printable"
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
}

func newObjects(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "objects",
		Short: "List the objects that are rejected, not enforced, or without effect, and why",
		Long: `List the objects that are rejected, not enforced, or without effect, and why.

An error is an object that is rejected (its last good value stays in force, if there is one)
or whose rules are NOT enforced. A warning is an object of which a part has no effect. Objects
of kinds that the mesh does not use, such as Deployments, are counted in a line below.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
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
		rows = append(rows, []string{r.Severity, r.Object, r.Field, r.Origin, r.Text, r.Meanwhile})
	}
	if len(rows) > 0 {
		if err := printTable(w, []string{"SEVERITY", "OBJECT", "FIELD", "WHERE", "WHAT", "MEANWHILE"}, rows); err != nil {
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
