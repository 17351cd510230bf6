package config

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// externalAuthorizers checks the providers of external authorization, but for what all providers have. [control-plane 1.10.13]
func (c *check) externalAuthorizers(m *meshv1.MeshConfig) {
	for i, p := range m.GetExtensionProviders() {
		at := item("extensionProviders", i)
		service, port, ok := mesh.ExternalAuthorizer(p)
		if !ok {
			continue
		}
		if h := p.GetEnvoyExtAuthzHttp(); h != nil {
			at += ".envoyExtAuthzHttp"
			c.authorizer(at, service, port, h)
			if p := h.GetPathPrefix(); p != "" && (!strings.HasPrefix(p, "/") || strings.ContainsAny(p, "\x00\r\n\t ?#")) {
				c.fail(at+".pathPrefix", "invalid prefix %q: want one that begins with \"/\", without spaces, \"?\" and \"#\"", p)
			}
			if h.GetIncludeRequestBodyInCheck().GetPackAsBytes() {
				c.warn(at+".includeRequestBodyInCheck.packAsBytes", "has no effect: the body of a check over HTTP is sent as it is; it is for envoyExtAuthzGrpc")
			}
			c.headerPatterns(at+".includeHeadersInCheck", h.GetIncludeHeadersInCheck())                //nolint:staticcheck // the field's older name
			if len(h.GetIncludeHeadersInCheck()) > 0 && len(h.GetIncludeRequestHeadersInCheck()) > 0 { //nolint:staticcheck // the same
				c.warn(at+".includeHeadersInCheck", "not applied: includeRequestHeadersInCheck is set, too; remove this one")
			}
			c.headerPatterns(at+".includeRequestHeadersInCheck", h.GetIncludeRequestHeadersInCheck())
			c.headerPatterns(at+".headersToUpstreamOnAllow", h.GetHeadersToUpstreamOnAllow())
			c.headerPatterns(at+".headersToDownstreamOnAllow", h.GetHeadersToDownstreamOnAllow())
			c.headerPatterns(at+".headersToDownstreamOnDeny", h.GetHeadersToDownstreamOnDeny())
			for _, name := range sorted(h.GetIncludeAdditionalHeadersInCheck()) {
				field := entry(at+".includeAdditionalHeadersInCheck", name)
				if !isToken(name) {
					c.fail(field, "invalid header name %q", name)
				}
				if strings.ContainsAny(h.IncludeAdditionalHeadersInCheck[name], "\x00\r\n") {
					c.fail(field, "invalid value: it has a line break or a NUL byte; remove it")
				}
			}
		} else if g := p.GetEnvoyExtAuthzGrpc(); g != nil {
			c.authorizer(at+".envoyExtAuthzGrpc", service, port, g)
		}
	}
}

// asked is what the providers of both protocols have.
type asked interface {
	GetTimeout() *durationpb.Duration
	GetStatusOnError() string
	GetIncludeRequestBodyInCheck() *meshv1.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody
}

func (c *check) authorizer(at, service string, port uint32, p asked) {
	ns, host := mesh.ProviderService(service)
	if strings.Contains(service, "/") && !isLabel(ns) || !isDomain(host) {
		c.fail(at+".service", "invalid service %q: want its host, such as authz.security.svc.cluster.local, or its namespace and host with a slash between them", service)
	}
	c.port(at+".port", port, false)
	c.duration(at+".timeout", p.GetTimeout())
	if text := p.GetStatusOnError(); text != "" {
		if n, err := strconv.ParseUint(text, 10, 10); err != nil || !answers(n) {
			c.fail(at+".statusOnError", "invalid status %q: want one of HTTP such as \"403\"", text)
		}
	}
	if b := p.GetIncludeRequestBodyInCheck(); b != nil && b.GetMaxRequestBytes() == 0 {
		c.fail(at+".includeRequestBodyInCheck.maxRequestBytes", "invalid size 0: want how many bytes of the body are sent")
	}
}

// answers reports whether Envoy can answer with a status: those that it has a name for.
func answers(code uint64) bool {
	switch {
	case code >= 200 && code <= 208, code == 226, code >= 300 && code <= 305, code == 307, code == 308,
		code >= 400 && code <= 417, code >= 421 && code <= 424, code == 426, code == 428, code == 429, code == 431,
		code >= 500 && code <= 508, code == 510, code == 511:
		return true
	}
	return false
}

// headerPatterns checks names of headers with at most one "*", at the start or the end.
func (c *check) headerPatterns(at string, list []string) {
	for i, v := range list {
		name, ok := strings.CutSuffix(v, "*")
		if !ok {
			name = strings.TrimPrefix(v, "*")
		}
		if !isToken(name) || strings.Contains(name, "*") {
			c.fail(item(at, i), "invalid header name %q: want a name, with at most one \"*\" at its start or its end", v)
		}
	}
}
