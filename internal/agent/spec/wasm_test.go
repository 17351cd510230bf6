package spec

import (
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestWasm(t *testing.T) {
	want := Wasm{Fetch: true, Dir: "/var/lib/istio/data", Expiry: 24 * time.Hour, PurgeInterval: time.Hour, Timeout: 15 * time.Second, Retries: 5, MaxSize: 256 << 20}
	if s, err := Build(pod(nil)); err != nil || !reflect.DeepEqual(s.Wasm, want) {
		t.Errorf("by default: %+v, %v, want %+v", s.Wasm, err, want)
	}
	with := func(env map[string]string) (*Spec, error) {
		return Build(pod(func(in *testInput) { maps.Copy(in.Env, env) }))
	}
	s, err := with(map[string]string{
		"ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION": "false", "WASM_INSECURE_REGISTRIES": "a.test,b.test:5000", "BLOCKED_CIDRS_IN_WASM_FETCH": "169.254.1.2/16,fd00::/8",
		"WASM_MODULES_DIR": "m", "WASM_MODULE_EXPIRY": "1m", "WASM_PURGE_INTERVAL": "2m", "WASM_HTTP_REQUEST_TIMEOUT": "3m", "WASM_HTTP_REQUEST_MAX_RETRIES": "0", "ISTIO_WASM_MAX_BINARY_SIZE_BYTES": "7",
	})
	want = Wasm{Dir: "m", Expiry: time.Minute, PurgeInterval: 2 * time.Minute, Timeout: 3 * time.Minute, MaxSize: 7, InsecureRegistries: []string{"a.test", "b.test:5000"},
		Blocked: []netip.Prefix{netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fd00::/8")}}
	if err != nil || !reflect.DeepEqual(s.Wasm, want) {
		t.Errorf("%+v, %v, want %+v", s.Wasm, err, want)
	}
	for name, value := range map[string]string{"BLOCKED_CIDRS_IN_WASM_FETCH": "10.0.0.0", "WASM_PURGE_INTERVAL": "0s", "WASM_HTTP_REQUEST_TIMEOUT": "0s"} {
		if _, err := with(map[string]string{name: value}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v, want an error that names it", name, value, err)
		}
	}
}
