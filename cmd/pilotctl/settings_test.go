package main

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/test/clitest"
)

func TestCommandsHaveTheFlagsOfTheirTables(t *testing.T) {
	clitest.Commands(t, newRoot(nil))
}

func TestEverySettingIsRead(t *testing.T) {
	clitest.AllRead(t, "pilotctl", settings.Pilotctl, func(v *settings.Values) { new(flags).set(v) })
	clitest.AllRead(t, "of a cluster", settings.PilotctlCluster, func(v *settings.Values) { readPlace(v, "", "") })
	clitest.AllRead(t, "of a name", settings.PilotctlNamespace, func(v *settings.Values) { readNamespace(v) })
	clitest.AllRead(t, "demo", settings.PilotctlDemo, func(v *settings.Values) { readDemo(v, "tree") })
	clitest.AllRead(t, "up", settings.PilotctlUp, func(v *settings.Values) { readUp(v, "tree") })
	clitest.AllRead(t, "logs", settings.PilotctlLogs, func(v *settings.Values) { readLogs(v) })
	clitest.AllRead(t, "proxies", settings.PilotctlProxies, func(v *settings.Values) { readProxies(v) })
	clitest.AllRead(t, "objects", settings.PilotctlObjects, func(v *settings.Values) { readObjects(v) })
	clitest.AllRead(t, "wait", settings.PilotctlWait, func(v *settings.Values) { readWait(v) })
	clitest.AllRead(t, "check", settings.PilotctlCheck, func(v *settings.Values) { readCheck(v) })
	clitest.AllRead(t, "inject", settings.PilotctlInject, func(v *settings.Values) { readInject(v) })
	clitest.AllRead(t, "validate", settings.PilotctlValidate, func(v *settings.Values) { readValidate(v) })
	clitest.AllRead(t, "vm join-token", settings.PilotctlVMJoinToken, func(v *settings.Values) { readJoinToken(v, nil) })
	clitest.AllRead(t, "token create", settings.PilotctlTokenCreate, func(v *settings.Values) { readToken(v) })
}

func TestOutputsAreCompleted(t *testing.T) {
	root := newRoot(nil)
	complete, ok := root.GetFlagCompletionFunc("output")
	if !ok {
		t.Fatal("--output has no completion")
	}
	if got, _ := complete(&cobra.Command{}, nil, ""); len(got) != 3 {
		t.Errorf("%q", got)
	}
}
