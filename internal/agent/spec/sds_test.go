package spec

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSDS(t *testing.T) {
	def := SDS{Policy: PreferExternal, Mode: 0o666, UID: -1, GID: -1, Users: []uint32{0}, CRL: crlFile}
	for name, tt := range map[string]struct {
		env  map[string]string
		want func(*SDS)
		own  bool
	}{
		"nothing set":       {nil, func(*SDS) {}, true},
		"a name of another": {map[string]string{"WORKLOAD_IDENTITY_SOCKET_FILE": "x"}, func(s *SDS) { s.Policy, s.MustExist = RequireExternal, true }, false},
		"a name and a policy": {
			map[string]string{"WORKLOAD_IDENTITY_SOCKET_FILE": "x", "WORKLOAD_IDENTITY_SOCKET_POLICY": "require"},
			func(s *SDS) { s.Policy = RequireExternal }, false,
		},
		"ignore": {map[string]string{"WORKLOAD_IDENTITY_SOCKET_POLICY": "ignore"}, func(s *SDS) { s.Policy = IgnoreExternal }, true},
		"access": {
			map[string]string{"WORKLOAD_IDENTITY_SOCKET_MODE": "600", "WORKLOAD_IDENTITY_SOCKET_OWNER": "3:4", "WORKLOAD_IDENTITY_SOCKET_UIDS": "7, 5,7"},
			func(s *SDS) { s.Mode, s.UID, s.GID, s.Users = 0o600, 3, 4, []uint32{0, 5, 7} }, true,
		},
		"every user": {map[string]string{"WORKLOAD_IDENTITY_SOCKET_UIDS": "*"}, func(s *SDS) { s.AllUsers = true }, true},
		"no list":    {map[string]string{"PILOT_ENABLE_CA_CRL": "false"}, func(s *SDS) { s.CRL = "" }, true},
		"cryptomb": {
			map[string]string{"PROXY_CONFIG": "privateKeyProvider: {cryptomb: {pollDelay: 0.002s, fallback: true}}"},
			func(s *SDS) { s.KeyProvider = &KeyProvider{"cryptomb", 2 * time.Millisecond, true} }, true,
		},
		"qat": {
			map[string]string{"PROXY_CONFIG": "privateKeyProvider: {qat: {pollDelay: 0.003s}}"},
			func(s *SDS) { s.KeyProvider = &KeyProvider{"qat", 3 * time.Millisecond, false} }, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := build(t, func(in *testInput) {
				for k, v := range tt.env {
					in.Env[k] = v
				}
			})
			want := def
			tt.want(&want)
			if d := cmp.Diff(want, got.SDS); d != "" || got.Certificates.Own != tt.own {
				t.Errorf("own certificate %v, want %v; -want +got:\n%s", got.Certificates.Own, tt.own, d)
			}
		})
	}
}

func TestSDSMistakes(t *testing.T) {
	for name, text := range map[string]string{
		"WORKLOAD_IDENTITY_SOCKET_MODE": "1777", "WORKLOAD_IDENTITY_SOCKET_OWNER": "root", "WORKLOAD_IDENTITY_SOCKET_UIDS": "root",
		"WORKLOAD_IDENTITY_SOCKET_POLICY": "maybe", "PROXY_CONFIG": "privateKeyProvider: {qat: {}}",
	} {
		_, err := Build(pod(func(in *testInput) { in.Env[name] = text }))
		if want := strings.TrimSuffix(strings.TrimPrefix(name, "PROXY_CONFIG"), "="); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s=%s: %v", name, text, err)
		}
	}
}
