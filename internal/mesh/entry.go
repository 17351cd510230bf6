package mesh

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// EntryJoin says which ServiceEntries of one namespace are one service, for a host that they have in common: those for which it is equal.
// [control-plane 1.9.11]
type EntryJoin struct {
	// Visible is who sees the host. Entries that differ in it are different services, of which a client uses the older one.
	Visible string
	// Resolution, Location and SANs are what the whole service has. An entry that differs from an older one with the same Visible is
	// not used for the host.
	Resolution, Location, SANs string
}

// EntryJoinOf returns the EntryJoin of a ServiceEntry of a namespace.
func EntryJoinOf(s *networking.ServiceEntry, namespace string) EntryJoin {
	exportTo := slices.Clone(s.ExportTo)
	for i, e := range exportTo {
		if e == "." {
			exportTo[i] = namespace
		}
	}
	return EntryJoin{Visible: sorted(exportTo), Resolution: s.Resolution.String(), Location: s.Location.String(), SANs: sorted(slices.Clone(s.SubjectAltNames))}
}

func sorted(list []string) string {
	slices.Sort(list)
	return strings.Join(slices.Compact(list), " ")
}

// Differs returns the first field in which two ServiceEntries differ that have to be equal for them to be one service, "" if there is none.
func (a EntryJoin) Differs(b EntryJoin) string {
	switch {
	case a.Visible != b.Visible:
		return "exportTo"
	case a.Resolution != b.Resolution:
		return "resolution"
	case a.Location != b.Location:
		return "location"
	case a.SANs != b.SANs:
		return "subjectAltNames"
	}
	return ""
}
