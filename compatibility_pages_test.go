package pilothouse_test

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the summary in docs/compatibility/README.md")

const compatibility = "docs/compatibility"

// part is one half of the contract: what the first word of a citation names.
type part string

// The parts, and the pages that belong to each.
const (
	agentPart   part = "agent"
	controlPart part = "control-plane"
	envoyPart   part = "envoy"
)

// The heads of tables that hold rows. A table with another head states facts and is not checked.
var (
	rowHead  = []string{"id", "feature", "Istio", "here", "status", "shown by"}
	ruleHead = []string{"id", "rule", "what follows here", "shown by"}
)

// entry is one row of a page.
type entry struct {
	part      part
	page      string // path below docs/compatibility
	line      int
	id        string
	status    string // empty in tables of Envoy's rules
	text      string // all cells but the id
	shown     string
	hasStatus bool
}

func (e entry) where() string {
	return fmt.Sprintf("%s/%s:%d: %s", compatibility, e.page, e.line, e.id)
}

// pages is what docs/compatibility says.
type pages struct {
	rows     []entry
	sections map[part]map[string]bool // numbers of headings, such as 1.4
	mistakes []string
}

var (
	heading   = regexp.MustCompile(`^#+ (\d+(?:\.\d+)*) `)
	statuses  = regexp.MustCompile(`^(full|part|no|different on purpose \(.{6,}\))$`)
	rowID     = regexp.MustCompile(`^(?:[A-Z]{1,2}\d+|\d+\.\d+\.\d+)$`)
	separator = regexp.MustCompile(`^\|[-:| ]+\|$`)
)

// readPages reads every page below a directory, the README left out.
func readPages(dir string) (*pages, error) {
	p := &pages{sections: map[part]map[string]bool{agentPart: {}, controlPart: {}, envoyPart: {}}}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".md") || d.Name() == "README.md" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		p.page(filepath.ToSlash(name), string(text))
		return err
	})
	return p, err
}

// page reads one page's headings and tables.
func (p *pages) page(name, text string) {
	first, _, below := strings.Cut(name, "/")
	of := part(first)
	if !below {
		of = part(strings.TrimSuffix(name, ".md"))
	}
	if p.sections[of] == nil {
		p.mistakes = append(p.mistakes, fmt.Sprintf("%s/%s: a page belongs into agent or control-plane, or is envoy.md", compatibility, name))
		return
	}
	var head []string
	for i, line := range strings.Split(text, "\n") {
		if m := heading.FindStringSubmatch(line); m != nil {
			p.sections[of][m[1]] = true
		}
		switch {
		case !strings.HasPrefix(line, "|"):
			head = nil
		case head == nil:
			head = cells(line)
		case separator.MatchString(line):
		case slices.Equal(head, rowHead), slices.Equal(head, ruleHead):
			p.row(entry{part: of, page: name, line: i + 1, hasStatus: len(head) == len(rowHead)}, cells(line), len(head))
		}
	}
}

func (p *pages) row(e entry, c []string, want int) {
	if len(c) != want {
		p.mistakes = append(p.mistakes, fmt.Sprintf("%s/%s:%d: %d cells, want %d", compatibility, e.page, e.line, len(c), want))
		return
	}
	e.id, e.shown, e.text = c[0], c[want-1], strings.Join(c[1:], " ")
	if e.hasStatus {
		e.status = c[want-2]
	}
	p.rows = append(p.rows, e)
}

// cells takes a table's line apart; "\|" is a bar in a cell.
func cells(line string) []string {
	line = strings.ReplaceAll(strings.TrimSpace(line), `\|`, "\x00")
	parts := strings.Split(strings.Trim(line, "|"), "|")
	for i := range parts {
		parts[i] = strings.TrimSpace(strings.ReplaceAll(parts[i], "\x00", "|"))
	}
	return parts
}

func loadPages(t *testing.T) *pages {
	t.Helper()
	p, err := readPages(compatibility)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.rows) == 0 {
		t.Fatalf("%s holds no rows", compatibility)
	}
	return p
}

// known says which ids and sections a part has.
func (p *pages) known() map[part]map[string]bool {
	out := map[part]map[string]bool{}
	for of, sections := range p.sections {
		out[of] = map[string]bool{}
		for s := range sections {
			out[of][s] = true
		}
	}
	for _, e := range p.rows {
		out[e.part][e.id] = true
	}
	return out
}

var link = regexp.MustCompile(`\]\(([^)#:]+)\)`)

func TestCompatibilityLinksResolve(t *testing.T) {
	err := filepath.WalkDir(compatibility, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s: link: %v", path, err)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestCompatibilitySummary(t *testing.T) {
	const begin, end = "<!-- counts -->\n", "<!-- end of counts -->"
	file := compatibility + "/README.md"
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := bytes.Cut(old, []byte(begin))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok1 || !ok2 {
		t.Fatalf("%s: want the summary between %q and %q", file, begin, end)
	}
	want := slices.Concat(before, []byte(begin), []byte(loadPages(t).summary(t)), []byte(end), after)
	if bytes.Equal(old, want) {
		return
	}
	if !*update {
		t.Fatalf("%s: the counts are not current; run: go test -run TestCompatibilitySummary . -update", file)
	}
	if err := os.WriteFile(file, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

// summary is the table of the README: a page's title, and how many of its rows have which status.
func (p *pages) summary(t *testing.T) string {
	t.Helper()
	var names []string
	counts := map[string]map[string]int{"": {}}
	for _, e := range p.rows {
		if !e.hasStatus {
			continue
		}
		if counts[e.page] == nil {
			counts[e.page] = map[string]int{}
			names = append(names, e.page)
		}
		status, _, _ := strings.Cut(e.status, " ")
		counts[e.page][status]++
		counts[""][status]++
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("| page | full | part | no | different on purpose |\n|---|---|---|---|---|\n")
	line := func(title string, c map[string]int) {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", title, c["full"], c["part"], c["no"], c["different"])
	}
	for _, n := range names {
		text, err := os.ReadFile(filepath.Join(compatibility, n))
		if err != nil {
			t.Fatal(err)
		}
		title, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		line(fmt.Sprintf("[%s](%s)", title, n), counts[n])
	}
	line("all", counts[""])
	return b.String()
}
