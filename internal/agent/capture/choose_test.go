package capture_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
	"github.com/pilothouse/pilothouse/internal/agent/capture/plan"
)

// Only programs in Path with their -save and -restore are chosen.
func TestIncompleteProgramsAreIgnored(t *testing.T) {
	dir := t.TempDir()
	for file, mode := range map[string]os.FileMode{"iptables-nft": 0o755, "iptables-nft-save": 0o755, "iptables-nft-restore": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	c, err := capture.Choose(capture.BackendOptions{Path: dir + "::/no/such/directory"}, plan.Ruleset{})
	if err != nil || c.Name != "nftables" || !strings.Contains(c.Why, "no program iptables-nft with its -save and -restore") {
		t.Errorf("chose %s because %s, %v", c.Name, c.Why, err)
	}
	if _, err := capture.Choose(capture.BackendOptions{Path: dir, Force: "nft"}, plan.Ruleset{}); err == nil {
		t.Error("a missing program that is forced is not an error")
	}
	if _, err := capture.Choose(capture.BackendOptions{Force: "bpf"}, plan.Ruleset{}); err == nil {
		t.Error("an unknown variant is not an error")
	}
}
