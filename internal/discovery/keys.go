package discovery

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/discovery/jwks/fetch"
	"github.com/pilothouse/pilothouse/internal/discovery/saved"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// Bounds of keys in the state folder, and of roots.
const (
	// maxSavedAge is the age up to which saved keys are used: what is older may be the state of a host that was off, whose issuers have
	// withdrawn keys since.
	maxSavedAge = 7 * 24 * time.Hour
	// saveKeysEvery is how often the time at which unchanged keys were fetched is saved.
	saveKeysEvery = time.Hour
	// maxRoots is the size of a file with roots, in bytes.
	maxRoots = 1 << 20
)

// keyring has the keys of the issuers of tokens: which sources the RequestAuthentications in force name, and what is known of each. It
// belongs to the loop's goroutine.
type keyring struct {
	log *slog.Logger
	// mode says whose keys proxies fetch.
	mode jwks.Mode
	// put stores the keys of a source for the rules; empty keys remove them.
	put func(jwks.Source, string)
	// onWant is called with the sources that are named, when they have changed.
	onWant func(map[jwks.Source]time.Duration)
	// wanted are the sources that onWant was called with last, each with the time that a fetch may take.
	wanted map[jwks.Source]time.Duration
	// rules are the rules of each object whose keys are fetched, objects those that name a source.
	rules   map[object.Key][]keyRule
	objects map[jwks.Source]map[object.Key]bool
	states  map[jwks.Source]jwks.State
	first   firstFetch
	// changed is set if other sources are named than want has told.
	changed bool
	// version counts the changes of what is saved, which savedAs has for each source.
	version uint64
	savedAs map[jwks.Source]saved.KeySet
}

// keyRule is a rule whose keys are fetched.
type keyRule struct {
	index   int
	source  jwks.Source
	timeout time.Duration
}

// newKeyring returns a keyring with the keys that an earlier process has saved.
func newKeyring(before []saved.KeySet, put func(jwks.Source, string), log *slog.Logger) *keyring {
	k := &keyring{
		log: log, put: put, onWant: func(map[jwks.Source]time.Duration) {},
		rules: map[object.Key][]keyRule{}, objects: map[jwks.Source]map[object.Key]bool{}, states: map[jwks.Source]jwks.State{}, savedAs: map[jwks.Source]saved.KeySet{},
		first: firstFetch{held: map[object.Key]heldObject{}, late: map[jwks.Source]bool{}},
	}
	for _, s := range before {
		keys, number, err := pki.PublicKeySet(s.Keys)
		if err != nil || s.Source.Check() != nil {
			continue // written by another release
		}
		k.states[s.Source] = jwks.State{Keys: keys, Number: number, Fetched: s.Fetched}
		k.savedAs[s.Source] = s
		put(s.Source, keys)
	}
	return k
}

// recent returns the saved key sets that are recent enough to be used.
func recent(all []saved.KeySet, now time.Time) []saved.KeySet {
	return slices.DeleteFunc(slices.Clone(all), func(s saved.KeySet) bool { return now.Sub(s.Fetched) > maxSavedAge })
}

// known is what is known of each source, which the caller may keep.
func (k *keyring) known() map[jwks.Source]jwks.State {
	out := make(map[jwks.Source]jwks.State, len(k.states))
	for s, st := range k.states {
		out[s] = st
	}
	return out
}

// apply notes the sources that an object names.
func (k *keyring) apply(c object.Change) {
	if c.Key.Kind != object.RequestAuthentication {
		return
	}
	for _, r := range k.rules[c.Key] {
		if delete(k.objects[r.source], c.Key); len(k.objects[r.source]) == 0 {
			delete(k.objects, r.source)
		}
		k.changed = true
	}
	delete(k.rules, c.Key)
	if c.Object == nil {
		return
	}
	for _, r := range k.fetchedRules(c.Object) {
		k.rules[c.Key] = append(k.rules[c.Key], r)
		if k.objects[r.source] == nil {
			k.objects[r.source] = map[object.Key]bool{}
		}
		k.objects[r.source][c.Key] = true
		k.changed = true
	}
}

// want tells which sources are named, and forgets the others. Call it once all objects have been read.
func (k *keyring) want() {
	if !k.changed {
		return
	}
	k.changed = false
	wanted := make(map[jwks.Source]time.Duration, len(k.objects))
	for _, rules := range k.rules {
		for _, r := range rules {
			wanted[r.source] = max(wanted[r.source], r.timeout)
		}
	}
	for _, h := range k.first.held {
		for _, r := range k.fetchedRules(h.change.Object) {
			wanted[r.source] = max(wanted[r.source], r.timeout)
		}
	}
	for s := range k.first.late {
		if wanted[s] == 0 {
			delete(k.first.late, s)
		}
	}
	for s := range k.states {
		if wanted[s] == 0 {
			delete(k.states, s)
			delete(k.savedAs, s)
			k.version++
			k.put(s, "")
		}
	}
	k.wanted = wanted
	k.onWant(wanted)
}

// take notes the result of a fetch. It returns the objects of which something else is to be said; moved is set if there are other keys.
func (k *keyring) take(u fetch.Update) (objects []object.Key, moved bool) {
	if k.wanted[u.Source] == 0 {
		return nil, false
	}
	before, now := k.states[u.Source], u.State
	k.states[u.Source] = now
	if moved = now.Keys != before.Keys; moved {
		k.put(u.Source, now.Keys)
	}
	if was := k.savedAs[u.Source]; now.Keys != "" && (was.Keys != now.Keys || now.Fetched.Sub(was.Fetched) >= saveKeysEvery) {
		k.savedAs[u.Source] = saved.KeySet{Source: u.Source, Keys: now.Keys, Fetched: now.Fetched.UTC().Truncate(time.Second)}
		k.version++
	}
	switch from := u.Source.First(); {
	case now.Err != "" && now.Err != before.Err:
		k.log.Warn("keys of tokens cannot be fetched; "+meanwhileOf(now), "from", from, "error", now.Err)
	case now.Err == "" && before.Err != "":
		k.log.Info("keys of tokens are fetched again", "from", from, "keys", now.Number)
	case now.Err == "" && moved:
		k.log.Info("keys of tokens have changed", "from", from, "keys", now.Number)
	}
	if moved || now.Err != before.Err || before.Tried.IsZero() {
		for o := range k.objects[u.Source] {
			objects = append(objects, o)
		}
		slices.SortFunc(objects, func(a, b object.Key) int { return strings.Compare(a.String(), b.String()) })
	}
	return objects, moved
}

// meanwhileOf says which keys are in force while none can be fetched.
func meanwhileOf(st jwks.State) string {
	if st.Keys == "" {
		return "none are known, so that every token is refused"
	}
	return "those of " + st.Fetched.UTC().Format(time.RFC3339) + " stay in force"
}

// saved returns what is to be saved, in order.
func (k *keyring) saved() []saved.KeySet {
	out := make([]saved.KeySet, 0, len(k.savedAs))
	for _, s := range k.savedAs {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b saved.KeySet) int { return cmp.Compare(a.Source.Key(), b.Source.Key()) })
	return out
}

// problemsOf says of each rule of an object whose keys are fetched how that went.
func (k *keyring) problemsOf(key object.Key) (out []object.Problem) {
	for _, r := range k.rules[key] {
		p := object.Problem{Key: key, Field: fmt.Sprintf("spec.jwtRules[%d].jwksUri", r.index), Severity: object.Info}
		st, from := k.states[r.source], r.source.First()
		switch {
		case st.Err != "":
			p.Severity = object.Warning
			p.Text = fmt.Sprintf("keys could not be fetched since %s: %s; %s", st.Failing.UTC().Format(time.RFC3339), st.Err, meanwhileOf(st))
			if k.mode == jwks.Hybrid {
				p.Text += "; this does not concern proxies for which the host is a service of the mesh"
			}
		case st.Keys == "":
			p.Text = fmt.Sprintf("keys are being fetched from %s; until then every token of the issuer is refused", from)
		case st.Tried.IsZero():
			p.Text = fmt.Sprintf("keys are being fetched from %s; %s", from, meanwhileOf(st))
		default:
			p.Text = fmt.Sprintf("%d keys were fetched from %s at %s", st.Number, from, st.Fetched.UTC().Format(time.RFC3339))
		}
		out = append(out, p)
	}
	return out
}

// counts counts the sources by state; those that have not been tried yet are not counted.
func (k *keyring) counts() map[string]int {
	out := map[string]int{"fetched": 0, "last_good": 0, "none": 0}
	for s := range k.objects {
		switch st := k.states[s]; {
		case st.Err == "" && st.Keys != "":
			out["fetched"]++
		case st.Err != "" && st.Keys != "":
			out["last_good"]++
		case st.Err != "":
			out["none"]++
		}
	}
	return out
}

// fetchMetrics returns the numbers of fetches, by Istio's names.
func (s *stats) fetchMetrics() []ca.Metric {
	succeeded, failed := s.keys.Counts()
	return []ca.Metric{
		{Name: "pilot_jwks_resolver_network_fetch_success_total", Help: "Fetches of keys of tokens that succeeded.", Counter: true, Value: float64(succeeded)},
		{Name: "pilot_jwks_resolver_network_fetch_fail_total", Help: "Fetches of keys of tokens that failed.", Counter: true, Value: float64(failed)},
	}
}

// newFetcher returns what fetches keys. Roots that cannot be read are left out, since what else is served does not need them.
func newFetcher(o KeyOptions, known map[jwks.Source]jwks.State, log *slog.Logger) *fetch.Fetcher {
	sec := fetch.Security{Blocked: o.Blocked, Insecure: o.Insecure, Check: o.check}
	if text, err := filewatch.ReadFile(o.Roots, maxRoots); err == nil {
		pool, failed := x509.SystemCertPool()
		if failed != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(text) {
			log.Error("no roots are taken from a file, so that keys cannot be fetched from servers that need them: want certificates in PEM", "file", o.Roots)
		}
		sec.Roots = pool
	} else if o.Roots != "" && !errors.Is(err, fs.ErrNotExist) {
		log.Error("roots cannot be read, so that keys cannot be fetched from servers that need them", "error", err)
	}
	if o.Insecure {
		log.Warn("certificates of servers that keys are fetched from are not verified: whoever is on the way can replace the keys (JWKS_RESOLVER_INSECURE_SKIP_VERIFY)")
	}
	return fetch.New(fetch.NewClient(sec), cmp.Or(o.Interval, jwks.DefaultInterval), known)
}

// keyProblemsOf are the problems of an object with fetched keys.
func (l *loop) keyProblemsOf(k object.Key) []object.Problem {
	out := l.keys.problemsOf(k)
	if len(out) == 0 {
		return nil
	}
	if o, ok := l.store.Get(k); ok {
		for i := range out {
			out[i].Origin, out[i].Generation = o.Origin, o.Meta.Generation
		}
	}
	return out
}

// keyProblems says of all rules whose keys are fetched how that went.
func (l *loop) keyProblems() (out []object.Problem) {
	for k := range l.keys.rules {
		out = append(out, l.keyProblemsOf(k)...)
	}
	slices.SortFunc(out, config.CompareVerdicts)
	return out
}

// takeKeys applies the result of a fetch. Only the resources that are made from keys that have changed are compiled again.
func (l *loop) takeKeys(u fetch.Update) {
	objects, moved := l.keys.take(u)
	for _, o := range objects {
		l.touched.object(o)
	}
	if moved {
		l.triggers["config"] = true
	}
	if released := l.keys.release(time.Now()); moved || len(released) > 0 || !l.gate.open.Load() {
		l.commit(object.Batch{Changes: released})
		return
	}
	l.kept.changed()
}

// EmitKeys hands the loop the result of a fetch; it waits while the loop is far behind.
func (l *loop) EmitKeys(u fetch.Update) {
	select {
	case l.fetched <- u:
	case <-l.done:
	}
}
