package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// charts are the names of the Helm charts, in chartsFolder.
var charts = []string{"pilothouse", "gateway", "remote"}

const (
	chartsFolder = "deploy/charts"
	// crdChart is the chart that gets Istio's CustomResourceDefinitions.
	crdChart = "pilothouse"
	// crdFile has all of them, in the module istio.io/api.
	crdFile = "kubernetes/customresourcedefinitions.gen.yaml"
)

// unreleased are the lines of a Chart.yaml that a release replaces.
const unreleased = "version: 0.0.0-dev\nappVersion: dev\n"

// packCharts writes an archive of each chart to dist. Their version is that of the release, without the v
// of a tag; that of anything but a tag is below all versions of releases.
func (r *release) packCharts(ctx context.Context, work, dist string) error {
	version := chartVersion(r.version)
	for _, name := range charts {
		dir := filepath.Join(work, "charts", name)
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(chartsFolder, name))); err != nil {
			return fmt.Errorf("copy the chart %s: %w", name, err)
		}
		if err := setVersions(filepath.Join(dir, "Chart.yaml"), version, r.version); err != nil {
			return err
		}
		if name == crdChart {
			if err := writeCRDs(ctx, filepath.Join(dir, "crds")); err != nil {
				return err
			}
		}
		if err := writeArchive(filepath.Join(dist, name+"-"+version+".tgz"), dir, name, r.time); err != nil {
			return err
		}
	}
	return nil
}

// tagged matches the versions of releases, and those that git describe makes of a later commit.
var tagged = regexp.MustCompile(`^v?(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$`)

// chartVersion is a version of a release as Helm requires it, in the form of semantic versions.
func chartVersion(version string) string {
	if tagged.MatchString(version) {
		return strings.TrimPrefix(version, "v")
	}
	// A part of digits alone must not begin with 0, which the name of a commit may.
	return "0.0.0-dev.g" + version
}

// setVersions replaces the versions in a Chart.yaml.
func setVersions(file, version, app string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, after, found := strings.Cut(string(text), unreleased)
	if !found {
		return fmt.Errorf("%s: no lines %q to replace", file, unreleased)
	}
	text = fmt.Appendf(nil, "%sversion: %s\nappVersion: %q\n%s", before, version, app, after)
	return os.WriteFile(file, text, 0o644)
}

// writeCRDs writes Istio's CustomResourceDefinitions to a new directory, each to a file of its own: Helm skips the
// rest of a file when something in it exists already.
func writeCRDs(ctx context.Context, dir string) error {
	out, err := exec.CommandContext(ctx, "go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", "istio.io/api").Output()
	if err != nil {
		return fmt.Errorf("find the module istio.io/api: %w", err)
	}
	source := filepath.Join(strings.TrimSpace(string(out)), filepath.FromSlash(crdFile))
	text, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	written := 0
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		name, err := crdName(document)
		if err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		if name == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name+".yaml"), []byte(strings.TrimSpace(document)+"\n"), 0o644); err != nil {
			return err
		}
		written++
	}
	if written == 0 {
		return fmt.Errorf("%s: no CustomResourceDefinition", source)
	}
	return nil
}

// crdName is the name of the CustomResourceDefinition in a document; empty for an empty document.
func crdName(document string) (string, error) {
	var object struct {
		Kind     string
		Metadata struct{ Name string }
	}
	switch err := yaml.Unmarshal([]byte(document), &object); {
	case err != nil:
		return "", err
	case object.Kind == "":
		return "", nil
	case object.Kind != "CustomResourceDefinition":
		return "", fmt.Errorf("unexpected kind %q: want CustomResourceDefinition", object.Kind)
	case object.Metadata.Name == "" || filepath.Base(object.Metadata.Name) != object.Metadata.Name:
		return "", errors.New("a CustomResourceDefinition has no name that could be that of a file")
	}
	return object.Metadata.Name, nil
}
