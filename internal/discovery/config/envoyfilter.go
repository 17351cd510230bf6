package config

import (
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/patch"
	"github.com/pilothouse/pilothouse/internal/object"
)

// maxPatches is how many patches an EnvoyFilter may have: each is decoded, and applied to everything that it matches.
const maxPatches = 512

// envoyFilter checks an EnvoyFilter. [control-plane 1.9.25–1.9.28, 1.6.19]
func (c *check) envoyFilter(namespace string, s *networking.EnvoyFilter) {
	if c.targets(namespace, s.GetTargetRefs()); len(s.GetTargetRefs()) > 0 && s.GetWorkloadSelector() != nil {
		c.fail("spec.workloadSelector", "cannot be set together with targetRefs; use one of them")
	}
	c.labels("spec.workloadSelector.labels", s.GetWorkloadSelector().GetLabels())
	switch n := len(s.GetConfigPatches()); {
	case n == 0:
		c.warn("spec.configPatches", "is empty: nothing is patched; add a patch")
	case n > maxPatches:
		c.fail("spec.configPatches", "has %d patches: want at most %d", n, maxPatches)
		return
	}
	for i, p := range s.GetConfigPatches() {
		at := item("spec.configPatches", i)
		_, faults := patch.Parse(i, p)
		for _, f := range faults {
			severity := object.Warning
			switch f.Severity {
			case patch.Invalid:
				severity = object.Error
			case patch.Note:
				severity = object.Info
			}
			c.report(severity, at+"."+f.Field, "%s", f.Text)
		}
	}
}
