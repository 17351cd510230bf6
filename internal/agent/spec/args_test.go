package spec

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		name string
		args Arguments
		want string
	}{
		{
			"nothing chosen", Arguments{Bootstrap: "etc/istio/proxy/envoy-rev.json"},
			"-c etc/istio/proxy/envoy-rev.json --drain-time-s 45 --drain-strategy immediate --local-address-ip-version v4 --file-flush-interval-msec 1000 " +
				"--disable-hot-restart --allow-unknown-static-fields -l warning --skip-deprecated-logs",
		},
		{
			"everything chosen", Arguments{
				Bootstrap: "b", Drain: 90 * time.Second, IPv6: true, LogLevel: "misc:error,debug", ComponentLogLevel: "upstream:trace", FlushKB: 8,
				CoreDump: true, BootstrapYAML: "{}", Concurrency: 2, HotRestart: true, Extra: []string{"--cpuset-threads"},
			},
			"-c b --drain-time-s 90 --drain-strategy immediate --local-address-ip-version v6 --file-flush-interval-msec 1000 " +
				"--allow-unknown-static-fields --file-flush-min-size-kb 8 -l debug --component-log-level misc:error,upstream:trace --skip-deprecated-logs " +
				"--enable-core-dump --config-yaml {} --concurrency 2 --cpuset-threads",
		},
		{
			"logs", Arguments{Bootstrap: "b", FlushInterval: 1500 * time.Millisecond, ShowDeprecatedLogs: true},
			"-c b --drain-time-s 45 --drain-strategy immediate --local-address-ip-version v4 --file-flush-interval-msec 1500 " +
				"--disable-hot-restart --allow-unknown-static-fields -l warning",
		},
	} {
		if diff := cmp.Diff(strings.Fields(c.want), c.args.List()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
