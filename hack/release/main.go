// Release builds the files of a release into a directory: programs, completion scripts, manual pages, an SBOM for each platform, Helm charts, checksums.
//
// The files depend on the sources, the version, the time of the commit and the Go release only: not on
// the path of the clone, the user, or the machine's own architecture. `make release` passes the version
// and the time. The directory is replaced as a whole, once everything in it is complete.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// programs are the commands of a release, in ./cmd.
var programs = []string{"pilot-agent", "pilot-discovery", "pilotctl"}

// architectures are the values of GOARCH of a release. hack/tools.sh has an Envoy for each.
var architectures = []string{"amd64", "arm64"}

// shells maps each shell to the name of its completion script, as its own search for scripts expects it.
var shells = map[string]string{"bash": "bash/%s", "zsh": "zsh/_%s", "fish": "fish/%s.fish"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	r := &release{log: os.Stderr}
	var epoch int64
	flag.StringVar(&r.version, "version", "", "`version` of the release, part of each file's name")
	flag.Int64Var(&epoch, "epoch", 0, "time of the commit, in `seconds` since 1970 UTC; the time of every file")
	flag.StringVar(&r.out, "o", "dist", "`directory` to replace")
	flag.BoolVar(&r.onlyCharts, "charts", false, "write the Helm charts only")
	flag.Parse()
	r.time = time.Unix(epoch, 0).UTC()
	if err := r.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1)
	}
}

// release is one run of the program, in the root of the repository.
type release struct {
	version string
	time    time.Time
	out     string
	log     io.Writer
	// onlyCharts leaves out everything but the charts.
	onlyCharts bool
}

// run builds everything in a new directory beside the output directory, and then renames it.
func (r *release) run(ctx context.Context) error {
	if r.version == "" || strings.ContainsAny(r.version, "/ \n") {
		return fmt.Errorf("invalid version %q: want the name of a tag or a commit", r.version)
	}
	if r.time.Unix() <= 0 {
		return errors.New("-epoch is required: want the time of the commit in seconds since 1970")
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(r.out)), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(filepath.Clean(r.out)), ".release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	dist := filepath.Join(work, "dist")
	if err := os.Mkdir(dist, 0o755); err != nil {
		return err
	}
	if err := r.packCharts(ctx, work, dist); err != nil {
		return err
	}
	if !r.onlyCharts {
		if err := r.programs(ctx, work, dist); err != nil {
			return err
		}
	}
	if err := writeSums(dist); err != nil {
		return err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.Rename(dist, r.out); err != nil {
		return err
	}
	fmt.Fprintf(r.log, "release: %s: %s\n", r.version, r.out)
	return nil
}

// programs writes what has the programs, their completion scripts and their manual pages.
func (r *release) programs(ctx context.Context, work, dist string) error {
	for _, arch := range architectures {
		if err := r.platform(ctx, arch, filepath.Join(work, arch), dist); err != nil {
			return err
		}
	}
	return r.pages(ctx, work, dist)
}

// name is the name of a file of the release.
func (r *release) name(suffix string) string { return "pilothouse-" + r.version + "-" + suffix }

// platform builds the programs for one architecture and writes their archive and their SBOM.
func (r *release) platform(ctx context.Context, arch, work, dist string) error {
	fmt.Fprintln(r.log, "release: building for", arch)
	if err := r.build(ctx, arch, work); err != nil {
		return err
	}
	var binaries []binary
	for _, p := range programs {
		b, err := readBinary(p, filepath.Join(work, p))
		if err != nil {
			return err
		}
		binaries = append(binaries, b)
	}
	bom, err := sbom(r.version, r.time, "linux/"+arch, binaries)
	if err != nil {
		return err
	}
	name := r.name("linux-" + arch)
	if err := os.WriteFile(filepath.Join(dist, name+".cdx.json"), bom, 0o644); err != nil {
		return err
	}
	for _, f := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(work, f), text, 0o644); err != nil {
			return err
		}
	}
	return writeArchive(filepath.Join(dist, name+".tar.gz"), work, name, r.time)
}

// build compiles all programs into a directory. What could make two builds differ is set here: the
// path, the caller's flags and experiments, and the level of the instruction set.
func (r *release) build(ctx context.Context, arch, dir string) error {
	args := []string{
		"build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-pgo=hack/pgo/pilot-discovery.pgo", "-tags", "grpcnotrace",
		"-ldflags", "-s -w -buildid= -X main.version=" + r.version, "-o", dir + "/",
	}
	for _, p := range programs {
		args = append(args, "./cmd/"+p)
	}
	c := exec.CommandContext(ctx, "go", args...)
	c.Env = append(c.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "GOEXPERIMENT=", "GOFIPS140=off")
	c.Stderr = r.log
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := c.Run(); err != nil {
		return fmt.Errorf("build for %s: %w", arch, err)
	}
	return nil
}

// pages writes the archives of the completion scripts and of the manual pages. The programs print their
// own, so those of this machine's architecture are run.
func (r *release) pages(ctx context.Context, work, dist string) error {
	scripts, man := filepath.Join(work, "completion"), filepath.Join(work, "man")
	for _, p := range programs {
		program := filepath.Join(work, runtime.GOARCH, p)
		for shell, file := range shells {
			text, err := exec.CommandContext(ctx, program, "completion", shell).Output()
			if err != nil {
				return fmt.Errorf("print the completion script of %s for %s: %w", p, shell, err)
			}
			path := filepath.Join(scripts, fmt.Sprintf(file, p))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, text, 0o644); err != nil {
				return err
			}
		}
		c := exec.CommandContext(ctx, program, "collateral", "--man", "--output_dir", man)
		c.Stderr = r.log
		if err := c.Run(); err != nil {
			return fmt.Errorf("write the manual pages of %s: %w", p, err)
		}
	}
	if err := writeArchive(filepath.Join(dist, r.name("completion.tar.gz")), scripts, r.name("completion"), r.time); err != nil {
		return err
	}
	return writeArchive(filepath.Join(dist, r.name("man.tar.gz")), man, r.name("man"), r.time)
}
