package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// several are replicas that serve these files each; one without files cannot be reached.
func several(t *testing.T, files ...map[string]string) *replicas {
	t.Helper()
	r := &replicas{found: time.Now().Add(time.Hour)}
	for i, f := range files {
		dir := t.TempDir()
		for name, text := range f {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s := httptest.NewServer(pages(dir))
		t.Cleanup(s.Close)
		if f == nil {
			s.Close()
		}
		r.list = append(r.list, &replica{name: fmt.Sprintf("istiod-%d", i+1), base: s.URL, client: http.DefaultClient, close: func() {}})
	}
	return r
}

// command is one whose output is collected.
func command(t *testing.T) (c *cobra.Command, stdout, stderr *bytes.Buffer) {
	t.Helper()
	c, stdout, stderr = &cobra.Command{}, &bytes.Buffer{}, &bytes.Buffer{}
	c.SetContext(t.Context())
	c.SetOut(stdout)
	c.SetErr(stderr)
	return c, stdout, stderr
}

// want checks that text has these parts, in this order.
func want(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, p := range parts {
		i := strings.Index(rest, p)
		if i < 0 {
			t.Errorf("%s: no %q in its place in\n%s", what, p, text)
			return
		}
		rest = rest[i+len(p):]
	}
}

func TestProxiesOfAllReplicas(t *testing.T) {
	r := several(t,
		map[string]string{"syncz.json": `[{"proxy":"b.shop","proxy_type":"sidecar","generation":7,"applied":7},{"proxy":"c.shop","generation":7,"applied":6,"behind":{"since":"2026-11-22T08:00:00Z"}}]`},
		map[string]string{"syncz.json": `[{"proxy":"a.shop","proxy_type":"sidecar","generation":2,"applied":2,"newer_field":1}]`}, nil)
	texts, lost, err := connected(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := printProxies(&out, "table", texts, r.several(), 0); err != nil {
		t.Fatal(err)
	}
	want(t, "the table", out.String(), "PROXY   REPLICA   TYPE", "\na.shop  istiod-2", "2/2", "\nb.shop  istiod-1", "7/7", "\nc.shop  istiod-1")
	out.Reset()
	if err := printProxies(&out, "json", texts, r.several(), 0); err != nil {
		t.Fatal(err)
	}
	want(t, "JSON", out.String(), `"replica": "istiod-1"`, `"newer_field": 1`, `"replica": "istiod-2"`)
	out.Reset()
	if err := printBehind(&out, "table", texts, r.several(), 0); err != nil {
		t.Fatal(err)
	}
	want(t, "those behind", out.String(), "PROXY   REPLICA", "c.shop  istiod-1  6/7")
	out.Reset()
	if err := lost.report(&out); err != errSaid { //nolint:errorlint // it is not wrapped
		t.Errorf("the answer is not called partial: %v", err)
	}
	want(t, "what is missing", out.String(), "pilotctl: the answer is partial, without that of istiod-3: request to Pod istiod-3: ", "connection refused\n")
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("%d lines about one replica: %s", n, out.String())
	}
}

func TestNoReplicaAnswers(t *testing.T) {
	_, _, err := connected(t.Context(), several(t, nil, nil))
	if err == nil {
		t.Fatal("no error")
	}
	want(t, "the error", err.Error(), "request to Pod istiod-1", "request to Pod istiod-2")
}

func TestConfigIsThatOfTheReplicaWithTheProxy(t *testing.T) {
	r := several(t, nil, map[string]string{}, map[string]string{"dump-web.shop.json": `{"configs":[]}`})
	c, _, stderr := command(t)
	text, err := pageOf(c, r, dumpPage, "web.shop")
	if err != nil || string(text) != `{"configs":[]}` || stderr.Len() > 0 {
		t.Errorf("%s, %v, %s", text, err, stderr)
	}
	if _, err = pageOf(c, r, dumpPage, "other.shop"); err == nil {
		t.Fatal("no error for a proxy that is not connected")
	}
	want(t, "the error", err.Error(), "other.shop is connected to none of the replicas that have answered")
	want(t, "what is missing", stderr.String(), "partial, without that of istiod-1")
	r.list = r.list[:1]
	if _, err = pageOf(c, r, dumpPage, "web.shop"); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("without any answer: %v", err)
	}
}

func TestProblemsOfAllReplicas(t *testing.T) {
	both := `{"object":"VirtualService shop/a","origin":"Kubernetes","severity":"warning","field":"spec","text":"no such host","meanwhile":"","proxies":%d,"applied":%d}`
	one := `{"object":"VirtualService shop/b","origin":"Kubernetes","severity":"error","field":"","text":"not read","meanwhile":"","proxies":null,"applied":null}`
	r := several(t, map[string]string{"objectz.json": "[" + fmt.Sprintf(both, 3, 2) + "]"}, map[string]string{"objectz.json": "[" + one + "," + fmt.Sprintf(both, 4, 4) + "]"})
	c, stdout, _ := command(t)
	if _, _, err := printRejected(c, &flags{output: "table"}, r); err != nil {
		t.Fatal(err)
	}
	want(t, "the table", stdout.String(), "shop/a", "no such host", "6/7\n", "shop/b", "not read (only at istiod-2)")
	if n := strings.Count(stdout.String(), "\n"); n != 4 {
		t.Errorf("%d lines:\n%s", n, stdout)
	}
	stdout.Reset()
	if _, _, err := printRejected(c, &flags{output: "json"}, r); err != nil {
		t.Fatal(err)
	}
	var list []problem
	if err := json.Unmarshal(stdout.Bytes(), &list); err != nil || len(list) != 2 || *list[0].Proxies != 7 || list[0].Replicas != nil || list[1].Proxies != nil || !slices.Equal(list[1].Replicas, []string{"istiod-2"}) {
		t.Errorf("%v: %s", err, stdout)
	}
}

const inForce = `{"started":"x","generation":%d,"objects":[{"kind":"VirtualService","namespace":"shop","name":"a","state":"in force","origin":"Kubernetes","generation":%d,"proxies":%d,"applied":%d,"behind":[%s]}]}`

func TestAppliedIsTheSumOfAllReplicas(t *testing.T) {
	r := several(t, map[string]string{"applied.json": fmt.Sprintf(inForce, 9, 9, 3, 2, "")}, map[string]string{"applied.json": fmt.Sprintf(inForce, 4, 3, 5, 5, "")})
	c, stdout, _ := command(t)
	if _, err := printAll(c, &flags{output: "table"}, r); err != nil {
		t.Fatal(err)
	}
	want(t, "the table", stdout.String(), "KIND            NAMESPACE  NAME  APPLIED  WHERE\n", "shop       a     7/8      Kubernetes")
	stdout.Reset()
	if _, err := printAll(c, &flags{output: "json"}, r); err != nil {
		t.Fatal(err)
	}
	want(t, "JSON", stdout.String(), `"proxies": 8`, `"generations": {`, `"istiod-1": 9`, `"istiod-2": 3`)
	if strings.Contains(stdout.String(), `"generation":`) {
		t.Errorf("a generation that is that of no replica: %s", stdout)
	}
}

func TestWaitIsForAllReplicas(t *testing.T) {
	behind := `{"proxy":"web.shop","generation":9,"since":"x"}`
	r := several(t, map[string]string{"applieda.json": fmt.Sprintf(inForce, 9, 9, 3, 3, "")}, map[string]string{"applieda.json": fmt.Sprintf(inForce, 4, 3, 5, 4, behind)})
	request := appliedRequest{query: map[string][]string{"kind": {"vs"}, "namespace": {"shop"}, "name": {"a"}}}
	var progress bytes.Buffer
	_, err := poll(t.Context(), r, request, &waiting{}, 500*time.Millisecond, &progress)
	if err == nil {
		t.Fatal("a proxy of the second replica is behind, and the wait is over")
	}
	want(t, "the progress", progress.String(), "VirtualService shop/a: 7 of 8 proxies have it; waiting for web.shop\n")

	// A replica that does not answer may have proxies.
	r.list = append(several(t, nil).list, r.list[0])
	if _, err = poll(t.Context(), r, request, &waiting{}, 500*time.Millisecond, &progress); err == nil || !strings.Contains(err.Error(), "timed out after 500ms: request to Pod istiod-1") {
		t.Errorf("with one replica that does not answer: %v", err)
	}
	r.list = r.list[1:]
	if _, err = poll(t.Context(), r, request, &waiting{}, time.Minute, &progress); err != nil {
		t.Errorf("without it: %v", err)
	}
	r.list = append(r.list, r.list[0])
	if _, err = poll(t.Context(), r, request, &waiting{least: 3}, time.Minute, &progress); err == nil || !strings.Contains(err.Error(), "--generation") {
		t.Errorf("a generation of two replicas: %v", err)
	}
}

func TestStatesOfReplicasAreJoined(t *testing.T) {
	for _, tt := range []struct {
		states []string
		want   string
	}{
		{[]string{stateInForce, stateInForce}, stateInForce},
		{[]string{stateUnknown, stateUnknown}, stateUnknown},
		{[]string{stateRemoved, stateRemoved}, stateRemoved},
		{[]string{stateInForce, stateRejected}, stateRejected},
		{[]string{stateInForce, stateOther}, stateOther},
		{[]string{stateUnknown, stateInForce}, stateOther},
		{[]string{stateInForce, stateRemoved}, stateInForce},
		{[]string{stateRemoved, stateUnknown}, stateRemoved},
	} {
		var all []page[appliedAnswer]
		for i, s := range tt.states {
			all = append(all, page[appliedAnswer]{fmt.Sprint(i), appliedAnswer{Objects: []appliedObject{{Kind: "Service", Name: "a", State: s}}}})
		}
		if got := joinApplied(all).Objects[0].State; got != tt.want {
			t.Errorf("%q: %q, want %q", tt.states, got, tt.want)
		}
	}
}

func TestAppliedOfReplicasIsJoined(t *testing.T) {
	behind := page[appliedAnswer]{"1", appliedAnswer{Objects: []appliedObject{{Name: "a", State: stateInForce, Proxies: 1}}, Disconnected: []string{"x", "y"}}}
	starting := page[appliedAnswer]{"2", appliedAnswer{NotServed: "not synced", Objects: []appliedObject{{Name: "a", State: stateUnknown}}}}
	other := page[appliedAnswer]{"3", appliedAnswer{Objects: []appliedObject{{Name: "a", State: stateOther}}, Disconnected: []string{"y"}}}
	if got := joinApplied([]page[appliedAnswer]{behind, starting}); got.NotServed != "" || got.Objects[0].State != stateInForce {
		t.Errorf("a replica that serves nobody yet counts: %+v", got)
	}
	if got := joinApplied([]page[appliedAnswer]{starting, starting}); got.NotServed == "" {
		t.Errorf("none serves: %+v", got)
	}
	got := joinApplied([]page[appliedAnswer]{behind, other})
	if !slices.Equal(got.Disconnected, []string{"y"}) {
		t.Errorf("disconnected are %q: want those that no replica has", got.Disconnected)
	}
	w := &waiting{file: "a.yaml"}
	if done, err := w.step(got); done || err != nil || !strings.Contains(w.progress, "this version is not in force yet at 3") {
		t.Errorf("%v, %v, %q", done, err, w.progress)
	}
}

func TestRootsOfAllReplicas(t *testing.T) {
	status := `{"phase":"%s","roots":[{"sha256":"0123456789abcdef","role":"signs"}]}`
	// Each has read at another moment until when certificates are valid.
	newer := strings.Replace(fmt.Sprintf(status, "steady"), `"signs"`, `"signs","lastLeaf":"2026-11-23T08:00:00Z"`, 1)
	r := several(t, map[string]string{"ca.json": fmt.Sprintf(status, "steady")}, map[string]string{"ca.json": newer})
	c, stdout, _ := command(t)
	if err := printStatus(c, &flags{output: "table"}, r); err != nil || strings.Contains(stdout.String(), "istiod-") || !strings.Contains(stdout.String(), "2026-11-23T08:00:00Z") {
		t.Errorf("both agree: %v\n%s", err, stdout)
	}
	r = several(t, map[string]string{"ca.json": fmt.Sprintf(status, "steady")}, map[string]string{"ca.json": fmt.Sprintf(status, "distributing")})
	stdout.Reset()
	if err := printStatus(c, &flags{output: "table"}, r); err != nil {
		t.Error(err)
	}
	want(t, "the table", stdout.String(), "phase: steady", "istiod-2 differs from istiod-1: phase distributing, 1 root:")
	stdout.Reset()
	if err := printStatus(c, &flags{output: "json"}, r); err != nil {
		t.Error(err)
	}
	want(t, "JSON", stdout.String(), `"differing": [`, `"replica": "istiod-2"`, `"phase": "distributing"`, `"phase": "steady"`)
}

// A rotation is requested of one replica only, of one that can be reached.
func TestRotationIsRequestedOnce(t *testing.T) {
	status := `{"phase":"distributing","roots":[]}`
	files := map[string]string{"ca.json": status, "rotate.json": status}
	r := several(t, nil, files, files)
	posts := 0
	for _, k := range r.list {
		k.client = &http.Client{Transport: counting{&posts}}
	}
	c, stdout, _ := command(t)
	if err := beginRotation(c, &flags{output: "table"}, r); err != nil || posts != 1 {
		t.Errorf("%d requests, error %v", posts, err)
	}
	want(t, "the table", stdout.String(), "phase: distributing")
}

// counting counts POSTs.
type counting struct{ posts *int }

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPost {
		*c.posts++
	}
	return http.DefaultTransport.RoundTrip(r)
}
