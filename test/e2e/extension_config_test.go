package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/test/wait"
)

// scriptAlone is a filter whose script is a resource of its own, in another object.
const scriptAlone = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: filter, namespace: tokens}
spec:
  workloadSelector: {labels: {app: server}}
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND}
    patch:
      operation: INSERT_FIRST
      value:
        name: script
        config_discovery:
          config_source: {ads: {}, initial_fetch_timeout: 60s}
          type_urls: [type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua]
`

const scriptItself = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: script, namespace: tokens}
spec:
  workloadSelector: {labels: {app: server}}
  configPatches:
  - applyTo: EXTENSION_CONFIG
    patch:
      operation: ADD
      value:
        name: script
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          FIELD: {inline_string: 'CODE'}
`

// TestAScriptThatMovesAlone edits the script of a filter whose configuration comes by ECDS: each edit is in force, and no listener is
// another one. What Envoy or the control plane refuses leaves the last script in force, and is told of with the object.
func TestAScriptThatMovesAlone(t *testing.T) {
	m, config := start(t, "tokens")
	serveHeaders(t, m, "server-1.tokens", ":9090")
	header := func(ctx context.Context) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server.tokens:9090/", http.NoBody)
		if err != nil {
			return "", err
		}
		res, err := meshup.Client(m.Pod("client-1.tokens").Net, 0).Do(req)
		if err != nil {
			return "", err
		}
		_, err = io.Copy(io.Discard, res.Body)
		if err = errors.Join(err, res.Body.Close()); err == nil && res.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", res.StatusCode)
		}
		return res.Header.Get("x-lua"), err
	}
	says := func(want string) {
		t.Helper()
		steady(t, "the header "+want, func(ctx context.Context) error {
			got, err := header(ctx)
			if err == nil && got != want {
				err = fmt.Errorf("x-lua %q, want %q", got, want)
			}
			return err
		})
	}
	script := func(field, code string) {
		t.Helper()
		put(t, config, "script.yaml", strings.NewReplacer("FIELD", field, "CODE", code).Replace(scriptItself))
	}
	adds := func(value string) string {
		return fmt.Sprintf(`function envoy_on_response(h) h:headers():add("x-lua", "%s") end`, value)
	}
	listeners := func() []string {
		t.Helper()
		return listenerVersions(t, m.Pod("server-1.tokens"))
	}
	script("default_source_code", adds("1"))
	put(t, config, "filter.yaml", scriptAlone)
	says("1")
	before := listeners()
	script("default_source_code", adds("2"))
	says("2")
	file := filepath.Join(config, "script.yaml")
	script("default_source_code", "this is no script")
	if code, out, log := pilotctl(t, m, "wait", "-f", file, "--timeout", "60s"); code != 1 || !strings.Contains(log, "ECDS refused (script): ") || !strings.Contains(log, "script load error") {
		t.Errorf("an edit that Envoy refuses: exit code %d\n%s%s", code, out, log)
	}
	says("2")
	script("no_such_field", adds("3"))
	wait.NoError(t, "the verdict", func() error {
		if _, out, _ := pilotctl(t, m, "objects"); !strings.Contains(out, "EnvoyFilter tokens/script") || !strings.Contains(out, `unknown field "no_such_field"`) {
			return errors.New(out)
		}
		return nil
	})
	says("2")
	script("default_source_code", adds("3"))
	if code, out, log := pilotctl(t, m, "wait", "-f", file, "--timeout", "60s"); code != 0 {
		t.Errorf("the script is mended: exit code %d\n%s%s", code, out, log)
	}
	says("3")
	if after := listeners(); len(before) == 0 || !slices.Equal(before, after) {
		t.Errorf("the listeners have the versions %v, before %v", after, before)
	}
}

var versionInfo = regexp.MustCompile(`"version_info": "[^"]*"`)

// listenerVersions are the versions of the listeners that a Pod's Envoy has been sent, sorted.
func listenerVersions(t *testing.T, p *meshup.Pod) []string {
	t.Helper()
	var dump []byte
	wait.NoError(t, "Envoy's listeners", func() (err error) {
		dump, err = p.Admin(t.Context(), "/config_dump?resource=dynamic_listeners")
		return err
	})
	list := versionInfo.FindAllString(string(dump), -1)
	slices.Sort(list)
	return list
}
