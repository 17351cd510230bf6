package pilothouse_test

import (
	"go/ast"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// The limits, in lines. They are wide: what belongs together stays in one file, or one function.
const (
	maxFile = 800
	maxFunc = 120
)

// sizeExceptions lists what may exceed its limit, and why. Keys are file paths or "dir.Func".
var sizeExceptions = map[string]string{}

// tooLong reports whether a file or function exceeds its limit and has no exception.
func tooLong(key string, have, limit int) bool {
	return have > limit && sizeExceptions[key] == ""
}

func TestFileAndFunctionLength(t *testing.T) {
	for _, s := range sources(t) {
		if n := strings.Count(s.Text, "\n"); tooLong(s.Path, n, maxFile) {
			t.Errorf("%s has %d lines, at most %d", s.Path, n, maxFile)
		}
		ast.Inspect(s.AST, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok {
				lines := span(f)
				if s.Test {
					lines -= tableLines(f)
				}
				if tooLong(s.Dir+"."+f.Name.Name, lines, maxFunc) {
					t.Errorf("%s: %s has %d lines, at most %d", s.Path, f.Name.Name, lines, maxFunc)
				}
			}
			return true
		})
	}
}

// span is the number of lines of a node.
func span(n ast.Node) int { return fileset.Position(n.End()).Line - fileset.Position(n.Pos()).Line + 1 }

// tableLines is the number of lines of a function that are composite literals. Tests may have long tables.
func tableLines(f *ast.FuncDecl) int {
	lines := 0
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if ok {
			lines += span(lit) - 1
		}
		return !ok
	})
	return lines
}

func TestPackagesAreDocumentedOnce(t *testing.T) {
	docs, onlyTests := map[string][]string{}, map[string]bool{}
	for _, s := range sources(t) {
		if _, seen := onlyTests[s.Dir]; !seen {
			onlyTests[s.Dir] = true
		}
		onlyTests[s.Dir] = onlyTests[s.Dir] && s.Test
		if s.AST.Doc != nil {
			docs[s.Dir] = append(docs[s.Dir], s.Path)
			checkPackageDoc(t, s)
		}
	}
	for dir := range onlyTests {
		if len(docs[dir]) != 1 {
			t.Errorf("%s: %d package comments %v, want one", dir, len(docs[dir]), docs[dir])
		}
	}
}

// checkPackageDoc checks that the first line of a package comment is a sentence that begins in Go's way.
func checkPackageDoc(t *testing.T, s source) {
	t.Helper()
	first, _, _ := strings.Cut(s.AST.Doc.Text(), "\n")
	name := s.AST.Name.Name
	if name != "main" && !strings.HasPrefix(first, "Package "+name+" ") {
		t.Errorf("%s: the package comment begins with %q, want \"Package %s …\"", s.Path, first, name)
	}
	if !strings.HasSuffix(first, ".") && !strings.HasSuffix(first, ":") {
		t.Errorf("%s: the package comment's first line is not one whole sentence: %q", s.Path, first)
	}
}

func TestExportedNamesAreDocumented(t *testing.T) {
	for _, s := range sources(t) {
		if s.Test {
			continue
		}
		for _, d := range s.AST.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && receiverExported(d) && d.Doc == nil {
					t.Errorf("%s: %s has no comment", fileset.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				undocumentedSpecs(t, d)
			}
		}
	}
}

func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

func undocumentedSpecs(t *testing.T, d *ast.GenDecl) {
	t.Helper()
	for _, spec := range d.Specs {
		switch sp := spec.(type) {
		case *ast.TypeSpec:
			if sp.Name.IsExported() && d.Doc == nil && sp.Doc == nil {
				t.Errorf("%s: type %s has no comment", fileset.Position(sp.Pos()), sp.Name.Name)
			}
		case *ast.ValueSpec:
			if sp.Names[0].IsExported() && d.Doc == nil && sp.Doc == nil && sp.Comment == nil {
				t.Errorf("%s: %s has no comment", fileset.Position(sp.Pos()), sp.Names[0].Name)
			}
		}
	}
}

// call is one selector pkg.name found in a file.
type call struct {
	name string
	pos  token.Position
}

// calls finds the uses of names of a package in a file. pkg is the name under which it is imported.
func calls(s source, pkg string) []call {
	var out []call
	ast.Inspect(s.AST, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == pkg {
				out = append(out, call{sel.Sel.Name, fileset.Position(sel.Pos())})
			}
		}
		return true
	})
	return out
}

func TestOnlyCommandsReadTheEnvironment(t *testing.T) {
	for _, s := range sources(t) {
		if s.Test || s.Dir == "." || within(s.Dir, "cmd") || within(s.Dir, "samples") || within(s.Dir, "test") {
			continue
		}
		for _, c := range calls(s, "os") {
			switch c.name {
			case "Getenv", "LookupEnv", "Environ", "ExpandEnv":
				t.Errorf("%s: os.%s: only cmd reads the environment", c.pos, c.name)
			}
		}
	}
}

// Flags of the programs are declared in internal/settings and registered in one place.
func TestFlagsAreDeclaredInTables(t *testing.T) {
	registers := regexp.MustCompile(`\.(String|Bool|U?[Ii]nt|Float|Duration|Count|Func|Text)\w*VarP?\(|Flags\(\)\.(String|Bool|U?[Ii]nt|Float|Duration|Count|Var)\w*\(|\.VarPF?\(`)
	for _, s := range sources(t) {
		if s.Test || !within(s.Dir, "cmd") && !within(s.Dir, "internal") || s.Dir == "internal/settings/cli" {
			continue
		}
		if s.Dir == "internal/lab/sampleapp" {
			continue // an application, whose arguments are in the YAML of Pods
		}
		if call := registers.FindString(s.Text); call != "" {
			t.Errorf("%s: %s registers a flag: declare it in internal/settings", s.Path, call)
		}
	}
}

func TestNoSleep(t *testing.T) {
	for _, s := range sources(t) {
		for _, c := range calls(s, "time") {
			if c.name == "Sleep" {
				t.Errorf("%s: time.Sleep: wait for a condition", c.pos)
			}
		}
	}
}

func TestErrorsDoNotSayFailedTo(t *testing.T) {
	for _, s := range sources(t) {
		if s.Dir == "." {
			continue
		}
		ast.Inspect(s.AST, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && strings.Contains(lit.Value, "failed to") {
				t.Errorf("%s: %s: name the operation and its object, without \"failed to\"", fileset.Position(lit.Pos()), lit.Value)
			}
			return true
		})
	}
}

// unwanted are markers of unfinished work, and paths of one machine; spelled in two halves so that this
// file does not contain them.
var unwanted = []string{"TO" + "DO", "FIX" + "ME", "/wo" + "rk/"}

func TestNoUnfinishedWork(t *testing.T) {
	out, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		t.Fatalf("list the committed files: %v", err)
	}
	for _, file := range strings.Fields(string(out)) {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // deleted, not yet committed
		}
		for n, line := range strings.Split(string(text), "\n") {
			for _, bad := range unwanted {
				if strings.Contains(line, bad) {
					t.Errorf("%s:%d holds %q", file, n+1, bad)
				}
			}
		}
	}
}
