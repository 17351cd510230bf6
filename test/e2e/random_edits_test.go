package e2e_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/wait"
)

var edits = flag.Int("edits", 100, "number of random `edits` of TestRandomEdits")

// endpointsFile has all objects of the kinds that change most, as documents of one file.
const endpointsFile = "endpoints.yaml"

// editor edits the directory of a mesh at random, and waits until its proxies have followed.
type editor struct {
	t       *testing.T
	m       *meshup.Mesh
	config  string
	random  randomMesh
	objects map[string]string // YAML by "kind_namespace_name"
	events  int               // that pilot-discovery must have counted
	waiting map[string]bool   // the objects edited since the proxies have followed
	said    []string          // the latest edits
}

// edit changes, adds or removes one object.
func (e *editor) edit(turn int) {
	e.t.Helper()
	kind, namespace, name := oneOf(e.random, randomKinds...), oneOf(e.random, "x", "y"), e.random.name()
	switch kind {
	case "ConfigMap":
		namespace, name = "istio-system", "istio"
	case "Namespace":
		namespace = "" // the other objects do not depend on it
	}
	key := strings.Join([]string{kind, namespace, name}, "_")
	if e.waiting[key] {
		e.followed() // two edits of an object could be applied as one
	}
	e.waiting[key] = true
	text := e.random.object(kind, namespace, name, turn)
	if _, exists := e.objects[key]; exists && e.random.chance(3) {
		text = ""
		delete(e.objects, key)
	} else {
		e.objects[key] = text
	}
	e.events++
	e.said = append(e.said, cmp.Or(text, "removed: "+key+"\n"))
	file := key + ".yaml"
	if together := func(k string) bool { return strings.HasPrefix(k, "Pod_") || strings.HasPrefix(k, "EndpointSlice_") }; together(key) {
		var all []string
		for _, k := range slices.Sorted(maps.Keys(e.objects)) {
			if together(k) {
				all = append(all, "---\n"+e.objects[k])
			}
		}
		file, text = endpointsFile, "# All endpoints.\n"+strings.Join(all, "")
	}
	path := filepath.Join(e.config, file)
	var err error
	if text == "" {
		err = os.Remove(path)
	} else { // at once: a file that is missing for a moment is removed, and counts twice, on a machine that is too busy
		err = errors.Join(os.WriteFile(path+".next", []byte(text), 0o644), os.Rename(path+".next", path))
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

// counted returns how many changes of objects pilot-discovery has applied.
func (e *editor) counted(ctx context.Context) (int, error) {
	text, err := e.m.Get(ctx, e.m.Net.Host(), "http://127.0.0.1:15014/metrics")
	if err != nil {
		return 0, err
	}
	total := 0
	for line := range strings.Lines(string(text)) {
		if series, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && (strings.HasPrefix(series, "pilot_k8s_cfg_events{") || strings.HasPrefix(series, "pilot_k8s_reg_events{")) {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			total += int(n)
		}
	}
	return total, nil
}

// followed waits until pilot-discovery has applied all edits, and the proxies what it has sent them.
func (e *editor) followed() {
	e.t.Helper()
	err := meshup.Await(e.t.Context(), 2*time.Minute, "all proxies have applied the edits", func(ctx context.Context) error {
		if n, err := e.counted(ctx); err != nil || n != e.events {
			return errors.Join(err, fmt.Errorf("%d changes were applied, want %d", n, e.events))
		}
		return e.inSync(ctx)
	})
	if err != nil {
		problems, _ := e.m.Get(e.t.Context(), e.m.Net.Host(), e.m.DiscoveryURL()+"/debug/objectz")
		e.t.Fatalf("%v\nthe latest edits:\n%s\nproblems:\n%s", err, strings.Join(e.said[max(0, len(e.said)-5):], ""), problems)
	}
	clear(e.waiting)
}

// inSync returns an error unless every proxy has applied what it was sent. A rejection is final.
func (e *editor) inSync(ctx context.Context) error {
	text, err := e.m.Get(ctx, e.m.Net.Host(), e.m.DiscoveryURL()+"/debug/syncz")
	if err != nil {
		return err
	}
	var proxies []struct {
		Proxy               string
		Generation, Applied uint64
		Types               map[string]struct {
			Sent, Acked, Nack string
		}
	}
	if err := json.Unmarshal(text, &proxies); err != nil {
		return err
	}
	if want := len(e.m.Pods()); len(proxies) != want {
		return fmt.Errorf("%d proxies are connected, want %d", len(proxies), want)
	}
	for _, p := range proxies {
		for name, typ := range p.Types {
			if typ.Nack != "" {
				return meshup.Final(fmt.Errorf("%s has rejected %s: %s", p.Proxy, name, typ.Nack))
			}
			if typ.Sent != typ.Acked {
				return fmt.Errorf("%s has not acknowledged %s", p.Proxy, name)
			}
		}
		if p.Applied != p.Generation {
			return fmt.Errorf("%s has generation %d, want %d", p.Proxy, p.Applied, p.Generation)
		}
	}
	return nil
}

// quiet waits until no Envoy has anything that warms or drains, and checks that none has rejected anything.
func (e *editor) quiet() {
	e.t.Helper()
	err := meshup.Await(e.t.Context(), 2*time.Minute, "no Envoy has rejected, warms or drains anything", func(ctx context.Context) error {
		stats, err := e.m.ErrorStats(ctx)
		if err != nil {
			return err
		}
		for name, n := range stats {
			switch {
			case strings.HasSuffix(name, "update_rejected"):
				return meshup.Final(fmt.Errorf("%s is %d", name, n))
			case strings.Contains(name, "warming"):
				return fmt.Errorf("%s is %d", name, n)
			}
		}
		for _, p := range e.m.Pods() {
			draining, err := p.Stats(ctx, "total_listeners_draining")
			if err != nil {
				return err
			}
			for name, n := range draining {
				if n != 0 {
					return fmt.Errorf("%s: %s is %d", p.Spec.Key(), name, n)
				}
			}
		}
		return nil
	})
	if err != nil {
		e.t.Fatal(err)
	}
}

// dump returns what an Envoy has of clusters, listeners, routes and endpoints, without versions and times, in
// an order of its own.
func dump(ctx context.Context, p *meshup.Pod) (string, error) {
	text, err := p.Admin(ctx, "/config_dump?include_eds")
	if err != nil {
		return "", err
	}
	var page struct {
		Configs []map[string]any `json:"configs"`
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return "", err
	}
	var out []string
	for _, config := range page.Configs {
		for list, entries := range config {
			if !strings.HasPrefix(list, "dynamic_") {
				continue
			}
			for _, entry := range entries.([]any) {
				text, err := json.MarshalIndent(plain(entry), "", " ")
				if err != nil {
					return "", err
				}
				out = append(out, list+" "+string(text)+"\n")
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ""), nil
}

// plain removes versions and times from a part of a dump, and sorts endpoints: Envoy keeps those that it had in
// their places.
func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range []string{"version_info", "last_updated", "draining_state"} {
			delete(v, k)
		}
		for k := range v {
			v[k] = plain(v[k])
		}
		if list, ok := v["lb_endpoints"].([]any); ok {
			slices.SortFunc(list, func(a, b any) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	}
	return v
}

func (e *editor) dumps() map[string]string {
	e.t.Helper()
	out := map[string]string{}
	for _, p := range e.m.Pods() {
		text, err := dump(e.t.Context(), p)
		if err != nil {
			e.t.Fatal(err)
		}
		out[p.Spec.Key()] = text
	}
	return out
}

// TestRandomEdits makes random edits of objects of all kinds, which three Envoys follow. None may reject
// anything, and in the end each must have what an Envoy has that starts then.
func TestRandomEdits(t *testing.T) {
	m, config := startWith(t, "random", func(o *meshup.Options) {
		o.ProxyConfig = meshup.CountFailures + "\ndrainDuration: 1s"
	})
	e := &editor{t: t, m: m, config: config, objects: map[string]string{}, waiting: map[string]bool{}, random: randomMesh{rand.New(rand.NewPCG(10, wait.Seed(t, 10)))}}
	var err error
	if e.events, err = e.counted(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for turn := range *edits {
		e.edit(turn)
		if e.random.chance(4) {
			continue // the next edit comes before this one has been applied
		}
		e.followed()
		if turn%100 == 99 {
			e.quiet()
		}
	}
	e.followed()
	e.quiet()
	t.Logf("%d edits in %v; %d objects are left", *edits, time.Since(began).Round(time.Millisecond), len(e.objects))
	old := e.dumps()
	for _, p := range m.Pods() {
		before, err := p.KillEnvoy()
		if err != nil {
			t.Fatal(err)
		}
		if err := meshup.Await(t.Context(), time.Minute, "another Envoy of "+p.Spec.Key()+" is ready", func(ctx context.Context) error {
			if pid, err := p.EnvoyPID(); err != nil || pid == before {
				return errors.Join(err, fmt.Errorf("it has process %d", pid))
			}
			return p.Ready(ctx)
		}); err != nil {
			t.Fatal(err)
		}
	}
	e.followed()
	e.quiet()
	for pod, fresh := range e.dumps() {
		for _, list := range []string{"dynamic_active_clusters", "dynamic_listeners", "dynamic_route_configs", "dynamic_endpoint_configs"} {
			if !strings.Contains(fresh, list) {
				t.Errorf("%s has no %s", pod, list)
			}
		}
		if d := gocmp.Diff(strings.Split(fresh, "\n"), strings.Split(old[pod], "\n")); d != "" {
			t.Errorf("%s: configuration after the edits (+) differs from that of an Envoy that has just started (-):\n%s", pod, d)
		}
	}
}
