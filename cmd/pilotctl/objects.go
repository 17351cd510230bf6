package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// remark is one thing to say about one object, as /debug/objectz tells it.
type remark struct {
	Object   string `json:"object"`
	Origin   string `json:"origin"`
	Severity string `json:"severity"`
	Field    string `json:"field"`
	Text     string `json:"text"`
	// Meanwhile says what is in force instead, where the object is refused.
	Meanwhile string `json:"meanwhile"`
}

func newObjects(f *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "objects",
		Short: "List the objects that are refused, not enforced, or without effect, and why",
		Long: `List the objects that are refused, not enforced, or without effect, and why.

An error is an object that is refused (its last good value stays in force, if there was one)
or whose rules are NOT enforced. A warning is an object that is applied only in part. Objects
of other programs, such as Deployments, are counted in a line below the table.`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			var all []remark
			text, err := fetchInto(c.Context(), f.discovery, "debug/objectz", nil, &all)
			if err != nil {
				return err
			}
			if f.output != "table" {
				return printJSON(c.OutOrStdout(), f.output, text)
			}
			return printRemarks(c.OutOrStdout(), all)
		},
	}
}

// printRemarks shows what is wrong as a table, and what is only left out in lines below.
func printRemarks(w io.Writer, all []remark) error {
	var rows [][]string
	var left []string
	for _, r := range all {
		if r.Severity == "info" {
			left = append(left, printable.Escape(r.Origin+": "+r.Text))
			continue
		}
		rows = append(rows, []string{r.Severity, r.Object, r.Field, r.Origin, r.Text, r.Meanwhile})
	}
	if len(rows) > 0 {
		if err := printTable(w, []string{"SEVERITY", "OBJECT", "FIELD", "WHERE", "WHAT", "MEANWHILE"}, rows); err != nil {
			return err
		}
	} else if _, err := fmt.Fprintln(w, "every object is in use as it is written"); err != nil {
		return err
	}
	for _, line := range left {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
