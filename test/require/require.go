// Package require ends a test program with one line where the machine lacks what all its tests need.
//
// Its functions are called in TestMain, before any test. A test program that lacks something fails: tests are
// not skipped, since nobody would notice that on CI.
package require

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
)

// EnvoyPath is the path of the Envoy to test with: the one that ENVOY names, else .tools/envoy of the repository.
// The error says what to run first.
func EnvoyPath() (string, error) {
	path := os.Getenv("ENVOY")
	if path == "" {
		root, err := Repository()
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, ".tools", "envoy")
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("run 'make tools' first, or set ENVOY=/path/to/envoy: the tests start Envoy: %w", err)
	}
	return path, nil
}

// Envoy ends the program with exit code 1 if there is no Envoy.
func Envoy() {
	_, err := EnvoyPath()
	exitOn(err)
}

// KubePath is the path of the Kubernetes control plane to test with, .tools/kube-HASH of the repository, where
// HASH is that of its sources as they are now. The error says what to run first.
func KubePath() (string, error) {
	root, err := Repository()
	if err != nil {
		return "", err
	}
	out, err := exec.Command(filepath.Join(root, "hack", "kube.sh"), "--path").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return "", fmt.Errorf("find the Kubernetes control plane of the tests: hack/kube.sh --path: %w", err)
	}
	path := strings.TrimSpace(string(out))
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("run 'make kube' first: the tests start a Kubernetes control plane: %w", err)
	}
	return path, nil
}

// Kube ends the program with exit code 1 if the Kubernetes control plane is not built.
func Kube() {
	_, err := KubePath()
	exitOn(err)
}

// BeforePath is the directory with the programs and the charts of the version before, .tools/before-COMMIT of the repository. The
// error says what to run first.
func BeforePath() (string, error) {
	root, err := Repository()
	if err != nil {
		return "", err
	}
	out, err := exec.Command(filepath.Join(root, "hack", "before.sh"), "--path").Output()
	if err != nil {
		return "", fmt.Errorf("find the programs of the version before: hack/before.sh --path: %w", err)
	}
	path := strings.TrimSpace(string(out))
	for _, file := range []string{"pilot-agent", "charts"} { // an earlier one has no charts
		if _, err := os.Stat(filepath.Join(path, file)); err != nil {
			return "", fmt.Errorf("run 'make before' first, in a clone with the repository's history: the tests run the version before: %w", err)
		}
	}
	return path, nil
}

// Before ends the program with exit code 1 if the version before is not built.
func Before() {
	_, err := BeforePath()
	exitOn(err)
}

// Root ends the program with exit code 1 if this user, or this machine, cannot make network namespaces.
func Root() {
	if os.Geteuid() != 0 {
		exitOn(fmt.Errorf("run 'sudo make test', or 'sudo go test' for one package: the tests make network namespaces, which needs root (this is user %d)", os.Geteuid()))
	}
	exitOn(netmesh.Supported())
}

// exitOn ends the program if there is an error.
func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Repository is the directory of this repository: the one at or above the working directory whose go.mod has the
// main module. The modules below it, such as test/charts, belong to it.
func Repository() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/pilothouse/pilothouse\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the repository: no go.mod of it in %s or above", start)
		}
	}
}
