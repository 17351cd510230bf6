package authz_test

import (
	"os"
	"testing"

	"github.com/pilothouse/pilothouse/test/require"
)

func TestMain(m *testing.M) {
	require.Envoy()
	os.Exit(m.Run())
}
