package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

const appliedPage = "debug/applied"

const (
	// pollEvery is the pause between two requests of a wait.
	pollEvery = 200 * time.Millisecond
	// findEvery is how often a wait looks for new replicas.
	findEvery = 2 * time.Second
)

func newWait(f *flags) *cobra.Command {
	c := &cobra.Command{
		Use:   "wait (KIND NAMESPACE/NAME | -f FILE)",
		Short: "Wait until the proxies have applied an object",
		Long: `Wait until all connected proxies that an object concerns have acknowledged its newest change.

KIND is a kind as in YAML, in any case, its plural or its short name, such as vs. With KIND and
NAME, the change is the newest that pilot-discovery has read. After an edit of a file give the
file with -f: then wait waits until the very versions in it are in force and applied.

Progress goes to standard error, the result to standard output. The exit code is 0 once all
have acknowledged, also if no proxy is concerned, and 1 if the time is over, with the proxies
that have not and why, or at once if the object is rejected or unknown, or if a proxy refuses
a part of the change. A proxy that disconnects before it has acknowledged is waited for.

The proxies are those of all replicas of pilot-discovery. A replica that does not answer is waited for.`,
		Example: "  pilotctl wait vs bookshop/reviews\n  pilotctl wait -f reviews.yaml --timeout 30s",
		Args:    usage(cobra.MaximumNArgs(2)),
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return completeObjects(c, f, args, prefix)
		},
		RunE: func(c *cobra.Command, args []string) error {
			v := cli.Read(c.Flags(), nil, settings.PilotctlWait)
			o := readWait(v)
			if err := v.Err(); err != nil {
				return misuse{err}
			}
			if o.file != "" && c.Flags().Changed("namespace") {
				return misuse{errors.New("flag --namespace: want KIND NAME, not a file, whose objects have namespaces")}
			}
			namespace, err := f.qualified(c)
			if err != nil {
				return err
			}
			request, err := o.request(args, namespace, c.Flags().Changed("namespace"), c.InOrStdin())
			if err != nil {
				return err
			}
			r, err := f.connect(c)
			if err != nil {
				return err
			}
			defer r.Close()
			w := &waiting{file: o.file, least: o.generation, removed: o.removed}
			answer, err := poll(c.Context(), r, request, w, o.timeout, c.ErrOrStderr())
			unknown := unknownObject{}
			switch {
			case errors.As(err, &unknown):
				return fmt.Errorf("%w%s", err, didYouMean(nearest(c.Context(), r, unknown.object)))
			case err != nil:
				return err
			case f.output != "table":
				return printValue(c.OutOrStdout(), f.output, answer.Objects)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), strings.Join(w.lines, "\n"))
			return err
		},
	}
	asking(c, settings.PilotctlWait, settings.PilotctlNamespace)
	return c
}

// nearest are the objects in force with names like that of o. It serves a hint: without an answer there is none.
func nearest(ctx context.Context, r *replicas, o appliedObject) []string {
	all, err := objectsInForce(ctx, r)
	if err != nil {
		return nil
	}
	return nearObjects(o, all)
}

// objectsInForce are all objects in force.
func objectsInForce(ctx context.Context, r *replicas) ([]appliedObject, error) {
	got, _, err := answered(r.ask(ctx, appliedPage, nil, nil))
	if err != nil {
		return nil, err
	}
	answers, err := decoded[appliedAnswer](got, appliedPage)
	if err != nil {
		return nil, err
	}
	return joinApplied(answers).Objects, nil
}

// waitOptions are the options of a wait.
type waitOptions struct {
	file       string
	timeout    time.Duration
	generation uint64
	removed    bool
}

// readWait reads settings.PilotctlWait.
func readWait(v *settings.Values) waitOptions {
	return waitOptions{file: v.Text("filename"), timeout: v.Duration("timeout"), generation: uint64(v.Int("generation")), removed: v.Bool("removed")}
}

// appliedRequest is a request to /debug/applied.
type appliedRequest struct {
	query url.Values
	body  []byte // nil for a GET
}

// request makes the request of the arguments; namespace is that of a name without one, and that of
// each if a flag gave it.
func (o waitOptions) request(args []string, namespace string, namespaceGiven bool, stdin io.Reader) (appliedRequest, error) {
	switch {
	case o.file != "" && len(args) > 0:
		return appliedRequest{}, misuse{errors.New("give either KIND NAMESPACE/NAME or -f FILE")}
	case o.file != "" && o.removed:
		return appliedRequest{}, misuse{errors.New("flag --removed: want KIND NAMESPACE/NAME, not a file")}
	case o.file == "-":
		text, err := io.ReadAll(stdin)
		return appliedRequest{url.Values{"file": {"standard input"}}, text}, err
	case o.file != "":
		text, err := os.ReadFile(o.file)
		return appliedRequest{url.Values{"file": {filepath.Base(o.file)}}, append([]byte{}, text...)}, err
	case len(args) != 2:
		return appliedRequest{}, misuse{errors.New("want KIND NAMESPACE/NAME or -f FILE (see pilotctl wait --help)")}
	}
	if _, err := object.ParseKind(args[0]); err != nil {
		var kinds []string
		for _, k := range object.Kinds() {
			kinds = append(kinds, string(k))
		}
		if meant := near(args[0], kinds); len(meant) > 0 { // pilot-discovery may be newer and know others
			return appliedRequest{}, misuse{fmt.Errorf("invalid kind %q%s", args[0], didYouMean(meant))}
		}
	}
	name := args[1]
	if given, short, ok := strings.Cut(args[1], "/"); ok {
		if namespaceGiven && namespace != given {
			return appliedRequest{}, misuse{fmt.Errorf("%s and --namespace %s: want one namespace", args[1], namespace)}
		}
		namespace, name = given, short
	}
	if namespace == "" || name == "" {
		return appliedRequest{}, misuse{fmt.Errorf("invalid object %q: want NAMESPACE/NAME, or --namespace", args[1])}
	}
	return appliedRequest{query: url.Values{"kind": {args[0]}, "namespace": {namespace}, "name": {name}}}, nil
}

// poll asks all replicas until w says that the wait is over, or the time is. One of the first requests must succeed;
// later ones may fail, as pilot-discovery may be restarting. While a replica that runs does not answer, proxies may be
// connected to it, and the wait goes on.
func poll(ctx context.Context, r *replicas, request appliedRequest, w *waiting, timeout time.Duration, progress io.Writer) (answer appliedAnswer, err error) {
	deadline, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	shown := ""
	var failed error
	for {
		request.query["proxy"] = w.proxies()
		answer, err = askApplied(deadline, r, request, w.least)
		var done bool
		switch {
		case err == nil:
			failed = nil
			done, err = w.step(answer)
			if done || err != nil {
				return answer, err
			}
			if w.progress != shown {
				shown = w.progress
				fmt.Fprintln(progress, shown)
			}
		case deadline.Err() != nil: // it has no part in what is missing
		case errors.As(err, new(misuse)), w.started == "" && !errors.As(err, new(partial)):
			return answer, err
		default:
			failed = err
		}
		select {
		case <-deadline.Done():
			if ctx.Err() != nil {
				return answer, fmt.Errorf("interrupted: %w", ctx.Err())
			}
			return answer, w.timedOut(timeout.String(), failed)
		case <-time.After(pollEvery):
		}
	}
}

// partial is the error of an answer that some replicas have given and others have not.
type partial struct{ error }

// askApplied asks all replicas, and joins their answers.
func askApplied(ctx context.Context, r *replicas, request appliedRequest, least uint64) (appliedAnswer, error) {
	if r.several() && least > 0 {
		return appliedAnswer{}, misuse{fmt.Errorf("flag --generation: %d replicas of pilot-discovery count generations of their own: want the address of one with --discovery", len(r.list))}
	}
	if time.Since(r.found) > findEvery {
		if err := r.find(ctx); err != nil {
			return appliedAnswer{}, partial{err}
		}
	}
	got, lost, err := answered(r.ask(ctx, appliedPage, request.query, request.body))
	if err != nil {
		r.found = time.Time{} // they may be others by now
		return appliedAnswer{}, err
	}
	if len(lost) > 0 {
		r.found = time.Time{}
		return appliedAnswer{}, partial{lost[0].err}
	}
	pages, err := decoded[appliedAnswer](got, appliedPage)
	if err != nil {
		return appliedAnswer{}, err
	}
	return joinApplied(pages), nil
}
