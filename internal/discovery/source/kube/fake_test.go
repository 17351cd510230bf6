package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
)

// fake is an API server that lists and watches, and fails as it is told.
type fake struct {
	*httptest.Server

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]stored // by group/resource, then namespace/name
	events   []change
	forgot   int // events up to this version are forgotten
	more     chan struct{}
	cutAt    chan struct{}              // closed to cut every watch
	refuse   func(*http.Request) int    // the HTTP status of a request; 0 for none
	requests map[string]int             // by path and kind of request
	noStream bool                       // watches do not begin with a list
	versions map[string][]string        // that a group serves, if not all
	hang     func(r *http.Request) bool // requests that are never answered
}

type stored struct {
	version int
	body    map[string]any
}

type change struct {
	version        int
	kind, resource string
	ns             string
	body           map[string]any
}

const definitionsResource = "apiextensions.k8s.io/customresourcedefinitions"

func newFake(t *testing.T) *fake {
	f := &fake{objects: map[string]map[string]stored{}, more: make(chan struct{}), cutAt: make(chan struct{}), requests: map[string]int{}, version: 100, versions: map[string][]string{"extensions.istio.io": {"v1alpha1"}}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.Cut()
		f.CloseClientConnections()
		f.Close()
	})
	for _, k := range object.Kinds() {
		if decode.NewSpec(k) != nil {
			f.define(k)
		}
	}
	return f
}

func (f *fake) config() *rest.Config { return &rest.Config{Host: f.URL, QPS: -1} }

func nameOfDefinition(k object.Kind) string {
	r := decode.ResourceOf(k)
	return r.Name + "." + r.Group
}

// define installs the definition of a kind, undefine removes it with the kind's objects.
func (f *fake) define(k object.Kind) {
	f.set(definitionsResource, map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": nameOfDefinition(k)}})
}

func (f *fake) undefine(k object.Kind) {
	r := decode.ResourceOf(k)
	f.mu.Lock()
	var keys []string
	for key := range f.objects[r.Group+"/"+r.Name] {
		keys = append(keys, key)
	}
	f.mu.Unlock()
	for _, key := range keys {
		f.drop(r.Group+"/"+r.Name, key)
	}
	f.drop(definitionsResource, "/"+nameOfDefinition(k))
}

// put creates or replaces an object.
func (f *fake) put(t *testing.T, text string) {
	t.Helper()
	var body map[string]any
	if err := yaml.Unmarshal([]byte(text), &body); err != nil {
		t.Fatal(err)
	}
	r := decode.ResourceOf(object.Kind(body["kind"].(string)))
	f.set(r.Group+"/"+r.Name, body)
}

func (f *fake) delete(k object.Key) {
	r := decode.ResourceOf(k.Kind)
	f.drop(r.Group+"/"+r.Name, k.Namespace+"/"+k.Name)
}

func (f *fake) set(resource string, body map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	meta := body["metadata"].(map[string]any)
	ns, _ := meta["namespace"].(string)
	key := ns + "/" + meta["name"].(string)
	if f.objects[resource] == nil {
		f.objects[resource] = map[string]stored{}
	}
	kind := "ADDED"
	if old, ok := f.objects[resource][key]; ok {
		kind = "MODIFIED"
		before, after := maps.Clone(old.body), maps.Clone(body)
		m := maps.Clone(before["metadata"].(map[string]any))
		delete(m, "resourceVersion")
		before["metadata"] = m
		if fmt.Sprint(before) == fmt.Sprint(after) {
			return
		}
	}
	f.version++
	meta = maps.Clone(meta)
	meta["resourceVersion"] = strconv.Itoa(f.version)
	body = maps.Clone(body)
	body["metadata"] = meta
	f.objects[resource][key] = stored{f.version, body}
	f.event(change{f.version, kind, resource, ns, body})
}

func (f *fake) drop(resource, key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, ok := f.objects[resource][key]
	if !ok {
		return
	}
	delete(f.objects[resource], key)
	f.version++
	body := maps.Clone(old.body)
	meta := maps.Clone(body["metadata"].(map[string]any))
	meta["resourceVersion"] = strconv.Itoa(f.version)
	body["metadata"] = meta
	ns, _, _ := strings.Cut(key, "/")
	f.event(change{f.version, "DELETED", resource, ns, body})
}

func (f *fake) event(c change) {
	f.events = append(f.events, c)
	close(f.more)
	f.more = make(chan struct{})
}

// Cut ends every watch.
func (f *fake) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.cutAt)
	f.cutAt = make(chan struct{})
}

// forget makes every version but the present one Gone.
func (f *fake) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	f.forgot, f.events = f.version, nil
}

// refuseWith sets the HTTP status of requests; nil answers them.
func (f *fake) refuseWith(status func(*http.Request) int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = status
}

func (f *fake) count(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests[what]
}

// ServeHTTP answers lists, watches and discovery.
func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	watching := q.Get("watch") == "true" || q.Get("watch") == "1"
	f.mu.Lock()
	what := "list "
	if watching {
		what = "watch "
	}
	f.requests[what+r.URL.Path]++
	refuse, noStream, hang := f.refuse, f.noStream, f.hang
	f.mu.Unlock()
	if hang != nil && hang(r) {
		<-r.Context().Done()
		return
	}
	if refuse != nil {
		if code := refuse(r); code != 0 {
			status(w, code, fmt.Sprintf("%s is refused", r.URL.Path))
			return
		}
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	group := ""
	switch {
	case len(parts) >= 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) >= 2 && parts[0] == "apis":
		group = parts[1]
		if len(parts) <= 3 {
			f.discover(w, parts[1:])
			return
		}
		if !f.serves(group, parts[2]) {
			status(w, http.StatusNotFound, "no such version")
			return
		}
		parts = parts[3:]
	}
	if len(parts) == 4 && parts[0] == "namespaces" && !watching {
		f.mu.Lock()
		one, ok := f.objects[group+"/"+parts[2]][parts[1]+"/"+parts[3]]
		f.mu.Unlock()
		if ok {
			send(w, as(r, one.body))
		} else {
			status(w, http.StatusNotFound, "no such object")
		}
		return
	}
	ns := ""
	if len(parts) == 3 && parts[0] == "namespaces" {
		ns, parts = parts[1], parts[2:]
	}
	if len(parts) != 1 || !f.known(group, parts[0]) {
		status(w, http.StatusNotFound, "the server could not find the requested resource")
		return
	}
	resource := group + "/" + parts[0]
	name, named := strings.CutPrefix(q.Get("fieldSelector"), "metadata.name=")
	if !named {
		name = "" // of types, which the fake does not tell apart
	}
	match := func(in string, body map[string]any) bool {
		return (ns == "" || in == ns) && (name == "" || body["metadata"].(map[string]any)["name"] == name)
	}
	switch {
	case !watching:
		f.list(w, r, resource, match)
	case noStream && q.Get("sendInitialEvents") != "":
		status(w, http.StatusUnprocessableEntity, "sendInitialEvents is forbidden")
	default:
		f.watch(w, r, resource, match)
	}
}

func (f *fake) serves(group, version string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, some := f.versions[group]
	return !some || slices.Contains(v, version)
}

// serveVersions changes what a group serves.
func (f *fake) serveVersions(group string, versions ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.versions[group] = versions
}

func (f *fake) known(group, resource string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !strings.HasSuffix(group, "istio.io") {
		return true
	}
	_, ok := f.objects[definitionsResource]["/"+resource+"."+group]
	return ok
}

func (f *fake) discover(w http.ResponseWriter, parts []string) {
	f.mu.Lock()
	var resources []map[string]any
	for key := range f.objects[definitionsResource] {
		if name, ok := strings.CutSuffix(key, "."+parts[0]); ok {
			resources = append(resources, map[string]any{"name": strings.TrimPrefix(name, "/")})
		}
	}
	versions, some := f.versions[parts[0]]
	f.mu.Unlock()
	if !some {
		versions = []string{"v1", "v1beta1", "v1alpha3"}
	}
	if len(resources) == 0 || len(parts) == 2 && !slices.Contains(versions, parts[1]) {
		status(w, http.StatusNotFound, "no such group")
		return
	}
	if len(parts) == 2 {
		send(w, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": parts[0] + "/" + parts[1], "resources": resources})
		return
	}
	var all []map[string]any
	for _, v := range versions {
		all = append(all, map[string]any{"groupVersion": parts[0] + "/" + v, "version": v})
	}
	send(w, map[string]any{"kind": "APIGroup", "apiVersion": "v1", "name": parts[0], "versions": all})
}

func send(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func statusOf(code int, text string) map[string]any {
	reason := map[int]string{403: "Forbidden", 404: "NotFound", 410: "Expired", 422: "Invalid", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}[code]
	return map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": text}
}

func status(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "0")
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(statusOf(code, text))
}

// as returns an object in the version that the path names.
func as(r *http.Request, body map[string]any) map[string]any {
	parts := strings.Split(r.URL.Path, "/")
	if parts[1] == "apis" {
		body = maps.Clone(body)
		body["apiVersion"] = parts[2] + "/" + parts[3]
	}
	return body
}

func (f *fake) list(w http.ResponseWriter, r *http.Request, resource string, match func(string, map[string]any) bool) {
	f.mu.Lock()
	var all []map[string]any
	kind := ""
	objects := f.objects[resource]
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		ns, _, _ := strings.Cut(key, "/")
		if body := objects[key].body; match(ns, body) {
			all = append(all, as(r, body))
		}
	}
	for _, k := range object.Kinds() {
		if d := decode.ResourceOf(k); d.Group+"/"+d.Name == resource {
			kind = string(k)
		}
	}
	meta := map[string]any{"resourceVersion": strconv.Itoa(f.version)}
	f.mu.Unlock()
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); limit > 0 && from+limit < len(all) {
		meta["continue"] = strconv.Itoa(from + limit)
		all = all[:from+limit]
	}
	version := "v1"
	if p := strings.Split(r.URL.Path, "/"); p[1] == "apis" {
		version = p[2] + "/" + p[3]
	}
	if all = all[from:]; all == nil {
		all = []map[string]any{}
	}
	send(w, map[string]any{"kind": kind + "List", "apiVersion": version, "metadata": meta, "items": all})
}

func (f *fake) watch(w http.ResponseWriter, r *http.Request, resource string, match func(string, map[string]any) bool) {
	q := r.URL.Query()
	from, _ := strconv.Atoi(q.Get("resourceVersion"))
	f.mu.Lock()
	cut := f.cutAt
	initial := q.Get("sendInitialEvents") == "true"
	var first []map[string]any
	if initial {
		for _, key := range slices.Sorted(maps.Keys(f.objects[resource])) {
			ns, _, _ := strings.Cut(key, "/")
			if body := f.objects[resource][key].body; match(ns, body) {
				first = append(first, map[string]any{"type": "ADDED", "object": as(r, body)})
			}
		}
		from = f.version
		end := map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(from), "annotations": map[string]string{"k8s.io/initial-events-end": "true"}}}
		for _, k := range object.Kinds() {
			if d := decode.ResourceOf(k); d.Group+"/"+d.Name == resource {
				end["kind"] = string(k)
			}
		}
		end["apiVersion"] = "v1"
		first = append(first, map[string]any{"type": "BOOKMARK", "object": as(r, end)})
	}
	gone := from < f.forgot
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	e := json.NewEncoder(w)
	flush := w.(http.Flusher).Flush
	flush()
	if gone {
		_ = e.Encode(map[string]any{"type": "ERROR", "object": statusOf(http.StatusGone, "too old resource version")})
		return
	}
	for _, v := range first {
		_ = e.Encode(v)
	}
	flush()
	for {
		f.mu.Lock()
		more := f.more
		var due []change
		for _, c := range f.events {
			if c.version > from && c.resource == resource {
				due = append(due, c)
			}
		}
		from = max(from, f.version)
		f.mu.Unlock()
		for _, c := range due {
			if match(c.ns, c.body) {
				_ = e.Encode(map[string]any{"type": c.kind, "object": as(r, c.body)})
			}
		}
		flush()
		select {
		case <-more:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}
