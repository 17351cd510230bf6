package agent

import (
	"os"
	"testing"

	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/require"
)

func TestMain(m *testing.M) {
	require.Envoy()
	code := m.Run()
	agenttest.Cleanup()
	os.Exit(code)
}
