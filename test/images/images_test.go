// Package images_test tests what container images have: the programs run with nothing but the files of their image.
//
// No container engine is needed: a process whose root is the image's folder, with the image's user, has what a
// container's would have.
package images_test

import (
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pilothouse/pilothouse/test/require"
	"github.com/pilothouse/pilothouse/test/wait"
)

const (
	root = "../.."
	user = 1337
)

func TestMain(m *testing.M) {
	require.Envoy()
	require.Root()
	os.Exit(m.Run())
}

// image writes the files of an image, as deploy/Containerfile has them.
func image(t *testing.T, name string) string {
	t.Helper()
	envoy, err := require.EnvoyPath()
	if err != nil {
		t.Fatal(err)
	}
	roots := filepath.Join(t.TempDir(), "roots.crt")
	if err := os.WriteFile(roots, []byte("roots\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), name)
	c := exec.Command("hack/rootfs.sh", name, dir, "bin", roots, envoy)
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("hack/rootfs.sh %s: %v (make build)\n%s", name, err, out)
	}
	return dir
}

// inside is a command in an image, by the user of the image.
func inside(image string, args ...string) *exec.Cmd {
	c := exec.Command(args[0], args[1:]...)
	c.Dir, c.Env = "/", []string{"PATH=/usr/local/bin"}
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: image, Credential: &syscall.Credential{Uid: user, Gid: user}, Pdeathsig: syscall.SIGKILL}
	return c
}

func TestAgentImageRunsBothItsPrograms(t *testing.T) {
	dir := image(t, "agent")
	for program, want := range map[string]string{"/usr/local/bin/envoy --version": "/1.40.", "/usr/local/bin/pilot-agent version": "-", "/usr/local/bin/pilot-agent istio-iptables --dry-run": "nat"} {
		out, err := inside(dir, strings.Fields(program)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, output without %q:\n%s", program, err, want, out)
		}
	}
}

// TestDiscoveryImageServes runs pilot-discovery as the chart does: the image cannot be written, and the state folder
// is below a volume that everybody can write.
func TestDiscoveryImageServes(t *testing.T) {
	dir := image(t, "discovery")
	state := filepath.Join(dir, "var/lib/pilothouse")
	if err := os.Chmod(state, 0o777|fs.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "objects"), os.DirFS(filepath.Join(root, "samples/bookshop"))); err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(wait.FreePort(t)))
	c := inside(dir, "/usr/local/bin/pilot-discovery", "discovery", "--configDir=/objects", "--stateDir=/var/lib/pilothouse/state",
		"--httpAddr="+address, "--grpcAddr=", "--monitoringAddr=", fmt.Sprintf("--secureGRPCAddr=127.0.0.1:%d", wait.FreePort(t)))
	var output wait.Output
	c.Stdout, c.Stderr = &output, &output
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); err != nil || t.Failed() {
			t.Errorf("pilot-discovery: %v\n%s", err, output.String())
		}
	})
	wait.NoError(t, "pilot-discovery to be ready", func() error {
		r, err := http.Get("http://" + address + "/ready")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s", r.Status)
		}
		return nil
	})
	if info, err := os.Stat(filepath.Join(state, "state/ca/ca-key.pem")); err != nil || info.Mode().Perm() != 0o600 || info.Sys().(*syscall.Stat_t).Uid != user {
		t.Errorf("the key of the root: %v, error %v", info, err)
	}
}

// library matches the libraries of Envoy; their names depend on the machine.
var library = regexp.MustCompile(`^(usr/)?lib(64|exec)?/.*(\.so\b|ld-)`)

func TestImagesHaveNothingElse(t *testing.T) {
	common := []string{"etc/group", "etc/nsswitch.conf", "etc/passwd", "etc/ssl/certs/ca-certificates.crt"}
	for name, programs := range map[string][]string{"discovery": {"usr/local/bin/pilot-discovery"}, "agent": {"usr/local/bin/envoy", "usr/local/bin/pilot-agent"}} {
		dir := image(t, name)
		var files []string
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			short, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 || info.Mode().Perm()&0o022 != 0 && short != "tmp" {
				t.Errorf("%s: %s has mode %v", name, short, info.Mode())
			}
			if !d.IsDir() && !library.MatchString(short) {
				files = append(files, short)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Sorted(slices.Values(slices.Concat(common, programs)))
		if slices.Sort(files); !slices.Equal(files, want) {
			t.Errorf("%s has the files %q, want %q", name, files, want)
		}
	}
}

// engine runs hack/images.sh where the given script is the only engine; without one there is none.
func engine(t *testing.T, name, script string, env ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for _, tool := range []string{"bash", "env", "dirname", "tr", "cut"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, tool)); err != nil {
			t.Fatal(err)
		}
	}
	if script != "" {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/usr/bin/env bash\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("bash", "hack/images.sh")
	c.Dir, c.Env = root, append([]string{"PATH=" + dir, "VERSION=v1.2.3+a"}, env...)
	out, err := c.CombinedOutput()
	return string(out), err
}

func TestWithoutAnEngineImagesAreAnErrorOfOneLine(t *testing.T) {
	for name, script := range map[string]string{"none": "", "docker": "exit 1"} {
		out, err := engine(t, name, script)
		if err == nil || strings.Count(out, "\n") != 1 || !strings.Contains(out, "no container engine") {
			t.Errorf("%s: error %v, output %q; want one line that says that there is no engine", name, err, out)
		}
	}
	if out, err := engine(t, "docker", "", "ENGINE=nerdctl"); err == nil || !strings.Contains(out, "nerdctl") {
		t.Errorf("an engine that is not installed: error %v, output %q", err, out)
	}
}

func TestEnginesBuildBothImages(t *testing.T) {
	for _, name := range []string{"podman", "docker", "buildah"} {
		out, err := engine(t, name, `echo "$0 $*" | tr -s ' '`)
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		build := "build"
		if name == "buildah" {
			build += " --layers" // which the others keep anyway
		}
		for _, image := range []string{"discovery", "agent"} {
			want := fmt.Sprintf("/%s %s --file deploy/Containerfile --target %s --build-arg VERSION=v1.2.3+a --tag pilothouse/%s:v1.2.3_a .\n", name, build, image, image)
			if !strings.Contains(out, want) {
				t.Errorf("%s: %s does not have %q", name, out, want)
			}
		}
	}
}
