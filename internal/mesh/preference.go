package mesh

import "strings"

// Preference is which endpoints of a service its clients use first, without outlier detection.
type Preference uint8

// The preferences.
const (
	// PreferNone is up to the policies.
	PreferNone Preference = iota
	// PreferNear: those in the client's subzone, else in its zone, in its region, in its network.
	PreferNear
	// PreferNode: those on the client's Node, else as PreferNear.
	PreferNode
)

// DistributionAnnotation is what Services had before the field trafficDistribution, and what ServiceEntries have.
const DistributionAnnotation = "networking.istio.io/traffic-distribution"

// ParsePreference parses a traffic distribution; ok is false for one that is not known.
func ParsePreference(s string) (p Preference, ok bool) {
	switch strings.ToLower(s) {
	case "", "any":
		return PreferNone, true
	case "preferclose", "prefersamezone":
		return PreferNear, true
	case "prefersamenode":
		return PreferNode, true
	}
	return PreferNone, false
}
