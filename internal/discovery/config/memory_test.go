package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/object"
)

// The object has a saved valid version with port 80.
func TestStoreRemembersSavedObjects(t *testing.T) {
	saved := parse(t, object.Service, "spec: {ports: [{port: 80}]}")
	saved.Saved = time.Unix(1000, 0)
	bad := parse(t, object.Service, "spec: {ports: [{port: 99999}]}")
	bad.Origin.Line = 9
	good := parse(t, object.Service, "spec: {ports: [{port: 81}]}")
	same := saved
	same.Saved = time.Time{}
	gone := object.Change{Key: saved.Key}
	const forget = "forget"
	for name, c := range map[string]struct {
		steps    []any
		accepted int
		port     uint32
		restored int
	}{
		"not mentioned":                {nil, 0, 0, 0},
		"bad":                          {[]any{change(bad)}, 1, 80, 1},
		"bad, twice":                   {[]any{change(bad), change(bad)}, 0, 80, 1},
		"good":                         {[]any{change(good)}, 1, 81, 0},
		"restored by the source":       {[]any{change(saved)}, 1, 80, 1},
		"restored, then read the same": {[]any{change(saved), change(same)}, 0, 80, 0},
		"restored, then bad":           {[]any{change(saved), change(bad)}, 0, 80, 1},
		"bad, then good":               {[]any{change(bad), change(good)}, 1, 81, 0},
		"bad, then gone":               {[]any{change(bad), gone}, 1, 0, 0},
		"gone, then bad":               {[]any{gone, change(bad)}, 0, 0, 0},
		"forgotten, then bad":          {[]any{forget, change(bad)}, 0, 0, 0},
	} {
		s := config.NewStore()
		s.Remember([]object.Object{saved})
		accepted := 0
		for _, step := range c.steps {
			if step == forget {
				s.Forget(func(object.Key) bool { return true })
				continue
			}
			accepted = len(s.Apply([]object.Change{step.(object.Change)}))
		}
		port := uint32(0)
		if o, ok := s.Get(saved.Key); ok {
			port = o.Spec.(*object.ServiceSpec).Ports[0].Port
		}
		n, oldest := s.Restored()
		if accepted != c.accepted || port != c.port || n != c.restored || n > 0 && !oldest.Equal(saved.Saved) {
			t.Errorf("%s: accepted %d, port %d, restored %d of %v, want %+v", name, accepted, port, n, oldest, c)
		}
	}
}

func TestInvalidRememberedObjectsAreIgnored(t *testing.T) {
	s := config.NewStore()
	s.Remember([]object.Object{parse(t, object.Service, "spec: {ports: [{port: 99999}]}")})
	if got := s.Apply([]object.Change{change(parse(t, object.Service, "spec: {ports: [{port: 99998}]}"))}); len(got) != 0 {
		t.Errorf("accepted %v", got)
	}
}

// Otherwise a restart would look for the object in a file that no longer has it.
func TestLastGoodVersionHasTheLatestOrigin(t *testing.T) {
	s := config.NewStore()
	s.Apply([]object.Change{change(parse(t, object.Service, "spec: {ports: [{port: 80}]}"))})
	before := s.Version()
	moved := parse(t, object.Service, "spec: {ports: [{port: 99999}]}")
	moved.Origin.File = "other.yaml"
	s.Apply([]object.Change{change(moved)})
	o := s.Good()[0]
	if o.Origin.File != "other.yaml" || o.Spec.(*object.ServiceSpec).Ports[0].Port != 80 || s.Version() == before {
		t.Errorf("in force is %+v of %s, version %d → %d", o.Spec, o.Origin, before, s.Version())
	}
}

func TestInvalidPeerAuthenticationNamesItsWorkloads(t *testing.T) {
	for yaml, want := range map[string]string{
		"spec: {selector: {matchLabels: {app: a}}, portLevelMtls: {99999: {mode: STRICT}}}": "plaintext to workloads app=a of namespace n",
		"spec: {portLevelMtls: {80: {mode: STRICT}}}":                                       "plaintext to every workload of namespace n",
		"spec: {selector: {matchLabels: {app: -c}}}":                                        "plaintext to every workload of namespace n",
		"spec: {selector: {matchLabels: {\"a b\": c}}}":                                     "plaintext to every workload of namespace n",
	} {
		v := config.Validate(parse(t, object.PeerAuthentication, yaml))
		if len(v) == 0 || !v[0].Policy.Broken || !strings.HasPrefix(v[0].Policy.Denies(), want) {
			t.Errorf("%s: %+v, want %q", yaml, v, want)
		}
	}
	if v := config.Validate(parse(t, object.Service, "spec: {ports: [{port: 99999}]}")); v[0].Policy.Broken {
		t.Error("a Service counts as a policy")
	}
}
