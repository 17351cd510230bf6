package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

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
	// Replicas are those that have the problem, if others have not.
	Replicas []string `json:"replicas"`
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
		Use:     "objects",
		Aliases: []string{"analyze"},
		Short:   "List the objects that are rejected, not enforced, without effect, or refer to nothing, and why",
		Long: `List the objects that are rejected, not enforced, without effect, or refer to nothing, and why.

An error is an object that is rejected (its last good value stays in force, if there is one)
or whose rules are NOT enforced. A warning is an object of which a part has no effect, or that
refers to a host, subset, Gateway, service account or label that nothing has. Objects
of kinds that the mesh does not use, such as Deployments, are counted in a line below.

With several replicas of pilot-discovery the list is that of all, and WHAT names those that have
a problem which others do not have.

APPLIED is how many of the connected proxies that the object's newest change concerns have
acknowledged it; 0/0 if it concerns none. With --all it is shown for all objects in force, with
the generation of the change, unless several replicas count generations.

The exit code is 0, unless --exit-code is given: then it is 3 if there are errors, and 4 if there
are warnings only.`,
		Example: `  pilotctl objects
  pilotctl objects --exit-code
  pilotctl objects --all -o json`,
		Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			o := readObjects(cli.Read(c.Flags(), nil, settings.PilotctlObjects))
			if o.all && o.exitCode {
				return misuse{errors.New("flag --exit-code: want it without --all, which lists no problems")}
			}
			r, err := f.connect(c)
			if err != nil {
				return err
			}
			defer r.Close()
			var lost missing
			var found counts
			if o.all {
				lost, err = printAll(c, f, r)
			} else {
				lost, found, err = printRejected(c, f, r)
			}
			if err != nil {
				return err
			}
			if err := lost.report(c.ErrOrStderr()); err != nil || !o.exitCode {
				return err
			}
			return found.exit()
		},
	}
	asking(c, settings.PilotctlObjects)
	return c
}

const objectPage = "debug/objectz"

// counts are how many problems there are.
type counts struct{ errors, warnings int }

// Exit codes of "pilotctl objects --exit-code".
const (
	exitErrors   = 3
	exitWarnings = 4
)

// exit is the error with the exit code that the problems have, or nil.
func (n counts) exit() error {
	switch {
	case n.errors > 0:
		return exitCode{exitErrors}
	case n.warnings > 0:
		return exitCode{exitWarnings}
	}
	return nil
}

// countProblems counts problems by severity.
func countProblems(all []problem) (n counts) {
	for _, p := range all {
		switch p.Severity {
		case "error":
			n.errors++
		case "warning":
			n.warnings++
		}
	}
	return n
}

// printRejected prints the objects with problems.
func printRejected(c *cobra.Command, f *flags, r *replicas) (missing, counts, error) {
	got, lost, err := answered(r.ask(c.Context(), objectPage, nil, nil))
	if err != nil {
		return nil, counts{}, err
	}
	lists, err := decoded[[]json.RawMessage](got, objectPage)
	if err != nil {
		return nil, counts{}, err
	}
	texts := lists[0].value
	if len(lists) > 1 {
		if texts, err = joinProblems(lists); err != nil {
			return nil, counts{}, err
		}
	}
	all := make([]problem, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal(text, &all[i]); err != nil {
			return nil, counts{}, fmt.Errorf("decode the response of %s: %w", objectPage, err)
		}
		if len(all[i].Replicas) > 0 {
			all[i].Text += " (only at " + strings.Join(all[i].Replicas, ", ") + ")"
		}
	}
	if f.output != "table" {
		return lost, countProblems(all), printValue(c.OutOrStdout(), f.output, texts)
	}
	return lost, countProblems(all), printProblems(c.OutOrStdout(), f.columns(c), all)
}

// objectsOptions are the settings of settings.PilotctlObjects.
type objectsOptions struct{ all, exitCode bool }

func readObjects(v *settings.Values) objectsOptions {
	return objectsOptions{all: v.Bool("all"), exitCode: v.Bool("exit-code")}
}

// printAll prints all objects in force.
func printAll(c *cobra.Command, f *flags, r *replicas) (missing, error) {
	got, lost, err := answered(r.ask(c.Context(), appliedPage, nil, nil))
	if err != nil {
		return nil, err
	}
	answers, err := decoded[appliedAnswer](got, appliedPage)
	if err != nil {
		return nil, err
	}
	all := joinApplied(answers)
	if f.output != "table" {
		return lost, printValue(c.OutOrStdout(), f.output, all.Objects)
	}
	header := []string{"KIND", "NAMESPACE", "NAME", "GENERATION", "APPLIED", "WHERE"}
	var rows [][]string
	for _, o := range all.Objects {
		row := []string{o.Kind, o.Namespace, o.Name, strconv.FormatUint(o.Generation, 10), fmt.Sprintf("%d/%d", o.Applied, o.Proxies), o.Origin}
		if len(answers) > 1 {
			row = slices.Delete(row, 3, 4)
		}
		rows = append(rows, row)
	}
	if len(answers) > 1 {
		header = slices.Delete(header, 3, 4)
	}
	columns := f.columns(c)
	return lost, printFitting(c.OutOrStdout(), columns,
		func(w io.Writer) error { return wholeTable(w, header, rows) },
		func(w io.Writer) error {
			// The parts of a name are in one column.
			narrow := make([][]string, len(rows))
			for i, row := range rows {
				narrow[i] = append([]string{all.Objects[i].String()}, row[3:]...)
			}
			return printTable(w, columns, append([]string{"OBJECT"}, header[3:]...), narrow)
		})
}

// printProblems prints a table of errors and warnings, or lines if it has more than columns, then lines with the counts of ignored objects.
func printProblems(w io.Writer, columns int, all []problem) error {
	var rows [][]string
	var lines []problemLine
	var ignored []string
	for _, r := range all {
		if r.Severity == "info" {
			ignored = append(ignored, printable.Escape(r.Origin+": "+r.Text))
			continue
		}
		rows = append(rows, []string{r.Severity, r.Object, r.Field, r.Origin, r.Text, r.Meanwhile, r.progress()})
		more := []string{r.Meanwhile, ""}
		if r.progress() != "" {
			more[1] = fmt.Sprintf("applied by %d of %d proxies", *r.Applied, *r.Proxies)
		}
		more = slices.DeleteFunc(more, func(s string) bool { return s == "" })
		lines = append(lines, problemLine{r.Severity, r.Origin, r.Object, r.Field, r.Text, strings.Join(more, "; ")})
	}
	if len(rows) > 0 {
		if err := printFitting(w, columns,
			func(w io.Writer) error {
				return wholeTable(w, []string{"SEVERITY", "OBJECT", "FIELD", "WHERE", "WHAT", "MEANWHILE", "APPLIED"}, rows)
			},
			func(w io.Writer) error { return printProblemLines(w, columns, lines) }); err != nil {
			return err
		}
	}
	n := countProblems(all)
	summary := fmt.Sprintf("%s, %s", count(n.errors, "error"), count(n.warnings, "warning"))
	if _, err := fmt.Fprintln(w, summary); err != nil {
		return err
	}
	for _, line := range ignored {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
