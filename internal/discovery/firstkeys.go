package discovery

import (
	"slices"
	"strings"
	"time"

	security "istio.io/api/security/v1beta1"

	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/object"
)

// firstKeys is how long an object, and the readiness of a process that starts, wait for the first fetch of keys. Without it, tokens that are
// valid would be refused until that has ended: in a service that gets its first RequestAuthentication or another jwksUri, and in the whole mesh
// when its proxies connect to a control plane that has saved nothing.
const firstKeys = 2 * time.Second

// firstFetch is what waits for the first fetch of keys.
type firstFetch struct {
	// held are changes of objects whose keys have not been fetched yet. What was in force before stays meanwhile.
	held map[object.Key]heldObject
	// late are sources that were waited for in vain.
	late map[jwks.Source]bool
	// begun is when the configuration was read; over is set when that was firstKeys ago, served once proxies are served.
	begun        time.Time
	over, served bool
}

// heldObject is a change that is applied when its keys have been fetched, or at a time.
type heldObject struct {
	change object.Change
	until  time.Time
}

// fetchedRules are the rules of a RequestAuthentication whose keys are fetched here.
func (k *keyring) fetchedRules(o *object.Object) (out []keyRule) {
	spec, _ := o.Spec.(*security.RequestAuthentication)
	for i, rule := range spec.GetJwtRules() {
		if source, timeout, ok := jwks.SourceOf(rule); ok && k.mode.Fetches(rule) {
			out = append(out, keyRule{i, source, timeout})
		}
	}
	return out
}

// untried reports whether a source is still to be waited for.
func (k *keyring) untried(s jwks.Source) bool {
	st := k.states[s]
	return st.Keys == "" && st.Tried.IsZero() && !k.first.late[s]
}

// hold returns the changes that are to be applied now. While proxies are served, those of objects whose keys were never fetched are held.
func (k *keyring) hold(changes []object.Change, now time.Time) []object.Change {
	var out []object.Change
	for _, c := range changes {
		if c.Key.Kind != object.RequestAuthentication {
			out = append(out, c)
			continue
		}
		before, again := k.first.held[c.Key]
		if again {
			delete(k.first.held, c.Key)
			k.changed = true
		}
		if c.Object == nil || !k.first.served || !slices.ContainsFunc(k.fetchedRules(c.Object), func(r keyRule) bool { return k.untried(r.source) }) {
			out = append(out, c)
			continue
		}
		h := heldObject{change: c, until: now.Add(firstKeys)}
		if again {
			h.until = before.until
		}
		k.first.held[c.Key] = h
		k.changed = true
	}
	return out
}

// release returns the held changes whose keys have been fetched, or could not be, and those that have waited for long enough.
func (k *keyring) release(now time.Time) (out []object.Change) {
	if k.first.over = k.first.over || !k.first.begun.IsZero() && !now.Before(k.first.begun.Add(firstKeys)); !k.first.served && k.first.over {
		for s := range k.objects {
			k.first.late[s] = k.first.late[s] || k.untried(s)
		}
	}
	for key, h := range k.first.held {
		var waiting []jwks.Source
		for _, r := range k.fetchedRules(h.change.Object) {
			if k.untried(r.source) {
				waiting = append(waiting, r.source)
			}
		}
		if len(waiting) > 0 && now.Before(h.until) {
			continue
		}
		for _, s := range waiting {
			k.first.late[s] = true
		}
		delete(k.first.held, key)
		k.changed = true
		out = append(out, h.change)
	}
	slices.SortFunc(out, func(a, b object.Change) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return out
}

// against returns why proxies must not be served yet, empty if they may be. Call it once the configuration has been read.
func (k *keyring) against(now time.Time) string {
	if k.first.begun.IsZero() {
		k.first.begun = now
	}
	if k.first.over {
		return ""
	}
	for s := range k.objects {
		if k.untried(s) {
			return "keys of tokens are being fetched, which is waited for up to " + firstKeys.String()
		}
	}
	return ""
}

// until is when something is to be released; zero if nothing is.
func (k *keyring) until() (at time.Time) {
	if !k.first.served && !k.first.over && !k.first.begun.IsZero() {
		at = k.first.begun.Add(firstKeys)
	}
	for _, h := range k.first.held {
		if at.IsZero() || h.until.Before(at) {
			at = h.until
		}
	}
	return at
}

// releaseKeys applies what has waited for keys.
func (l *loop) releaseKeys() {
	if changes := l.keys.release(time.Now()); len(changes) > 0 || !l.gate.open.Load() {
		l.commit(object.Batch{Changes: changes})
	}
}
