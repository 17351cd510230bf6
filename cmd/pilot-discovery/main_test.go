package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/test/wait"
)

func TestUsageErrorsExitWith2(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{[]string{"discover"}, nil, `unknown command "discover" for "pilot-discovery"; did you mean discovery? (see pilot-discovery --help)`},
		{[]string{"request", "GET"}, nil, "received 1 (see pilot-discovery request --help)"},
		{[]string{"version", "x"}, nil, "(see pilot-discovery version --help)"},
		{[]string{"discovery"}, nil, "--configDir"},
		{[]string{"discovery", "--configDir", dir, "--tls-min-version", "1.1"}, nil, "want 1.2 or 1.3"},
		{[]string{"discovery", "--configDir", dir, "--maxStreams", "0"}, nil, "want 1 or more"},
		{[]string{"discovery", "--configDir", dir, "--log_output_level", "loud"}, nil, `flag --log_output_level: invalid level "loud": want debug`},
		{[]string{"discovery", "--configDir", dir, "--broken-policies", "allow"}, nil, "want deny or ignore"},
		{[]string{"discovery", "--configDir", dir}, map[string]string{"PILOTHOUSE_BROKEN_POLICIES": "allow"}, "want deny or ignore"},
		{[]string{"discovery", "--configDir", dir}, map[string]string{"PILOTHOUSE_ACCEPT_EMPTY_CONFIG": "perhaps"}, "want true or false"},
		{[]string{"discovery", "--configDir", dir}, map[string]string{"MAX_WORKLOAD_CERT_TTL": "-1h"}, "MAX_WORKLOAD_CERT_TTL"},
		{[]string{"discovery", "--configDir", dir}, map[string]string{"PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_INBOUND": "perhaps"}, "want true or false"},
		{[]string{"discovery", "--configDir", dir}, map[string]string{"JWT_RULE": `{"issuer": "me"}`}, "environment JWT_RULE: issuer, whose discovery document is read"},
		{[]string{"discovery", "--configDir", dir}, map[string]string{"TRUSTED_GATEWAY_CIDR": "10.0.0.0/8,0.0.0.0/0"}, `environment TRUSTED_GATEWAY_CIDR: invalid CIDR "0.0.0.0/0"`},
		{[]string{"discovery", "--configDir", dir}, map[string]string{"PILOTHOUSE_CERTIFICATES_PER_SECOND": "-1"}, "want 0 or more"},
	} {
		var out, errs wait.Output
		if code := run(t.Context(), c.args, c.env, &out, &errs); code != 2 || !strings.Contains(errs.String(), c.want) {
			t.Errorf("%v: code %d, said %q, want 2 and %q", c.args, code, errs.String(), c.want)
		}
	}
}

func TestVersionAndExitCodesAreTold(t *testing.T) {
	for flag, want := range map[string]string{"--version": version + "\n", "--help": "Exit codes: 0 after a signal to end"} {
		var out, errs wait.Output
		if code := run(t.Context(), []string{flag}, nil, &out, &errs); code != 0 || !strings.Contains(out.String(), want) {
			t.Errorf("%s: code %d, said %q and %q, want %q", flag, code, out.String(), errs.String(), want)
		}
	}
}

func TestMissingDirectoryExitsWith1(t *testing.T) {
	var out, errs wait.Output
	missing := filepath.Join(t.TempDir(), "none")
	code := run(t.Context(), []string{"discovery", "--configDir", missing, "--stateDir", t.TempDir()}, nil, &out, &errs)
	if code != 1 || !strings.Contains(errs.String(), missing) {
		t.Errorf("code %d, said %q", code, errs.String())
	}
}

// A port that another program has is told with its flag and what to do, before a key or root is made.
func TestABusyPortIsToldBeforeKeysAreMade(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	flags := []string{"--httpAddr", "--grpcAddr", "--secureGRPCAddr", "--monitoringAddr", "--httpsAddr"}
	for _, flag := range flags {
		state := filepath.Join(t.TempDir(), "state")
		args := []string{"discovery", "--configDir", t.TempDir(), "--stateDir", state}
		for _, other := range flags {
			address := "127.0.0.1:0"
			if other == flag {
				address = busy.Addr().String()
			}
			args = append(args, other, address)
		}
		var out, errs wait.Output
		code := run(t.Context(), args, nil, &out, &errs)
		for _, want := range []string{"flag " + flag + ": ", busy.Addr().String(), "another program has the port: end it, or choose another port"} {
			if code != 1 || !strings.Contains(errs.String(), want) {
				t.Errorf("%s: code %d, %q; want code 1 and %q", flag, code, errs.String(), want)
			}
		}
		if strings.Contains(errs.String(), "was made") {
			t.Errorf("%s: %q", flag, errs.String())
		}
		if left, err := os.ReadDir(state); err == nil && len(left) > 0 {
			t.Errorf("%s: %v is left in the state folder", flag, left)
		}
	}
}

func TestConflictingTrustDomainsExitWith1(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "mesh")
	if err := os.WriteFile(file, []byte("trustDomain: b.example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs wait.Output
	code := run(t.Context(), []string{"discovery", "--configDir", dir, "--stateDir", t.TempDir(), "--meshConfig", file},
		map[string]string{"TRUST_DOMAIN": "a.example"}, &out, &errs)
	if code != 1 {
		t.Errorf("code %d, want 1", code)
	}
	for _, want := range []string{`"a.example"`, `"b.example"`, "TRUST_DOMAIN", file, "the same in both"} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("%q does not say %s", errs.String(), want)
		}
	}
}

// The command has an unknown flag, an invalid object and a valid one.
func TestServesUntilSignalled(t *testing.T) {
	dir := t.TempDir()
	yaml := "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b}\nspec: {ports: [{name: http, port: 80}]}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: b}\nspec: {ports: [{name: http, port: 700000}]}\n"
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs wait.Output
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		any := "127.0.0.1:0"
		ended <- run(ctx, []string{
			"discovery", "--configDir", dir, "--stateDir", t.TempDir(), "--httpAddr", any, "--grpcAddr", any, "--secureGRPCAddr", any,
			"--monitoringAddr", any, "--httpsAddr", any, "--networksConfig=Mock",
		}, nil, &out, &errs)
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !strings.Contains(errs.String(), "configuration read") {
		select {
		case <-tick.C:
		case code := <-ended:
			t.Fatalf("ended with %d: %s", code, errs.String())
		case <-deadline:
			t.Fatalf("did not read its configuration: %s", errs.String())
		}
	}
	stop()
	if code := <-ended; code != 0 {
		t.Errorf("ended with %d: %s", code, errs.String())
	}
	for _, want := range []string{"--networksConfig", "a.yaml:", "Service b/bad", "spec.ports[0]"} {
		if !strings.Contains(errs.String(), want) {
			t.Errorf("the log does not name %s:\n%s", want, errs.String())
		}
	}
}

func TestRequestRelaysToTheDebugPort(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/none" {
			http.Error(w, "no such page", http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(r.Method + " " + r.URL.RequestURI()))
	}))
	defer srv.Close()
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs wait.Output
	if code := run(t.Context(), []string{"request", "--debug-port", u.Port(), "GET", "debug/syncz?x=1"}, nil, &out, &errs); code != 0 || out.String() != "GET /debug/syncz?x=1" {
		t.Errorf("code %d, %q, %q", code, out.String(), errs.String())
	}
	if code := run(t.Context(), []string{"request", "--debug-port", u.Port(), "GET", "/none"}, nil, &out, &errs); code != 1 || !strings.Contains(errs.String(), "404") {
		t.Errorf("code %d, %q", code, errs.String())
	}
}
