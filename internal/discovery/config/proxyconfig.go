package config

import (
	"strings"

	networkingv1beta1 "istio.io/api/networking/v1beta1"
)

const (
	// maxVariable bounds the value of a variable, as the schema of Istio's CustomResourceDefinition does.
	maxVariable = 2048
	// maxTag bounds the tag of an image.
	maxTag = 128
)

// proxyConfig checks what is written into Pods when they are injected. [control-plane 1.9.29]
func (c *check) proxyConfig(s *networkingv1beta1.ProxyConfig) {
	c.labels("spec.selector.matchLabels", s.GetSelector().GetMatchLabels())
	if s.Selector != nil && len(s.Selector.MatchLabels) == 0 {
		c.warn("spec.selector", "is empty: the object is for all Pods, as without a selector; remove it, or add matchLabels")
	}
	if s.Concurrency == nil && s.GetImage().GetImageType() == "" && len(s.EnvironmentVariables) == 0 {
		c.warn("spec", "is empty: it has no effect; add concurrency, environmentVariables or image.imageType")
	}
	if n := s.GetConcurrency().GetValue(); n < 0 {
		c.fail("spec.concurrency", "invalid number %d: want 0 for one worker for each processor, or more", n)
	}
	for _, name := range sorted(s.EnvironmentVariables) {
		at := entry("spec.environmentVariables", name)
		if !isVariable(name) {
			c.fail(at, "invalid name of a variable: want printable ASCII characters other than \"=\"")
		}
		if v := s.EnvironmentVariables[name]; len(v) > maxVariable {
			c.fail(at, "%d bytes: want at most %d", len(v), maxVariable)
		} else if strings.ContainsRune(v, 0) {
			c.fail(at, "invalid value: a variable cannot have a zero byte")
		}
	}
	if t := s.GetImage().GetImageType(); !isTag(t) {
		c.fail("spec.image.imageType", "invalid image type %.100q: want a part of an image's tag: at most %d letters, digits, \"-\", \"_\" and \".\"", t, maxTag)
	}
}

// isVariable reports whether the API server takes a name of a container's variable.
func isVariable(name string) bool {
	for i := 0; i < len(name); i++ {
		if name[i] < ' ' || name[i] > '~' || name[i] == '=' {
			return false
		}
	}
	return name != ""
}

// isTag reports whether a text may be at the end of an image's tag.
func isTag(s string) bool {
	for i := 0; i < len(s); i++ {
		letter := s[i] >= 'a' && s[i] <= 'z' || s[i] >= 'A' && s[i] <= 'Z' || s[i] >= '0' && s[i] <= '9'
		if !letter && strings.IndexByte("-_.", s[i]) < 0 {
			return false
		}
	}
	return len(s) <= maxTag
}
