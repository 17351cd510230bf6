// Package packages_test builds the packages of a virtual machine and looks into them.
//
// Envoy is replaced by a small program, which saves time. The deb is read by dpkg-deb, the rpm here, and its digests by the
// program rpm where make deps could install it.
package packages_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// build writes both packages to a folder and returns their paths.
func build(t *testing.T, epoch string) (deb, rpm string) {
	t.Helper()
	out := t.TempDir()
	c := exec.Command("hack/packages.sh", "deb", "rpm")
	c.Dir = "../.."
	c.Env = append(os.Environ(), "VERSION=v1.2.3-4-gabc", "SOURCE_DATE_EPOCH="+epoch, "OUT="+out, "ENVOY=/bin/true")
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	find := func(pattern string) string {
		all, err := filepath.Glob(filepath.Join(out, pattern))
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %q, %v, want one file", pattern, all, err)
		}
		return all[0]
	}
	return find("pilothouse-agent_1.2.3+4+gabc_*.deb"), find("pilothouse-agent-1.2.3+4+gabc-1.*.rpm")
}

// output runs a program that must succeed.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, said.String())
	}
	return string(out)
}

// contents are what both packages have, in the form "mode owner path"; folders end with a slash. [agent V1]
var contents = []string{
	"-rwxr-xr-x root /usr/local/bin/envoy", "-rwxr-xr-x root /usr/local/bin/istio-start.sh", "-rwxr-xr-x root /usr/local/bin/pilot-agent",
	"-rw-r--r-- root /var/lib/istio/envoy/sidecar.env", "-rw-r--r-- root /usr/share/man/man1/pilot-agent.1.gz", "-rw-r--r-- root /usr/share/man/man1/pilot-agent-join.1.gz",
	"drwxr-xr-x istio-proxy /etc/certs/", "drwxr-xr-x istio-proxy /etc/istio/proxy/", "drwxr-xr-x root /etc/istio/config/",
	"drwxr-xr-x istio-proxy /var/lib/istio/config/", "drwxr-xr-x istio-proxy /var/lib/istio/proxy/", "drwxr-xr-x root /var/lib/istio/envoy/",
}

func check(t *testing.T, kind string, have []string, unit string) {
	t.Helper()
	for _, want := range append(slices.Clone(contents), "-rw-r--r-- root "+unit) {
		if !slices.Contains(have, want) {
			t.Errorf("the %s has no %q: %s", kind, want, strings.Join(have, "\n"))
		}
	}
}

func TestPackages(t *testing.T) {
	deb, rpm := build(t, "1700000000")
	// The same input gives the same bytes.
	deb2, rpm2 := build(t, "1700000000")
	for one, two := range map[string]string{deb: deb2, rpm: rpm2} {
		a, err := os.ReadFile(one)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(two); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs between two builds: %v", filepath.Base(one), err)
		}
	}
	t.Run("deb", func(t *testing.T) { checkDeb(t, deb) })
	t.Run("rpm", func(t *testing.T) { checkRPM(t, rpm) })
}

func checkDeb(t *testing.T, file string) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Fatal("dpkg-deb is needed: install dpkg")
	}
	var have []string
	for line := range strings.Lines(output(t, "dpkg-deb", "-c", file)) {
		f := strings.Fields(line)
		owner, _, _ := strings.Cut(f[1], "/")
		if f[3] != "2023-11-14" {
			t.Errorf("the time is that of the build: %s", line)
		}
		have = append(have, fmt.Sprint(f[0], " ", owner, " ", strings.TrimPrefix(f[5], ".")))
	}
	check(t, "deb", have, "/lib/systemd/system/istio.service")
	root, control := t.TempDir(), t.TempDir()
	output(t, "dpkg-deb", "-x", file, root)
	output(t, "dpkg-deb", "-e", file, control)
	if text, err := os.ReadFile(filepath.Join(control, "conffiles")); err != nil || string(text) != "/var/lib/istio/envoy/sidecar.env\n" {
		t.Errorf("conffiles: %q, %v", text, err)
	}
	for _, script := range []string{"preinst", "postinst", "prerm", "postrm"} {
		output(t, "sh", "-n", filepath.Join(control, script))
	}
	// The programs work, with the version of the package.
	agent := filepath.Join(root, "usr/local/bin/pilot-agent")
	if got := output(t, agent, "version", "--short"); !strings.Contains(got, "v1.2.3-4-gabc") {
		t.Errorf("the version is %q", got)
	}
	output(t, "sh", "-n", filepath.Join(root, "usr/local/bin/istio-start.sh"))
	verifyUnit(t, filepath.Join(root, "lib/systemd/system/istio.service"), agent)
}

// verifyUnit has systemd read the unit, with a program that exists here.
func verifyUnit(t *testing.T, file, program string) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("there is no systemd-analyze: the unit is checked by internal/agent/vm.TestUnit only")
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "istio.service")
	if err := os.WriteFile(unit, bytes.ReplaceAll(text, []byte("/usr/local/bin/pilot-agent"), []byte(program)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "istio.service") {
			t.Errorf("systemd-analyze: %s", line)
		}
	}
	t.Logf("systemd-analyze: %v %s", err, out)
}

func checkRPM(t *testing.T, file string) {
	h, err := readRPM(file)
	if err != nil {
		t.Fatal(err)
	}
	have, config := h.files()
	check(t, "rpm", have, "/usr/lib/systemd/system/istio.service")
	if want := []string{"/var/lib/istio/envoy/sidecar.env"}; !slices.Equal(config, want) {
		t.Errorf("configuration files: %q, want %q", config, want)
	}
	var scripts string
	for _, tag := range []uint32{tagPreIn, tagPostIn, tagPreUn, tagPostUn} {
		scripts += h.text(tag, 0)
	}
	for _, want := range []string{"useradd --system --gid istio-proxy", "systemctl try-restart istio.service", "pilot-agent leave"} {
		if !strings.Contains(scripts, want) {
			t.Errorf("no script has %q: %s", want, scripts)
		}
	}
	if _, err := exec.LookPath("rpm"); err == nil {
		output(t, "rpm", "-K", "--nosignature", file)
	}
}
