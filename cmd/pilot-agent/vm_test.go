package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/agent/machine"
	"github.com/pilothouse/pilothouse/internal/agent/vm"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// A machine whose certificate has ended is told what happened and what to do. [agent V6]
func TestAMachineWithoutACredentialIsToldTheRemedy(t *testing.T) {
	m := &machine.Machine{Root: wait.Folder(t)}
	now := time.Now()
	if err := hasCredential(m, now); err == nil || !strings.Contains(err.Error(), "neither a certificate in") || !strings.Contains(err.Error(), "pilotctl vm join-token") {
		t.Errorf("without anything: %v", err)
	}
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	template, err := pki.WorkloadTemplate(mesh.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "legacy"}, pki.Validity{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := pki.Sign(template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, m, vm.ChainFile, string(pki.EncodeCerts(c)))
	if err := hasCredential(m, now); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
	err = hasCredential(m, now.Add(2*time.Hour))
	if err == nil || !strings.Contains(err.Error(), "ended at "+c.NotAfter.UTC().Format(time.RFC3339)) || !strings.Contains(err.Error(), "The remedy: get a join token") {
		t.Errorf("with one that has ended: %v", err)
	}
	write(t, m, vm.TokenFile, "token")
	if err := hasCredential(m, now.Add(2*time.Hour)); err != nil {
		t.Errorf("with a token: %v", err)
	}
}

func write(t *testing.T, m *machine.Machine, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.Path(path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.Path(path), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A join that is repeated has the same key for the same token, and another for another one.
func TestARepeatedJoinHasTheSameKey(t *testing.T) {
	j := &joining{m: &machine.Machine{Root: wait.Folder(t)}, member: &vm.Membership{Token: "one"}, out: io.Discard}
	keys := map[string]string{}
	for _, token := range []string{"one", "one", "two"} {
		j.member.Token = token
		key, err := j.pendingKey()
		if err != nil {
			t.Fatal(err)
		}
		if keys[token] != "" && keys[token] != string(key) {
			t.Errorf("another key for the token %s", token)
		}
		keys[token] = string(key)
	}
	if keys["one"] == keys["two"] {
		t.Error("the same key for another token")
	}
	if fi, err := os.Stat(j.m.Path(vm.PendingFile)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
}
