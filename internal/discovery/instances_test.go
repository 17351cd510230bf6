package discovery

import (
	"path/filepath"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// An instance that stops in order is no longer among those that a rotation waits for, and one that is killed is.
func TestAnInstanceThatStopsIsNotWaitedFor(t *testing.T) {
	dir := wait.Folder(t)
	var before string
	for i := range 3 {
		p := start(t, func(o *Options) { o.StateDir = dir })
		wait.Until(t, "the instance has reported", func() bool { return len(p.server.rotator.Status().Instances) > 0 })
		s := p.server.rotator.Status()
		if len(s.Instances) != 1 || s.Instances[0].Instance == before {
			t.Errorf("start %d: %d instances, want this one alone", i, len(s.Instances))
		}
		before = s.Instances[0].Instance
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "ca-instances", "*.json")); err != nil || len(left) > 0 {
			t.Errorf("start %d: left behind %v, %v", i, left, err)
		}
	}
}
