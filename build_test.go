package pilothouse_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// This file is about how the programs are built.

// buildProfile is the profile by which the compiler optimizes. "make pgo" writes it.
const buildProfile = "hack/pgo/pilot-discovery.pgo"

// One build that differed from the others would compile all packages again, and tests would not test what is released.
func TestProgramsAreBuiltByTheProfile(t *testing.T) {
	builds := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == ".git" || name == ".tools" || name == "bin" || name == "dist" || name == "docs" {
				return fs.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); ext != ".go" && ext != ".sh" && d.Name() != "Makefile" && d.Name() != "Containerfile" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			// A build of the programs has this tag. hack/before.sh builds an earlier version, which may have no profile.
			if !strings.Contains(line, "-trimpath") || !strings.Contains(line, "grpcnotrace") || path == "hack/before.sh" || path == "build_test.go" {
				continue
			}
			builds++
			if !strings.Contains(line, buildProfile) {
				t.Errorf("%s builds without -pgo=%s:\n%s", path, buildProfile, line)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if builds < 5 {
		t.Errorf("found %d builds of the programs: what is searched for is not how they are built any more", builds)
	}
}

// A profile of functions that are not there any more has no effect, and nothing tells.
func TestBuildProfileIsCurrent(t *testing.T) {
	packed, err := os.ReadFile(buildProfile)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	profile, err := io.ReadAll(io.LimitReader(r, 64<<20))
	if err != nil {
		t.Fatal(err)
	}
	// Functions are "module/internal/discovery/xds.(*Sub).Step" in its table of strings.
	function := regexp.MustCompile(`^` + regexp.QuoteMeta(module) + `/((?:internal|cmd)/[a-z0-9/]+)\.(?:\(\*?\w+[^)]*\)\.)?(\w+)`)
	sources := map[string]string{}
	found, seen := 0, map[string]bool{}
	for len(profile) > 0 {
		n, typ, size := protowire.ConsumeField(profile)
		if size < 0 {
			t.Fatal(protowire.ParseError(size))
		}
		field := profile[:size]
		profile = profile[size:]
		// string_table of https://github.com/google/pprof/blob/main/proto/profile.proto
		if n != 6 || typ != protowire.BytesType {
			continue
		}
		text, _ := protowire.ConsumeBytes(field[protowire.SizeTag(n):])
		m := function.FindSubmatch(text)
		if m == nil {
			continue
		}
		dir, name := string(m[1]), string(m[2])
		if seen[dir+"."+name] {
			continue
		}
		seen[dir+"."+name] = true
		if _, read := sources[dir]; !read {
			files, err := filepath.Glob(dir + "/*.go")
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				text, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				sources[dir] += string(text)
			}
		}
		if regexp.MustCompile(`func (\([^)]*\) )?` + name + `\b`).MatchString(sources[dir]) {
			found++
		}
	}
	if len(seen) < 100 || found < len(seen)*3/4 {
		t.Errorf(`%s names %d functions of this module, of which %d are in the source: run "make pgo"`, buildProfile, len(seen), found)
	}
}
