package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pilothouse/pilothouse/internal/agent/vm"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
	"github.com/pilothouse/pilothouse/test/clitest"
)

func TestCommandsHaveTheFlagsOfTheirTables(t *testing.T) {
	clitest.Commands(t, newRoot(process{}))
}

func TestEverySettingOfACommandIsRead(t *testing.T) {
	clitest.AllRead(t, "log", settings.AgentLog, func(v *settings.Values) { readLog(v) })
	clitest.AllRead(t, "request", settings.AgentRequest, func(v *settings.Values) { readRequest(v) })
	clitest.AllRead(t, "wait", settings.AgentWait, func(v *settings.Values) { readWait(v) })
	clitest.AllRead(t, "restart", settings.AgentRestart, func(v *settings.Values) { readRestart(v) })
	clitest.AllRead(t, "identity", settings.AgentIdentity, func(v *settings.Values) { readIdentity(v) })
	clitest.AllRead(t, "version", settings.AgentVersion, func(v *settings.Values) { readVersion(v) })
	clitest.AllRead(t, "istio-iptables", settings.AgentIptables, func(v *settings.Values) { new(captureCommand).read(v) })
	clitest.AllRead(t, "istio-clean-iptables", settings.AgentCleanIptables, func(v *settings.Values) { new(captureCommand).readClean(v) })
	clitest.AllRead(t, "join", settings.AgentJoin, func(v *settings.Values) { readJoin(v) })
	clitest.AllRead(t, "leave", settings.AgentLeave, func(v *settings.Values) { readLeave(v) })
	clitest.AllRead(t, "start, its variables", settings.AgentStart, func(v *settings.Values) { vm.ReadSettings(v) })
	clitest.AllRead(t, "start", settings.AgentRoot, func(v *settings.Values) { readRoot(v) })
	clitest.AllRead(t, "explain", settings.AgentExplain, func(v *settings.Values) { readExplanation(v) })
	// Those of proxy are read by internal/agent/spec and memory.go.
}

// Each flag that is given as empty silences its variable, on the command line as well as in a table.
func TestAnEmptyWatchCaptureSilencesTheVariable(t *testing.T) {
	v := settings.Read(map[string]string{"watchCapture": ""}, map[string]string{"CAPTURE_WATCH": "-b *"}, settings.AgentProxy)
	if watch := v.Text("watchCapture"); watch != "" || v.Err() != nil {
		t.Errorf("%q is watched (%v)", watch, v.Err())
	}
}

func TestExamples(t *testing.T) {
	clitest.Examples(t, func() *cobra.Command { return newRoot(process{}) }, cli.UnknownFlags)
}

// Flags of the log are taken everywhere, and where nothing is logged a line says that they have no effect.
func TestLogFlagsWithoutEffectAreTold(t *testing.T) {
	code, out, stderr := agentRun(t, nil, "version", "-s", "--log_as_json", "--log_output_level=default:debug")
	if code != 0 || out != version+"\n" || !strings.Contains(stderr, "Note: flag --log_as_json has no effect: only pilot-agent proxy logs") || !strings.Contains(stderr, "--log_output_level") {
		t.Errorf("code %d, %q, %q", code, out, stderr)
	}
	if _, _, stderr := agentRun(t, nil, "version", "-s"); stderr != "" {
		t.Errorf("without flags: %q", stderr)
	}
}
