package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

const luaAtTheServer = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: server, namespace: tokens}
spec:
  workloadSelector: {labels: {app: server}}
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_INBOUND, listener: {portNumber: 9090, filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}
    patch:
      operation: INSERT_BEFORE
      value:
        name: envoy.filters.http.lua
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code:
            inline_string: |
              function envoy_on_response(handle)
                handle:headers():add("x-lua", "server")
              end
`

// The patch of one route of the client, next to the server's.
const routeAtTheClient = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: client, namespace: tokens}
spec:
  workloadSelector: {labels: {app: client}}
  configPatches:
  - applyTo: HTTP_ROUTE
    match: {context: SIDECAR_OUTBOUND, routeConfiguration: {portNumber: 9090, vhost: {name: "server.tokens.svc.cluster.local:9090"}}}
    patch: {operation: INSERT_FIRST, value: {name: teapot, match: {path: /teapot}, direct_response: {status: 418}}}
`

// TestLuaAtOneWorkload inserts a filter into the inbound listener of one workload, and a route into the routes of another: each
// has an effect there, and none when its object is removed.
func TestLuaAtOneWorkload(t *testing.T) {
	m, config := start(t, "tokens")
	serveHeaders(t, m, "server-1.tokens", ":9090")
	call := func(ctx context.Context, path string) (status int, lua string, err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server.tokens:9090"+path, http.NoBody)
		if err != nil {
			return 0, "", err
		}
		res, err := meshup.Client(m.Pod("client-1.tokens").Net, 0).Do(req)
		if err != nil {
			return 0, "", err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return res.StatusCode, res.Header.Get("x-lua"), errors.Join(err, res.Body.Close())
	}
	want := func(what, path string, status int, lua string) {
		t.Helper()
		await(t, what, func(ctx context.Context) error {
			s, l, err := call(ctx, path)
			if err == nil && (s != status || l != lua) {
				err = fmt.Errorf("status %d, x-lua %q; want %d, %q", s, l, status, lua)
			}
			return err
		})
	}
	want("the server answers", "/teapot", http.StatusOK, "")
	put(t, config, "lua.yaml", luaAtTheServer)
	want("the filter adds its header", "/x", http.StatusOK, "server")
	put(t, config, "route.yaml", routeAtTheClient)
	want("the route answers", "/teapot", http.StatusTeapot, "")
	want("other routes are as before", "/x", http.StatusOK, "server")
	for _, name := range []string{"lua.yaml", "route.yaml"} {
		if err := os.Remove(filepath.Join(config, name)); err != nil {
			t.Fatal(err)
		}
	}
	want("the filter and the route are gone", "/teapot", http.StatusOK, "")
}

// The patches of a router: a route that leads to a cluster that no other route names, and an answer of its own.
const routesAtTheGateway = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: ingress, namespace: istio-system}
spec:
  workloadSelector: {labels: {istio: ingressgateway}}
  configPatches:
  - applyTo: HTTP_ROUTE
    match: {context: GATEWAY, routeConfiguration: {portNumber: 80, vhost: {domainName: shop.example.com}}}
    patch: {operation: INSERT_FIRST, value: {name: canary, match: {prefix: /canary}, route: {cluster: "outbound|9080||echo.tokens.svc.cluster.local"}}}
  - applyTo: HTTP_ROUTE
    match: {context: GATEWAY, routeConfiguration: {portNumber: 80, vhost: {domainName: shop.example.com}}}
    patch: {operation: INSERT_FIRST, value: {name: teapot, match: {path: /teapot}, direct_response: {status: 418}}}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: tokens}
spec: {clusterIP: 10.96.40.4, selector: {app: canary}, ports: [{name: http, port: 9080}]}
`

// TestRoutesAtAGateway inserts routes into those of a router, which gets the cluster that one of them names.
func TestRoutesAtAGateway(t *testing.T) {
	m, config := start(t, "tokens")
	serveHeaders(t, m, "server-1.tokens", ":9090")
	want := func(what, path string, status int) {
		t.Helper()
		await(t, what, func(ctx context.Context) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://10.99.0.9:8080"+path, http.NoBody)
			if err != nil {
				return err
			}
			req.Host = "shop.example.com"
			res, err := meshup.Client(m.Pod("outside-1.tokens").Net, 0).Do(req)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, res.Body)
			if err = errors.Join(err, res.Body.Close()); err == nil && res.StatusCode != status {
				err = fmt.Errorf("status %d, want %d", res.StatusCode, status)
			}
			return err
		})
	}
	want("the server answers", "/teapot", http.StatusOK)
	put(t, config, "ingress.yaml", routesAtTheGateway)
	want("the route answers", "/teapot", http.StatusTeapot)
	want("the cluster that a patch names is there", "/canary", http.StatusOK)
	if err := os.Remove(filepath.Join(config, "ingress.yaml")); err != nil {
		t.Fatal(err)
	}
	want("the routes are gone", "/teapot", http.StatusOK)
}
