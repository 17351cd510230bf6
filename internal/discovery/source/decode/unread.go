package decode

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// unreadKind is what there is to say of an object of a kind of the mesh's API groups that
// configuration does not use yet.
type unreadKind struct {
	text string
	// enforces is set where objects of the kind refuse requests.
	enforces bool
}

// unreadKinds has a row for each such kind, by API group.
var unreadKinds = map[string]map[object.Kind]unreadKind{
	networkingGroup: {"EnvoyFilter": noEffect, "WorkloadGroup": noEffect, "ProxyConfig": noEffect},
	securityGroup: {
		"AuthorizationPolicy": {enforces: true, text: "AuthorizationPolicy is not read yet: this policy is NOT enforced, and requests that it would refuse are let through; keep what it protects out of the mesh, or remove it"},

		"RequestAuthentication": {enforces: true, text: "RequestAuthentication is not read yet: it is NOT enforced, and requests with invalid tokens are let through; check tokens in the application, or remove it"},
	},
	"telemetry.istio.io":  {"Telemetry": noEffect},
	"extensions.istio.io": {"WasmPlugin": noEffect},
	"install.istio.io":    {"IstioOperator": noEffect},
	"gateway.networking.k8s.io": {
		"Gateway": noEffect, "GatewayClass": noEffect, "HTTPRoute": noEffect, "GRPCRoute": noEffect, "TCPRoute": noEffect,
		"TLSRoute": noEffect, "UDPRoute": noEffect, "ReferenceGrant": noEffect, "BackendTLSPolicy": noEffect,
	},
}

var noEffect = unreadKind{text: "objects of this kind are not read yet: it has no effect; remove it, or say the same with a kind that is read"}

// groupKind is a kind of the mesh's with its group.
type groupKind struct {
	group    string
	kind     object.Kind
	enforces bool
}

// meshKinds are all kinds that the mesh's configuration is made of, read or not.
var meshKinds = func() (all []groupKind) {
	for k, row := range kinds {
		all = append(all, groupKind{row.group, k, row.enforces})
	}
	for group, rows := range unreadKinds {
		for k, row := range rows {
			all = append(all, groupKind{group, k, row.enforces})
		}
	}
	slices.SortFunc(all, func(a, b groupKind) int { return strings.Compare(a.group+string(a.kind), b.group+string(b.kind)) })
	return all
}()

// notRead says what becomes of an object whose kind and group are not among those that are
// read: a kind of the mesh that has no effect, or what was written in place of one that is
// meant. known is false where it belongs to others.
func notRead(version string, kind object.Kind) (meant object.Kind, p object.Problem, known bool) {
	group := groupIn(version)
	if row, known := unreadKinds[group][kind]; known {
		p.Text, p.Severity = row.text, object.Warning
		if row.enforces {
			p.Severity = object.Error
		}
		return kind, p, true
	}
	near, found := nearest(group, kind)
	if !found {
		if _, mesh := unreadKinds[group]; !mesh {
			return "", p, false
		}
		return kind, object.Problem{Severity: object.Warning, Field: "kind", Text: fmt.Sprintf("unknown kind %.100q of %s: it has no effect; remove it", kind, group)}, true
	}
	p.Field, p.Text, p.Severity = "kind", fmt.Sprintf("unknown kind %.100q; did you mean %s?", kind, near.kind), object.Warning
	if kind == near.kind {
		p.Field, p.Text = "apiVersion", fmt.Sprintf("%.100q has no kind %s; did you mean %s?", version, kind, firstVersion(near.group))
	} else if group != near.group {
		p.Text = fmt.Sprintf("%.100q has no kind %.100q; did you mean %s of %s?", version, kind, near.kind, firstVersion(near.group))
	}
	p.Text += " What this document says has no effect; the object's last good value, if there was one, stays"
	if near.enforces {
		p.Text = strings.Replace(p.Text, "has no effect", "is NOT enforced", 1)
		p.Severity = object.Error
	}
	return near.kind, p, true
}

// groupIn is the group of an API version; one without a version counts as a group where it
// looks like one.
func groupIn(version string) string {
	group, _, grouped := strings.Cut(version, "/")
	if !grouped && !strings.Contains(version, ".") {
		return ""
	}
	return group
}

func firstVersion(group string) string {
	if v := groupVersions[group]; len(v) > 0 {
		return v[0]
	}
	return group + "/v1"
}

// versionFor is the remedy for an object that has a kind of the mesh's and no version.
func versionFor(version string, kind object.Kind) string {
	i := slices.IndexFunc(meshKinds, func(k groupKind) bool { return k.kind == kind })
	if version != "" || i < 0 {
		return ""
	}
	return "; did you mean apiVersion: " + firstVersion(meshKinds[i].group) + "?"
}

// nearest is the kind of the mesh that is most likely meant, if any is.
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

// maxKindLength is longer than every kind and group of the mesh's with some slips in it; what a
// file holds may be of any length.
const maxKindLength = 64

// far is a distance at which one is not a misspelling of the other.
const far = 50

// kindDistance is 0 for equal kinds, more for ones that differ in case, in number or by a
// slip or two, and far else. Short names are near each other by chance.
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
	if d := yamltree.Distance(a, b); d <= 2 && len(want) >= 4*d {
		return 1 + d
	}
	return far
}

// groupDistance is 0 for equal groups, more for ones of which one may be meant for the
// other, and far else: other projects have kinds of the same names.
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
	if d := yamltree.Distance(strings.ToLower(given), want); d <= 3 {
		return d
	}
	first, _, _ := strings.Cut(want, ".")
	if strings.HasPrefix(given, first+".") && strings.HasSuffix(given, "k8s.io") && strings.HasSuffix(want, "istio.io") {
		return 3 // networking.k8s.io has no kind of a like name
	}
	return far
}

// leftOut says how many objects of a file belong to others, as one line.
func leftOut(file string, skipped []Skipped) (object.Problem, bool) {
	if len(skipped) == 0 {
		return object.Problem{}, false
	}
	const most = 5
	var kinds []string
	for _, s := range skipped {
		if k := fmt.Sprintf("%.60s", s.Kind); !slices.Contains(kinds, k) && len(kinds) <= most {
			kinds = append(kinds, k)
		}
	}
	slices.Sort(kinds)
	if len(kinds) > most {
		kinds = append(kinds[:most], "…")
	}
	objects := "objects of kinds that the mesh does not use are"
	if len(skipped) == 1 {
		objects = "object of a kind that the mesh does not use is"
	}
	return object.Problem{
		Origin: object.Origin{File: file}, Severity: object.Info,
		Text: fmt.Sprintf("%d %s left out: %s", len(skipped), objects, strings.Join(kinds, ", ")),
	}, true
}
