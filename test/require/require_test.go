package require_test

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/pilothouse/pilothouse/test/require"
)

// TestMain lets the tests run this program as one whose tests need something.
func TestMain(m *testing.M) {
	switch os.Getenv("REQUIRE") {
	case "envoy":
		require.Envoy()
	case "root":
		require.Root()
	case "kube":
		require.Kube()
	}
	os.Exit(m.Run())
}

// program runs this program with an environment, as another user than root if uid is not 0.
func program(t *testing.T, uid uint32, env ...string) (string, error) {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	// By its descriptor: another user can't reach the directory of the program.
	c := exec.CommandContext(t.Context(), "/proc/self/fd/3", "-test.run=^$")
	c.ExtraFiles = []*os.File{self}
	c.Env = append(c.Environ(), env...)
	if uid != 0 && os.Geteuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	out, err := c.CombinedOutput()
	return string(out), err
}

func TestMissingRequirementIsOneLine(t *testing.T) {
	for name, c := range map[string]struct {
		uid  uint32
		env  []string
		want string
	}{
		"no Envoy": {0, []string{"REQUIRE=envoy", "ENVOY=/nonexistent/envoy"}, "run 'make tools' first, or set ENVOY=/path/to/envoy: "},
		// The path depends on how the binary is built, and nobody builds it for this processor.
		"no Kubernetes": {0, []string{"REQUIRE=kube", "GOAMD64=v4", "GOARM64=v9.5"}, "run 'make kube' first: "},
		"no root":       {65534, []string{"REQUIRE=root"}, "run 'sudo make test', or 'sudo go test' for one package: "},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := program(t, c.uid, c.env...)
			if err == nil || !strings.HasPrefix(out, c.want) || strings.Count(out, "\n") != 1 {
				t.Errorf("error %v, output %q; want one line that begins with %q", err, out, c.want)
			}
		})
	}
}

func TestPresentRequirementsPass(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := program(t, 0, "REQUIRE=envoy", "ENVOY="+self); err != nil {
		t.Errorf("error %v, output %q", err, out)
	}
}
