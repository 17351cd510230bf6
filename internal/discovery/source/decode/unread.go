package decode

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/spelling"
)

// unreadKind is a kind of the mesh's API groups that is not supported; text is that of the problem.
type unreadKind struct{ text string }

// unreadKinds has a row for each of these kinds, by API group.
var unreadKinds = map[string]map[object.Kind]unreadKind{
	networkingGroup:    {},
	securityGroup:      {},
	telemetryGroup:     {},
	extensionsGroup:    {},
	"install.istio.io": {"IstioOperator": noEffect},
	gatewayGroup:       {},
}

var noEffect = unreadKind{text: "objects of this kind are not supported: it has no effect; remove it, or use a supported kind"}

// groupKind is a kind and its API group.
type groupKind struct {
	group    string
	kind     object.Kind
	enforces bool
}

// meshKinds are all kinds of the mesh's configuration, supported or not, sorted by group and kind.
var meshKinds = func() (all []groupKind) {
	for k, row := range kinds {
		all = append(all, groupKind{row.group, object.Kind(APIKind(k)), row.enforces})
	}
	for group, rows := range unreadKinds {
		for k := range rows {
			all = append(all, groupKind{group, k, false})
		}
	}
	slices.SortFunc(all, func(a, b groupKind) int { return strings.Compare(a.group+string(a.kind), b.group+string(b.kind)) })
	return all
}()

// notRead returns the problem of an object of an unsupported kind or group, and the kind that was
// probably meant. known is false for a kind that the mesh does not use.
func notRead(version string, kind object.Kind) (meant object.Kind, p object.Problem, known bool) {
	group := groupIn(version)
	if row, known := unreadKinds[group][kind]; known {
		p.Text, p.Severity = row.text, object.Warning
		return kind, p, true
	}
	near, found := nearest(group, kind)
	if !found {
		if field, text := WorkloadFault(version, string(kind)); text != "" {
			return kind, object.Problem{Severity: object.Warning, Field: field, Text: text + " This document has no effect"}, true
		}
		if _, mesh := unreadKinds[group]; !mesh {
			return "", p, false
		}
		return kind, object.Problem{Severity: object.Warning, Field: "kind", Text: fmt.Sprintf("unknown kind %.100q of %s: it has no effect; remove it", kind, group)}, true
	}
	p.Field, p.Text, p.Severity = "kind", fmt.Sprintf("unknown kind %.100q; did you mean %s?", kind, near.kind), object.Warning
	if kind == near.kind {
		p.Field, p.Text = "apiVersion", fmt.Sprintf("%.100q has no kind %s; did you mean %s?", version, kind, near.firstVersion())
	} else if group != near.group {
		p.Text = fmt.Sprintf("%.100q has no kind %.100q; did you mean %s of %s?", version, kind, near.kind, near.firstVersion())
	}
	p.Text += " This document has no effect; the object's last valid version, if any, stays in force"
	if near.enforces {
		p.Text = strings.Replace(p.Text, "has no effect", "is NOT enforced", 1)
		p.Severity = object.Error
	}
	return ownKind(near.group, near.kind), p, true
}

// WorkloadFault says what is wrong with the version and kind of an object that is most likely meant to be one that Pods are made of, such as a
// Deployment, and in which field; it is empty for others.
func WorkloadFault(version, kind string) (field, text string) {
	group := groupIn(version)
	if workloadKinds[groupKind{group: group, kind: object.Kind(kind)}] != nil || version == "" || len(kind) > maxKindLength {
		return "", ""
	}
	best, least := groupKind{}, far
	for _, k := range slices.SortedFunc(maps.Keys(workloadKinds), func(a, b groupKind) int { return strings.Compare(string(a.kind), string(b.kind)) }) {
		if d := kindDistance(kind, string(k.kind)); d < least && (d == 0 || k.group == group) {
			best, least = k, d
		}
	}
	switch {
	case least == far:
		return "", ""
	case least == 0:
		return "apiVersion", fmt.Sprintf("%.100q has no kind %s; did you mean %s/v1?", version, kind, best.group)
	}
	return "kind", fmt.Sprintf("unknown kind %.100q; did you mean %s?", kind, best.kind)
}

// groupIn returns the group of an API version. Without a slash, a text with a dot is a group.
func groupIn(version string) string {
	group, _, grouped := strings.Cut(version, "/")
	if !grouped && !strings.Contains(version, ".") {
		return ""
	}
	return group
}

// firstVersion returns the preferred API version of a kind.
func (k groupKind) firstVersion() string {
	if row, ok := kinds[k.kind]; ok && row.group == k.group {
		return row.apiVersions()[0]
	}
	if v := groupVersions[k.group]; len(v) > 0 {
		return v[0]
	}
	return k.group + "/v1"
}

// versionFor returns the hint for an object without an API version, of a kind of the mesh or one that Pods are made of.
func versionFor(version string, kind object.Kind) string {
	if version != "" {
		return ""
	}
	var all []string
	for _, k := range slices.Concat(meshKinds, slices.Collect(maps.Keys(workloadKinds))) {
		if v := k.firstVersion(); k.kind == kind && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "; did you mean apiVersion: " + strings.Join(all, " or ") + "?"
}

// nearest returns the kind of the mesh that was most likely meant, if any.
func nearest(group string, kind object.Kind) (groupKind, bool) {
	best, least := groupKind{}, far
	if len(kind) > maxKindLength || len(group) > maxKindLength {
		return best, false
	}
	for _, o := range meshKinds {
		k := kindDistance(string(kind), string(o.kind))
		g := groupDistance(group, o.group)
		if d := k + g; k < far && g < far && d < least {
			best, least = o, d
		}
	}
	return best, least < far
}

// maxKindLength bounds the length of names that are compared, in bytes; it is larger than that of every
// kind and group of the mesh with some typing errors.
const maxKindLength = 64

// far is a distance that is too large for a misspelling.
const far = 50

// kindDistance returns 0 for equal kinds, more for those that differ in case, by a plural or by one or
// two typing errors, and far otherwise. Short names must be more similar, since they are by chance.
func kindDistance(given, want string) int {
	if given == want {
		return 0
	}
	a, b := strings.ToLower(given), strings.ToLower(want)
	if a == b {
		return 1
	}
	for _, plural := range []string{b + "s", b + "es", strings.TrimSuffix(b, "y") + "ies"} {
		if a == plural {
			return 2
		}
	}
	if d := spelling.Distance(a, b); d <= 2 && len(want) >= 4*d {
		return 1 + d
	}
	return far
}

// groupDistance returns 0 for equal groups, more for those that may be confused, and far otherwise:
// other projects have kinds of the same names.
func groupDistance(given, want string) int {
	_, mesh := unreadKinds[given]
	switch {
	case given == want:
		return 0
	case want == "":
		if given == "core" || mesh {
			return 2
		}
		return far
	case given == "" || mesh || strings.HasSuffix(given, "istio.io") && strings.HasSuffix(want, "istio.io"):
		return 2
	}
	if d := spelling.Distance(strings.ToLower(given), want); d <= 3 {
		return d
	}
	first, _, _ := strings.Cut(want, ".")
	if strings.HasPrefix(given, first+".") && strings.HasSuffix(given, "k8s.io") && strings.HasSuffix(want, "istio.io") {
		return 3 // no kind of networking.k8s.io has a similar name
	}
	return far
}

// leftOut returns a problem of severity Info with the number and kinds of the skipped objects.
func leftOut(file string, skipped []Skipped) (object.Problem, bool) {
	if len(skipped) == 0 {
		return object.Problem{}, false
	}
	const limit = 5
	var kinds []string
	for _, s := range skipped {
		if k := fmt.Sprintf("%.60s", s.Kind); !slices.Contains(kinds, k) && len(kinds) <= limit {
			kinds = append(kinds, k)
		}
	}
	slices.Sort(kinds)
	if len(kinds) > limit {
		kinds = append(kinds[:limit], "…")
	}
	objects := "objects of kinds that the mesh does not use are"
	if len(skipped) == 1 {
		objects = "object of a kind that the mesh does not use is"
	}
	return object.Problem{
		Origin: object.Origin{File: file}, Severity: object.Info,
		Text: fmt.Sprintf("%d %s ignored: %s", len(skipped), objects, strings.Join(kinds, ", ")),
	}, true
}
