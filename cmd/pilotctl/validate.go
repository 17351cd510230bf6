package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

func newValidate(f *flags) *cobra.Command {
	c := &cobra.Command{
		Use:   "validate -f (FILE | DIR | -)",
		Short: "Say which objects in files would be rejected, and why, without a control plane",
		Long: `Say which objects in files the control plane would reject, and which have parts without effect.

The rules are those of pilot-discovery itself: of its directory of YAML, and of its webhook,
which refuses what has an error and passes on warnings. A folder is read as pilot-discovery reads
it: files named *.yaml, *.yml and *.json, with folders below it, without names that begin with a
dot. With - standard input is read. -f may be given several times.

Each problem has the line of its field. An error is an object that is rejected, or a security
policy that would not be enforced. A warning is a part of an object that has no effect, or not
the expected one. Objects of kinds that the mesh does not use are counted.

What needs more than the files is not checked, such as whether a host exists: "pilotctl objects"
shows what a running control plane has found.

The exit code is 0 without errors, 1 with at least one error or if a file cannot be read, and 2 if
the command line is invalid. Warnings do not change it, unless --strict is given.`,
		Example: "  pilotctl validate -f samples/bookshop\n  kubectl get vs,dr -A -o yaml | pilotctl validate -f -\n  pilotctl validate -f mesh/ -o json --strict",
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			o := readValidate(cli.Read(c.Flags(), nil, settings.PilotctlValidate))
			if len(o.files) == 0 {
				return misuse{errors.New("nothing to validate: want -f with a file, a folder or - (see pilotctl validate --help)")}
			}
			r := &validation{seen: map[object.Key]object.Origin{}}
			for _, path := range o.files {
				r.path(path, c.InOrStdin())
			}
			if err := r.print(c.OutOrStdout(), c.ErrOrStderr(), f.output); err != nil {
				return err
			}
			if r.failed(o.strict) {
				return errSaid
			}
			return nil
		},
	}
	cli.Add(c, settings.PilotctlValidate)
	return c
}

type validateOptions struct {
	files  []string
	strict bool
}

func readValidate(v *settings.Values) validateOptions {
	return validateOptions{files: v.List("filename"), strict: v.Bool("strict")}
}

// validation is what was found in the files.
type validation struct {
	problems       []object.Problem
	files, objects int
	skipped        int
	seen           map[object.Key]object.Origin // where each object was first
}

// path validates a file, a folder, or standard input.
func (r *validation) path(path string, stdin io.Reader) {
	if path == "-" {
		text, err := io.ReadAll(io.LimitReader(stdin, yamltree.MaxBytes+1))
		if err != nil {
			r.unreadable("standard input", err)
			return
		}
		name := "standard input"
		if t := strings.TrimSpace(string(text[:min(len(text), 64)])); strings.HasPrefix(t, "{") {
			name = "standard input.json"
		}
		r.text(name, text)
		return
	}
	fi, err := os.Stat(path)
	if err != nil || !fi.IsDir() {
		r.file(path)
		return
	}
	r.folder(path, nil)
}

// folder validates the files of a folder and of those below it, as source/dir reads them; above are the folders
// that it is in, since links may lead back.
func (r *validation) folder(path string, above []fs.FileInfo) {
	entries, err := os.ReadDir(path)
	if err != nil {
		r.unreadable(path, err)
		return
	}
	for _, e := range entries {
		at := filepath.Join(path, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		fi, err := os.Stat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist): // a link to nothing
		case err != nil:
			r.unreadable(at, err)
		case fi.IsDir():
			if !slices.ContainsFunc(above, func(a fs.FileInfo) bool { return os.SameFile(a, fi) }) {
				r.folder(at, append(above[:len(above):len(above)], fi))
			}
		case fi.Mode().IsRegular() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(at)):
			r.file(at)
		}
	}
}

// file validates a file.
func (r *validation) file(path string) {
	in, err := os.Open(path) // #nosec G304 -- the user names it
	if err != nil {
		r.unreadable(path, err)
		return
	}
	defer func() { _ = in.Close() }()
	text, err := io.ReadAll(io.LimitReader(in, yamltree.MaxBytes+1))
	if err != nil {
		r.unreadable(path, err)
		return
	}
	r.text(path, text)
}

// text validates the text of a file.
func (r *validation) text(file string, text []byte) {
	found := admit.Documents(file, text)
	r.files++
	r.objects += len(found.Objects)
	r.skipped += found.Skipped
	r.problems = append(r.problems, found.Problems...)
	for _, o := range found.Objects {
		if first, twice := r.seen[o.Key]; twice {
			r.problems = append(r.problems, object.Problem{Origin: o.Origin, Key: o.Key, Text: fmt.Sprintf("duplicate of the object at %s; remove one of them", first)})
			continue
		}
		r.seen[o.Key] = o.Origin
	}
}

// unreadable reports a file that cannot be read.
func (r *validation) unreadable(path string, err error) {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		err = pe.Err
	}
	r.problems = append(r.problems, object.Problem{Origin: object.Origin{File: path}, Text: "read the file: " + err.Error()})
}

// failed reports whether there is an error; strict counts warnings too.
func (r *validation) failed(strict bool) bool {
	return slices.ContainsFunc(r.problems, func(p object.Problem) bool { return p.Severity == object.Error || strict })
}

// validated is one problem in the output.
type validated struct {
	Severity string `json:"severity"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	Object   string `json:"object"`
	Field    string `json:"field"`
	Text     string `json:"text"`
}

// print writes the problems, and to told, of a table, a line that sums up.
func (r *validation) print(w, told io.Writer, form string) error {
	all := []validated{}
	var rows [][]string
	for _, p := range r.problems {
		v := validated{Severity: p.Severity.String(), File: p.Origin.File, Line: p.Origin.Line, Field: p.Field, Text: p.Text}
		if p.Key != (object.Key{}) {
			v.Object = p.Key.String()
		}
		all = append(all, v)
		rows = append(rows, []string{v.Severity, p.Origin.String(), v.Object, v.Field, v.Text})
	}
	if form != "table" {
		return printValue(w, form, all)
	}
	if len(rows) > 0 {
		if err := printTable(w, []string{"SEVERITY", "WHERE", "OBJECT", "FIELD", "WHAT"}, rows); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("%s, %s: ", count(r.files, "file"), count(r.objects, "object"))
	if len(rows) == 0 {
		text += "all are valid"
	} else {
		text += count(len(rows), "problem")
	}
	if r.skipped > 0 {
		text += fmt.Sprintf("; %s of kinds that the mesh does not use", count(r.skipped, "object"))
	}
	_, err := fmt.Fprintln(told, text)
	return err
}

// count is a number with its noun.
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
