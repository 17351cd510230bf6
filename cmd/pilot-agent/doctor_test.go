package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/agenttest"
)

// row is a line of pilot-agent doctor -o json.
type row struct{ Name, Why, Result, Found, Remedy string }

func diagnose(t *testing.T, args ...string) (map[string]row, int) {
	t.Helper()
	return diagnoseIn(t, map[string]string{}, args...)
}

// diagnoseIn is diagnose with an environment.
func diagnoseIn(t *testing.T, env map[string]string, args ...string) (map[string]row, int) {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(t.Context(), append([]string{"doctor", "-o", "json"}, args...), process{env: env, stdout: &out, stderr: &errOut})
	var rows []row
	if err := json.Unmarshal(out.Bytes(), &rows); err != nil {
		t.Fatalf("%v: %s%s", err, out.String(), errOut.String())
	}
	all := map[string]row{}
	for _, r := range rows {
		all[r.Name] = r
	}
	return all, code
}

// The doctor finds the settings of the agent that runs, sees that it is well, and sees what is wrong when it is not. The
// table of the status says the same. Its log levels are changed.
func TestDoctorStatusAndLogLevelsOfARunningAgent(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	a := agenttest.New(t, plane, "")
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	rows, _ := diagnose(t, "--statusPort", a.Status)
	for _, name := range []string{"agent", "settings", "kernel", "roots", "servers", "certificate", "versions"} {
		want := "ok"
		switch name {
		case "versions", "roots": // another build, a root that lives for an hour
			want = "warning"
		}
		if r := rows[name]; r.Result != want || r.Why == "" {
			t.Errorf("%s: %+v, want %s", name, r, want)
		}
	}
	for name, want := range map[string]string{
		"settings":    fmt.Sprintf("process %d", a.Cmd.Process.Pid),
		"servers":     "discovery " + plane.Addr,
		"versions":    "1.40.0",
		"certificate": "until 20",
		"roots":       "discovery: ./var/run/secrets/istio/root-cert.pem ends at",
		"ports":       a.Status,
	} {
		if !strings.Contains(rows[name].Found, want) {
			t.Errorf("%s found %q, want %q", name, rows[name].Found, want)
		}
	}
	text, code := command(t, "status", "--statusPort", a.Status)
	for _, want := range []string{
		"ready          yes\n", fmt.Sprintf("pid %d,", a.Cmd.Process.Pid), plane.Addr + ", connected since", "streams 1\n", "envoy          epoch 0, live, pid ",
		"configuration  clusters: ", "listeners: ", "capture        rules are not kept in force", "dns            not captured", "certificate until 20",
	} {
		if code != 0 || !strings.Contains(text, want) {
			t.Errorf("status (%d) lacks %q:\n%s", code, want, text)
		}
	}

	for _, tt := range []struct {
		levels, want string
		code         int
	}{
		{"", "xdsproxy  info\n", 0},
		{"xdsproxy:debug,sds:none", "xdsproxy  debug\n", 0},
		{"other:debug", `log level of "other": want one of the scopes default, `, failed},
		{"loud", `log level "loud": want debug, info, warn, error, fatal or none`, failed},
	} {
		args := []string{"log-level", "--statusPort", a.Status}
		if tt.levels != "" {
			args = append(args, tt.levels)
		}
		if text, code := command(t, args...); code != tt.code || !strings.Contains(text, tt.want) {
			t.Errorf("log-level %s (%d):\n%s", tt.levels, code, text)
		}
	}

	plane.Stop()
	if err := os.WriteFile(filepath.Join(a.Dir, "var/run/secrets/tokens/istio-token"), []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	agenttest.Until(t, "the loss of discovery is found", func() error {
		rows, code := diagnose(t, "--statusPort", a.Status)
		if code != failed || rows["servers"].Result != "failed" || rows["agent"].Result != "failed" || rows["token"].Found != "./var/run/secrets/tokens/istio-token: not a JWT" {
			return fmt.Errorf("%d %+v", code, rows)
		}
		return nil
	})
	if text, code := command(t, "status", "--statusPort", a.Status); code != 0 || !strings.Contains(text, "not connected since") {
		t.Errorf("status without discovery (%d):\n%s", code, text)
	}
}

// Without an agent the settings are those of the environment. Everything is looked at nevertheless.
func TestDoctorWithoutAnAgent(t *testing.T) {
	rows, code := diagnose(t, "--statusPort", agenttest.Port(t), "--timeout", "1s")
	if code != failed || len(rows) != 15 || rows["agent"].Result != "warning" || rows["settings"].Found != "the environment of this command" || rows["roots"].Result != "failed" {
		t.Errorf("%d %+v", code, rows)
	}
	text, code := command(t, "status", "--statusPort", agenttest.Port(t))
	if code != failed || !strings.Contains(text, "connection refused") {
		t.Errorf("status without an agent (%d): %s", code, text)
	}
}

// An agent without an Envoy needs neither the program nor its ports.
func TestDoctorWithoutEnvoy(t *testing.T) {
	env := map[string]string{"DISABLE_ENVOY": "true", "PROXY_CONFIG": "{binaryPath: /no/envoy}"}
	rows, _ := diagnoseIn(t, env, "--statusPort", agenttest.Port(t), "--timeout", "1s")
	if got := rows["versions"]; got.Result != "ok" || !strings.Contains(got.Found, "DISABLE_ENVOY") || !strings.HasPrefix(rows["ports"].Found, "1 ") {
		t.Errorf("%+v, %+v", got, rows["ports"])
	}
}

// The table has a line for each check, and what to do below it.
func TestDoctorPrintsATable(t *testing.T) {
	text, code := command(t, "doctor", "--statusPort", agenttest.Port(t), "--timeout", "1s")
	if code != failed || !strings.Contains(text, "! agent         none runs on this machine\n                → start it, if it should run: pilot-agent proxy\n") || !strings.Contains(text, "Error: some checks failed\n") {
		t.Errorf("%d:\n%s", code, text)
	}
}

func TestArgumentsOfAProcess(t *testing.T) {
	in, err := readInputOf(7, "/dir", split([]byte("/bin/pilot-agent\x00--log_as_json\x00proxy\x00router\x00--domain\x00x.local\x00--unknown=1\x00")), split([]byte("A=1\x00B=\x00")))
	if err != nil || in.role != "router" || in.flags["domain"] != "x.local" || in.flags["log_as_json"] != "true" || in.env["A"] != "1" || in.dir != "/dir" {
		t.Errorf("%+v, %v", in, err)
	}
	if _, err := readInputOf(7, "/dir", []string{"nginx"}, nil); err == nil || err.Error() != "process 7 is not pilot-agent proxy" {
		t.Errorf("error %v", err)
	}
}

// command runs pilot-agent in this process.
func command(t *testing.T, args ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	code := run(t.Context(), args, process{env: map[string]string{}, stdout: &out, stderr: &out})
	return out.String(), code
}
