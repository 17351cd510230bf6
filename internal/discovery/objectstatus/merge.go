package objectstatus

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Change is how a stored status differs from what it shall say, the more important the greater.
type Change uint8

// The changes.
const (
	// Unchanged: nothing is to be written.
	Unchanged Change = iota
	// CountChange: only the number of proxies differs, all of which are up to date.
	CountChange
	// LagChange: proxies of a version that was reconciled are not up to date, or none is connected.
	LagChange
	// ProgressChange: more or fewer proxies are up to date.
	ProgressChange
	// FindingChange: what is wrong with the version differs.
	FindingChange
	// VersionChange: the status is of another version, or does not exist.
	VersionChange
)

// Fields of a status.
const (
	fieldConditions = "conditions"
	fieldMessages   = "validationMessages"
	fieldGeneration = "observedGeneration"
	fieldAddresses  = "addresses"
)

// Merge returns the status that an object shall have: the stored one with the conditions and messages of the
// control plane in place of those that it has. What others have written stays, in its order. The maps of stored, which
// is JSON as encoding/json or Kubernetes' clients decode it, are not modified.
func Merge(stored map[string]any, want Status, now time.Time) (map[string]any, Change) {
	out := maps.Clone(stored)
	if out == nil {
		out = map[string]any{}
	}
	if want.Gateway != nil {
		return mergeGateway(out, want, now)
	}
	change := Unchanged
	raise := func(c Change) { change = max(change, c) }
	before, _ := stored[fieldConditions].([]any)
	conditions := slices.Clone(before)
	for _, c := range want.Conditions {
		i := slices.IndexFunc(conditions, func(x any) bool { return text(x, "type") == c.Type })
		if i < 0 {
			conditions = append(conditions, c.encode(nil, want.Generation, now))
			raise(VersionChange)
			continue
		}
		old, _ := conditions[i].(map[string]any)
		raise(c.changeOf(old, want))
		conditions[i] = c.encode(old, want.Generation, now)
	}
	out[fieldConditions] = conditions
	if messages, differ := mergeMessages(stored[fieldMessages], want.Findings); differ {
		raise(FindingChange)
		if out[fieldMessages] = messages; len(messages) == 0 {
			out[fieldMessages] = nil // which removes the field, in a merge patch
		}
	}
	if addresses, differ := mergeAddresses(stored[fieldAddresses], want.Addresses); differ {
		raise(VersionChange)
		out[fieldAddresses] = addresses
	}
	if number(stored[fieldGeneration]) != want.Generation {
		raise(VersionChange)
	}
	out[fieldGeneration] = want.Generation
	return out, change
}

// changeOf is how a stored condition differs.
func (c Condition) changeOf(old map[string]any, want Status) Change {
	switch {
	case number(old[fieldGeneration]) != want.Generation:
		return VersionChange
	case text(old, "status") == c.Status && text(old, "reason") == c.Reason && text(old, "message") == c.Message:
		return Unchanged
	case c.Type == PassedAnalysis:
		return FindingChange
	case text(old, "status") == "True" && c.Reason == reasonUpToDate && text(old, "reason") == reasonUpToDate:
		return CountChange
	case c.Reason == reasonNotUsed, text(old, "status") == "True" && c.Reason == reasonStillPropagating:
		return LagChange
	}
	return ProgressChange
}

// encode returns the condition as it is stored. The time of the last transition is that of old if the status is
// the same.
func (c Condition) encode(old map[string]any, generation int64, now time.Time) map[string]any {
	out := map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message, fieldGeneration: generation}
	if at := text(old, "lastTransitionTime"); at != "" && text(old, "status") == c.Status {
		out["lastTransitionTime"] = at
	} else {
		out["lastTransitionTime"] = now.UTC().Format(time.RFC3339)
	}
	return out
}

// mergeMessages returns the stored messages with those of findings in place of the control plane's.
func mergeMessages(stored any, findings []Finding) (out []any, differ bool) {
	before, _ := stored.([]any)
	var own []Finding // without their texts, which are not stored
	for _, m := range before {
		object, _ := m.(map[string]any)
		code := text(object["type"], "code")
		if !strings.HasPrefix(code, codePrefix) {
			out = append(out, m)
			continue
		}
		own = append(own, Finding{Code: Code(code)})
	}
	if len(own) != len(findings) {
		differ = true
	}
	for i, f := range findings {
		differ = differ || own[i].Code != f.Code
		out = append(out, map[string]any{"type": map[string]any{"name": names[f.Code], "code": string(f.Code)}, "level": f.level()})
	}
	return out, differ
}

// mergeAddresses returns the allocated addresses as they are stored, and whether others are stored. [control-plane 1.9.17]
func mergeAddresses(stored any, want []object.HostAddress) (out []any, differ bool) {
	if len(want) == 0 {
		return nil, false
	}
	before, _ := stored.([]any)
	differ = len(before) != len(want)
	for i, a := range want {
		differ = differ || text(before[i], "host") != a.Host || text(before[i], "value") != a.Address.String()
		out = append(out, map[string]any{"host": a.Host, "value": a.Address.String()})
	}
	return out, differ
}

// text returns a text in a JSON object, empty if there is none.
func text(object any, field string) string {
	m, _ := object.(map[string]any)
	s, _ := m[field].(string)
	return s
}

// number returns a generation in JSON: a number, or a text with one.
func number(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case float64:
		return int64(v)
	case json.Number:
		n, _ := v.Int64() // 0 if it is none
		return n
	case string:
		n, _ := strconv.ParseInt(v, 10, 64) // 0 if it is none
		return n
	}
	return 0
}
