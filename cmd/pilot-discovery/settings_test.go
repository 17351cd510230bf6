package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/test/clitest"
	"github.com/pilothouse/pilothouse/test/wait"
)

func TestCommandsHaveTheFlagsOfTheirTables(t *testing.T) {
	clitest.Commands(t, newRoot(nil, nil))
}

func TestEverySettingIsRead(t *testing.T) {
	clitest.AllRead(t, "discovery", settings.Discovery, func(v *settings.Values) {
		readOptions(v)
		if _, err := readLogger(v, io.Discard); err != nil {
			t.Error(err)
		}
	})
	clitest.AllRead(t, "request", settings.DiscoveryRequest, func(v *settings.Values) { readRequest(v) })
}

func TestOptionsFollowTheSettings(t *testing.T) {
	env := map[string]string{
		"POD_NAMESPACE": "mesh", "PILOTHOUSE_ACCEPT_EMPTY_CONFIG": "true", "PILOTHOUSE_BROKEN_POLICIES": "ignore", "ISTIOD_CUSTOM_HOST": "a.example, b.example",
		"DEFAULT_WORKLOAD_CERT_TTL": "2h", "PILOT_ENABLE_PROTOCOL_SNIFFING_FOR_INBOUND": "false", "ENABLE_DEBUG_ENDPOINT_AUTH": "false",
	}
	o := readOptions(settings.Read(map[string]string{"servingName": "c.example"}, env, settings.Discovery))
	if o.Names.Namespace != "mesh" || !o.Lenience.EmptyConfig || !o.Lenience.BrokenPolicies || !o.HTTP.OpenDebug ||
		o.CA.Limits.DefaultTTL != 2*time.Hour || o.CA.Limits.MaxTTL != 2160*time.Hour || !o.Compile.NoSniffInbound || o.Compile.NoSniffOutbound {
		t.Errorf("%+v", o)
	}
	if want := []string{"c.example", "a.example", "b.example"}; !slices.Equal(o.CA.ServingNames, want) {
		t.Errorf("serving names %q, want %q", o.CA.ServingNames, want)
	}
	// Flags win, a switch that is given as false too.
	o = readOptions(settings.Read(map[string]string{"accept-empty-config": "false", "broken-policies": "deny", "namespace": "own"}, env, settings.Discovery))
	if o.Lenience.EmptyConfig || o.Lenience.BrokenPolicies || o.Names.Namespace != "own" {
		t.Errorf("the environment wins over flags: %+v %+v", o.Lenience, o.Names)
	}
}

// A flag of the wrong form is a mistake of the command line like others.
func TestFlagsOfTheWrongFormEndWith2(t *testing.T) {
	var out, errs wait.Output
	if code := run(t.Context(), []string{"discovery", "--maxStreams", "many"}, nil, &out, &errs); code != 2 || !strings.Contains(errs.String(), `flag --maxStreams: invalid number "many"`) {
		t.Errorf("code %d, said %q", code, errs.String())
	}
}
