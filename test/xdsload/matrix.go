package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// standardMatrix is the matrix of docs/performance.md. From the run that the other flags describe, one factor is
// changed at a time.
const standardMatrix = "streams=500 streams=2000 streams=5000 namespaces=1 namespaces=500 protocol=sotw tls protocol=sotw,tls"

// parseMatrix returns the flags of each run, in addition to those of the command line.
func parseMatrix(text string) (runs [][]string, err error) {
	if text == "standard" {
		text = standardMatrix
	}
	for name := range strings.FieldsSeq(text) {
		var flags []string
		for f := range strings.SplitSeq(name, ",") {
			if f == "" || strings.HasPrefix(f, "matrix") {
				return nil, fmt.Errorf("invalid run %q of -matrix: want flags without hyphens, separated by commas, such as streams=2000,tls", name)
			}
			flags = append(flags, "-"+f)
		}
		runs = append(runs, flags)
	}
	if len(runs) == 0 {
		return nil, errors.New(`-matrix has no run: want "standard", or runs separated by spaces, such as "streams=500 streams=2000,tls"`)
	}
	return runs, nil
}

// runMatrix does all runs and writes a Markdown table of each when it has ended. A run that fails does not prevent
// the others.
func runMatrix(ctx context.Context, args []string, runs [][]string, stdout, stderr io.Writer) error {
	var failed []error
	all := make([]invocation, len(runs))
	for i, more := range runs {
		var err error
		if all[i], err = parse(append(args[:len(args):len(args)], more...), stderr); err == nil {
			err = all[i].check()
		}
		if err != nil {
			return fmt.Errorf("run %q of -matrix: %w", more, err)
		}
		if p := &all[i].profiles; p.dir != "" {
			p.dir = filepath.Join(p.dir, strings.ReplaceAll(strings.TrimPrefix(strings.Join(more, ""), "-"), "/", "_"))
		}
	}
	for i, v := range all {
		if err := runOne(ctx, v.options, stdout); err != nil {
			failed = append(failed, fmt.Errorf("run %q: %w", runs[i], err))
			fmt.Fprintf(stderr, "run %q has failed: %v\n", runs[i], err)
		}
		debug.FreeOSMemory() // the next run's servers need it
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

func runOne(ctx context.Context, o options, stdout io.Writer) error {
	l, err := run(ctx, o)
	if err != nil {
		return err
	}
	return l.report.markdown(stdout)
}
