package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
)

func TestExternalAuthorizers(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string // severity and field of each verdict, and what its text begins with
	}{
		"all fields": {`{name: a, envoyExtAuthzHttp: {service: shop/a.example, port: 80, timeout: 1s, pathPrefix: /x, failOpen: true, clearRouteCache: true, statusOnError: "503", includeRequestHeadersInCheck: [a, "b*", "*c"],
includeAdditionalHeadersInCheck: {x: y}, includeRequestBodyInCheck: {maxRequestBytes: 1}, headersToUpstreamOnAllow: [a], headersToDownstreamOnAllow: [a], headersToDownstreamOnDeny: [a]}}`, nil},
		"gRPC":            {`{name: a, envoyExtAuthzGrpc: {service: a.example, port: 80, statusOnError: "403"}}`, nil},
		"no name":         {`{envoyExtAuthzGrpc: {service: a.example, port: 80}}`, []string{"error .name: is empty"}},
		"two of one name": {`{name: a, envoyExtAuthzGrpc: {service: a.example, port: 80}}, {name: a, envoyExtAuthzGrpc: {service: a.example, port: 80}}`, []string{`error .name: duplicate "a"`}},
		"no service":      {`{name: a, envoyExtAuthzGrpc: {port: 80}}`, []string{"error .envoyExtAuthzGrpc.service: invalid service"}},
		"another service": {`{name: a, envoyExtAuthzGrpc: {service: a/b/c, port: 80}}`, []string{"error .envoyExtAuthzGrpc.service: invalid service"}},
		"no port":         {`{name: a, envoyExtAuthzGrpc: {service: a.example}}`, []string{"error .envoyExtAuthzGrpc.port: invalid port 0"}},
		"no time":         {`{name: a, envoyExtAuthzGrpc: {service: a.example, port: 80, timeout: 0s}}`, []string{"error .envoyExtAuthzGrpc.timeout: invalid duration"}},
		"status":          {`{name: a, envoyExtAuthzGrpc: {service: a.example, port: 80, statusOnError: "999"}}`, []string{"error .envoyExtAuthzGrpc.statusOnError: invalid status"}},
		"status in words": {`{name: a, envoyExtAuthzGrpc: {service: a.example, port: 80, statusOnError: Forbidden}}`, []string{"error .envoyExtAuthzGrpc.statusOnError: invalid status"}},
		"an empty body":   {`{name: a, envoyExtAuthzGrpc: {service: a.example, port: 80, includeRequestBodyInCheck: {}}}`, []string{"error .envoyExtAuthzGrpc.includeRequestBodyInCheck.maxRequestBytes: invalid size 0"}},
		"a prefix":        {`{name: a, envoyExtAuthzHttp: {service: a.example, port: 80, pathPrefix: x}}`, []string{"error .envoyExtAuthzHttp.pathPrefix: invalid prefix"}},
		"a forged prefix": {`{name: a, envoyExtAuthzHttp: {service: a.example, port: 80, pathPrefix: "/x HTTP/1.1"}}`, []string{"error .envoyExtAuthzHttp.pathPrefix: invalid prefix"}},
		"names of headers": {`{name: a, envoyExtAuthzHttp: {service: a.example, port: 80, includeRequestHeadersInCheck: ["*", "a b", "*a*", ""], headersToUpstreamOnAllow: [":x"], headersToDownstreamOnAllow: ["a*b"], headersToDownstreamOnDeny: ["**"]}}`, []string{
			"error .envoyExtAuthzHttp.headersToDownstreamOnAllow[0]: invalid header name", "error .envoyExtAuthzHttp.headersToDownstreamOnDeny[0]: invalid header name", "error .envoyExtAuthzHttp.headersToUpstreamOnAllow[0]: invalid header name",
			"error .envoyExtAuthzHttp.includeRequestHeadersInCheck[0]: invalid header name", "error .envoyExtAuthzHttp.includeRequestHeadersInCheck[1]: invalid header name",
			"error .envoyExtAuthzHttp.includeRequestHeadersInCheck[2]: invalid header name", "error .envoyExtAuthzHttp.includeRequestHeadersInCheck[3]: invalid header name"}},
		"values of headers": {`{name: a, envoyExtAuthzHttp: {service: a.example, port: 80, includeAdditionalHeadersInCheck: {"a b": x, c: "d\r\ne: f"}}}`, []string{
			"error .envoyExtAuthzHttp.includeAdditionalHeadersInCheck[a b]: invalid header name", "error .envoyExtAuthzHttp.includeAdditionalHeadersInCheck[c]: invalid value"}},
		"the old field": {`{name: a, envoyExtAuthzHttp: {service: a.example, port: 80, includeHeadersInCheck: [a], includeRequestHeadersInCheck: [b]}}`, []string{"warning .envoyExtAuthzHttp.includeHeadersInCheck: not applied"}},
		"bytes":         {`{name: a, envoyExtAuthzHttp: {service: a.example, port: 80, includeRequestBodyInCheck: {maxRequestBytes: 1, packAsBytes: true}}}`, []string{"warning .envoyExtAuthzHttp.includeRequestBodyInCheck.packAsBytes: has no effect"}},
	} {
		_, verdicts := config.MeshConfig("{extensionProviders: [" + c.text + "]}")
		var got []string
		for _, v := range verdicts {
			field := strings.TrimPrefix(strings.TrimPrefix(v.Field, "extensionProviders[0]"), "extensionProviders[1]")
			got = append(got, v.Severity.String()+" "+field+": "+v.Text)
		}
		slices.Sort(got)
		if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, c.want)
		}
	}
}
