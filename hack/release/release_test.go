package main

import (
	"archive/tar"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

var when = time.Unix(1_700_000_000, 0).UTC()

// tree writes the same two files, made in the given order, with other times and narrower modes each time.
func tree(t *testing.T, names ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Join(names, "-"))
	for i, name := range names {
		path := filepath.Join(dir, filepath.FromSlash(name))
		mode := os.FileMode(0o600)
		if name == "b/run" {
			mode = 0o700
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("contents of "+name), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, when, when.Add(time.Duration(i)*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestArchiveDependsOnFilesOnly(t *testing.T) {
	out := t.TempDir()
	var sums []string
	for i, dir := range []string{tree(t, "b/run", "a"), tree(t, "a", "b/run")} {
		file := filepath.Join(out, string(rune('0'+i)))
		if err := writeArchive(file, dir, "top", when); err != nil {
			t.Fatal(err)
		}
		sum, err := sumOf(file)
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, sum)
	}
	if sums[0] != sums[1] {
		t.Errorf("archives of the same files differ: %s", sums)
	}
	checkArchive(t, filepath.Join(out, "0"))
}

func checkArchive(t *testing.T, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	if zip.Name != "" || !zip.ModTime.IsZero() {
		t.Errorf("gzip header has name %q and time %v, want neither", zip.Name, zip.ModTime)
	}
	want := []tar.Header{{Name: "top/a", Mode: 0o644}, {Name: "top/b/run", Mode: 0o755}}
	archive := tar.NewReader(zip)
	for _, w := range want {
		h, err := archive.Next()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if h.Name != w.Name || h.Mode != w.Mode || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || !h.ModTime.Equal(when) || err != nil {
			t.Errorf("entry %+v, error %v; want %s with mode %o of owner 0 at %v", h, err, w.Name, w.Mode, when)
		}
		if want := "contents of " + strings.TrimPrefix(w.Name, "top/"); string(text) != want {
			t.Errorf("%s holds %q, want %q", h.Name, text, want)
		}
	}
	if _, err := archive.Next(); err != io.EOF {
		t.Errorf("more entries than wanted: %v", err)
	}
}

func TestArchiveRejectsLinks(t *testing.T) {
	dir := tree(t, "a")
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	err := writeArchive(filepath.Join(t.TempDir(), "x"), dir, "top", when)
	if err == nil || !strings.Contains(err.Error(), "link is not a regular file") {
		t.Errorf("error %v", err)
	}
}

func TestSumsNameEachFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "a"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeSums(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, sumsFile))
	want := "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a\n" +
		"3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d  b\n"
	if string(text) != want || err != nil {
		t.Errorf("%s, error %v; want %s", text, err, want)
	}
}

func TestSBOMListsWhatProgramsAreBuiltFrom(t *testing.T) {
	first := binary{"one", "aa", &buildinfo.BuildInfo{
		GoVersion: "go1.2.3",
		Deps: []*debug.Module{
			{Path: "example.org/b", Version: "v1.0.0", Sum: "h1:b="},
			{Path: "example.org/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.org/new", Version: "v2.0.0+incompatible", Sum: "h1:n="}},
		},
		Settings: []debug.BuildSetting{{Key: "GOARCH", Value: "arm64"}},
	}}
	second := binary{"two", "bb", &buildinfo.BuildInfo{
		GoVersion: "go1.2.3", Deps: []*debug.Module{{Path: "example.org/a", Version: "v0.1.0", Sum: "h1:a="}, {Path: "example.org/b", Version: "v1.0.0", Sum: "h1:b="}},
	}}
	text, err := sbom("v9", when, "linux/arm64", []binary{first, second})
	if err != nil {
		t.Fatal(err)
	}
	var got bom
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Format != "CycloneDX" || got.SpecVersion != "1.6" || got.Metadata.Component.Version != "v9" || got.Metadata.Timestamp != "2023-11-14T22:13:20Z" {
		t.Errorf("head %+v", got)
	}
	var refs []string
	for _, c := range got.Components {
		refs = append(refs, c.Ref)
	}
	want := []string{
		"one", "two", "pkg:golang/example.org/a@v0.1.0", "pkg:golang/example.org/b@v1.0.0",
		"pkg:golang/example.org/new@v2.0.0%2Bincompatible", "pkg:golang/std@1.2.3",
	}
	if !slices.Equal(refs, want) {
		t.Errorf("components %v, want %v", refs, want)
	}
	if d := got.Dependencies; len(d) != 3 || !slices.Equal(d[0].DependsOn, []string{"one", "two"}) || !slices.Equal(d[2].DependsOn, []string{want[5], want[2], want[3]}) {
		t.Errorf("dependencies %+v", d)
	}
	if p := got.Components[2].Properties; len(p) != 1 || p[0] != (property{"go:sum", "h1:a="}) {
		t.Errorf("module's properties %+v", p)
	}
}

// A program's build information is read from the program itself: here, from this test.
func TestBuildInformationOfAProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := readBinary("self", self)
	if err != nil || !strings.HasPrefix(b.info.GoVersion, "go") || len(b.sum) != 64 {
		t.Errorf("%+v, error %v", b, err)
	}
	if _, err := readBinary("text", "sbom.go"); err == nil || !strings.Contains(err.Error(), "sbom.go") {
		t.Errorf("a file that is not a program: error %v", err)
	}
}

func TestReleaseNeedsVersionAndTime(t *testing.T) {
	for name, r := range map[string]*release{
		"invalid version":    {time: when},
		"-epoch is required": {version: "v1", time: time.Unix(0, 0)},
		`version "a/b"`:      {version: "a/b", time: when},
	} {
		if err := r.run(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one with %q", err, name)
		}
	}
}
