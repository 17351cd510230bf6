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
	"github.com/pilothouse/pilothouse/internal/discovery/analyze"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/lab/podplan"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

func newValidate(f *flags) *cobra.Command {
	c := &cobra.Command{
		Use:   "validate (FILE | DIR | -)...",
		Short: "Say which objects in files would be rejected, and why, without a control plane",
		Long: `Say which objects in files the control plane would reject, and which have parts without effect.

The rules are those of pilot-discovery itself: of its directory of YAML, and of its webhook,
which refuses what has an error and passes on warnings. A folder is read as pilot-discovery reads
it: files named *.yaml, *.yml and *.json, with folders below it, without names that begin with a
dot. With - standard input is read. Paths may also be given with -f.

Each problem has the line of its field. An error is an object that is rejected, or a security
policy that would not be enforced. A warning is a part of an object that has no effect, or not
the expected one. Objects of kinds that the mesh does not use are counted.

If a folder is given, it is taken for all of the mesh: a host, subset, Gateway, namespace or service
account that an object refers to and nothing has is a warning (--references). Selectors and
accounts are checked if the files have Pods or WorkloadEntries. "pilotctl objects" does the same in
a running control plane.

For a pipeline, --annotations=github prints workflow commands and --annotations=sarif a SARIF log; -o json
has the rule of each problem, too (docs/pilotctl.md lists them).

The exit code is 0 without errors, 1 with at least one error or if a file cannot be read, and 2 if
the command line is invalid. Warnings do not change it, unless --strict is given.`,
		Example: "  pilotctl validate samples/bookshop\n  kubectl get vs,dr -A -o yaml | pilotctl validate -\n  pilotctl validate mesh/ --strict --annotations=github",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			v := cli.Read(c.Flags(), nil, settings.PilotctlValidate)
			o := readValidate(v)
			if err := v.Err(); err != nil {
				return misuse{err}
			}
			if o.files = append(o.files, args...); len(o.files) == 0 {
				return misuse{errors.New("nothing to validate: want a file, a folder or - (see pilotctl validate --help)")}
			}
			if form := c.Flag("output"); o.annotations != "" && form.Changed {
				return misuse{fmt.Errorf("--annotations=%s and -o %s: want one of them", o.annotations, form.Value.String())}
			}
			r := &validation{seen: map[object.Key]object.Origin{}, lines: map[string]func(object.Key, int, string) int{}}
			for _, path := range o.files {
				r.path(path, c.InOrStdin())
			}
			if o.references == "always" || o.references == "auto" && r.folders > 0 {
				r.addReferences()
			}
			if err := r.print(c.OutOrStdout(), c.ErrOrStderr(), f.output, o.annotations, f.columns(c)); err != nil {
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

// clusterDomain is the DNS suffix that files are checked with, the default of pilot-discovery.
const clusterDomain = "cluster.local"

type validateOptions struct {
	files                   []string
	strict                  bool
	references, annotations string
}

func readValidate(v *settings.Values) validateOptions {
	return validateOptions{
		files: v.List("filename"), strict: v.Bool("strict"), references: v.Enum("references"), annotations: v.Enum("annotations"),
	}
}

// found is one thing that was found, and the id of its rule.
type found struct {
	object.Problem
	rule string
}

// add adds what was found.
func (r *validation) add(by foundBy, p object.Problem) {
	r.problems = append(r.problems, found{p, ruleOf(by, p)})
}

// The names of standard input: package decode takes what has the name of a JSON file for JSON.
const (
	stdinName = "standard input"
	stdinJSON = stdinName + ".json"
)

// validation is what was found in the files.
type validation struct {
	problems       []found
	files, objects int
	skipped        int
	folders        int
	seen           map[object.Key]object.Origin // where each object was first
	all            []*object.Object
	texts          []podplan.File
	// lines finds the lines of fields, by file.
	lines map[string]func(k object.Key, line int, field string) int
}

// addReferences adds the references of the objects that lead nowhere.
func (r *validation) addReferences() {
	m := mesh.DefaultMeshConfig()
	// Deployments and the like stand for their Pods.
	if plan, err := podplan.Make(r.texts, podplan.Options{}); err == nil {
		for _, p := range plan.Pods {
			spec := &object.PodSpec{ServiceAccount: p.ServiceAccount}
			for _, c := range p.Containers {
				for _, port := range c.Ports {
					spec.Ports = append(spec.Ports, object.ContainerPort{Name: port.Name, Port: uint32(port.Number)})
				}
			}
			r.all = append(r.all, &object.Object{
				Key: object.Key{Kind: object.Pod, Namespace: p.Namespace, Name: p.Name}, Meta: object.Meta{Labels: p.Labels}, Spec: spec,
			})
		}
	}
	workloads := slices.ContainsFunc(r.all, func(o *object.Object) bool { return o.Kind == object.Pod || o.Kind == object.WorkloadEntry })
	o := analyze.Options{Domain: clusterDomain, RootNamespace: m.GetRootNamespace(), Workloads: workloads}
	for _, one := range r.all {
		if spec, ok := one.Spec.(*object.ConfigMapSpec); ok && one.Name == config.MeshConfigMap {
			if given, _ := config.MeshConfig(spec.Data[config.MeshKey]); given != nil {
				o.Mesh, o.MeshObject = given, one.Key
			}
		}
	}
	for _, p := range analyze.References(r.all, o) {
		if lines := r.lines[p.Origin.File]; lines != nil {
			p.Origin.Line = lines(p.Key, p.Origin.Line, p.Field)
		}
		r.add(byReference, p)
	}
}

// path validates a file, a folder, or standard input.
func (r *validation) path(path string, stdin io.Reader) {
	if path == "-" {
		text, err := io.ReadAll(io.LimitReader(stdin, yamltree.MaxBytes+1))
		if err != nil {
			r.unreadable(stdinName, err)
			return
		}
		name := stdinName
		if t := strings.TrimSpace(string(text[:min(len(text), 64)])); strings.HasPrefix(t, "{") {
			name = stdinJSON
		}
		r.text(name, text)
		return
	}
	fi, err := os.Stat(path)
	if err != nil || !fi.IsDir() {
		r.file(path)
		return
	}
	r.folders++
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
	read := admit.Documents(file, text)
	r.files++
	r.objects += len(read.Objects)
	r.skipped += read.Skipped
	r.lines[file] = admit.Lines(file, text)
	for _, p := range read.Problems {
		p.Origin.Line = r.lines[file](p.Key, p.Origin.Line, p.Field)
		r.add(byDocument, p)
	}
	for _, o := range read.Objects {
		if first, twice := r.seen[o.Key]; twice {
			r.add(byTwice, object.Problem{Origin: o.Origin, Key: o.Key, Text: fmt.Sprintf("duplicate of the object at %s; remove one of them", whereTo(first))})
			continue
		}
		r.seen[o.Key] = o.Origin
		r.all = append(r.all, &o)
	}
	r.texts = append(r.texts, podplan.File{Name: file, Text: text})
}

// unreadable reports a file that cannot be read.
func (r *validation) unreadable(path string, err error) {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		err = pe.Err
	}
	r.add(byRead, object.Problem{Origin: object.Origin{File: path}, Text: "read the file: " + err.Error()})
}

// failed reports whether there is an error; strict counts warnings too.
func (r *validation) failed(strict bool) bool {
	return slices.ContainsFunc(r.problems, func(p found) bool { return p.Severity == object.Error || strict })
}

// whereTo is the place of something, for people.
func whereTo(o object.Origin) string {
	if o.File == stdinJSON {
		o.File = stdinName
	}
	return o.String()
}

// validated is one problem in the output.
type validated struct {
	Rule     string `json:"rule"`
	Severity string `json:"severity"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	Object   string `json:"object"`
	Field    string `json:"field"`
	Text     string `json:"text"`
}

// print writes the problems, as lines if their table has more than columns, and to told, of a table, a line that sums up.
func (r *validation) print(w, told io.Writer, form, annotations string, columns int) error {
	all := []validated{}
	var rows [][]string
	var lines []problemLine
	for _, p := range r.problems {
		if p.Origin.File == stdinJSON {
			p.Origin.File = stdinName
		}
		v := validated{Rule: p.rule, Severity: p.Severity.String(), File: p.Origin.File, Line: p.Origin.Line, Field: p.Field, Text: p.Text}
		if p.Key != (object.Key{}) {
			v.Object = p.Key.String()
		}
		all = append(all, v)
		rows = append(rows, []string{v.Severity, p.Origin.String(), v.Object, v.Field, v.Text})
		lines = append(lines, problemLine{v.Severity, p.Origin.String(), v.Object, v.Field, v.Text, ""})
	}
	switch {
	case annotations == "github":
		return printGitHub(w, all)
	case annotations == "sarif":
		folder, _ := os.Getwd() // Without it absolute paths stay absolute.
		return printSARIF(w, folder, all)
	case form != "table":
		return printValue(w, form, all)
	}
	if len(rows) > 0 {
		if err := printFitting(w, columns,
			func(w io.Writer) error {
				return wholeTable(w, []string{"SEVERITY", "WHERE", "OBJECT", "FIELD", "WHAT"}, rows)
			},
			func(w io.Writer) error { return printProblemLines(w, columns, lines) }); err != nil {
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
