package pilothouse_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// guides are the documents whose paths TestGuidesNamePathsThatExist checks.
var guides = []string{"ARCHITECTURE.md", "CONTRIBUTING.md"}

// code is a piece of Markdown in backquotes, on one line.
var code = regexp.MustCompile("`([^`\n]+)`")

// pathsIn lists the paths that a document has in backquotes, alone or in a command. A path has a directory
// of the repository in front, or is the name of a file with one of the endings below; it may be a pattern.
func pathsIn(text string, directories []string) []string {
	var out []string
	for _, match := range code.FindAllStringSubmatch(text, -1) {
		for _, word := range strings.Fields(match[1]) {
			path := strings.TrimSuffix(strings.TrimPrefix(word, "./"), "/...")
			first, _, nested := strings.Cut(path, "/")
			file := slices.Contains([]string{".go", ".md", ".yml", ".sh"}, filepath.Ext(path))
			if nested && slices.Contains(directories, first) || !nested && file {
				out = append(out, path)
			}
		}
	}
	return out
}

func TestGuidesNamePathsThatExist(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var directories []string
	for _, e := range entries {
		if e.IsDir() {
			directories = append(directories, e.Name())
		}
	}
	all := sources(t)
	for _, guide := range guides {
		text, err := os.ReadFile(guide)
		if err != nil {
			t.Fatal(err)
		}
		paths := pathsIn(string(text), directories)
		if len(paths) == 0 {
			t.Errorf("%s: no paths found", guide)
		}
		for _, path := range paths {
			found, err := filepath.Glob(path)
			if err != nil {
				t.Errorf("%s: %s: %v", guide, path, err)
			}
			// The name of a Go file alone stands for the one file that has it.
			named := strings.HasSuffix(path, ".go") && slices.ContainsFunc(all, func(s source) bool { return filepath.Base(s.Path) == path })
			if len(found) == 0 && !named {
				t.Errorf("%s: `%s` does not exist", guide, path)
			}
		}
	}
}

func TestPathsAreFoundInDocuments(t *testing.T) {
	text := "Open `internal/a.go`, run `go test ./internal/b/...`, not `pilotctl proxies` or `spec.proxy/x`; see `gate.go`, `sub*.go` and `internal/c*`.\n"
	want := []string{"internal/a.go", "internal/b", "gate.go", "sub*.go", "internal/c*"}
	if got := pathsIn(text, []string{"internal"}); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The drawing of the architecture is readable on a dark and on a light page, for a screen reader, too, and fetches nothing.
func TestDrawingIsReadable(t *testing.T) {
	const file = "docs/architecture.svg"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if e, ok := token.(xml.StartElement); ok {
			count[e.Name.Local]++
			for _, a := range e.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
					t.Errorf("%s: %s has %s: want a drawing that runs and fetches nothing", file, e.Name.Local, a.Name.Local)
				}
			}
		}
	}
	if count["title"] != 1 || count["desc"] != 1 || count["text"] < 20 || count["script"]+count["image"] > 0 {
		t.Errorf("%s has %v: want a title, a description and text as text, no script and no image", file, count)
	}
	if !strings.Contains(string(text), "prefers-color-scheme: dark") || strings.Contains(strings.ReplaceAll(string(text), "http://www.w3.org/2000/svg", ""), "http") {
		t.Errorf("%s: want colors for a dark page, and no addresses", file)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil || !strings.Contains(string(readme), "("+file+")") {
		t.Errorf("README.md does not show %s: %v", file, err)
	}
}
