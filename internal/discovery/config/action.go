package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"
)

// retryConditions are the conditions that retryOn accepts besides status codes: Envoy's for HTTP and for gRPC.
var retryConditions = []string{
	"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "envoy-ratelimited", "retriable-4xx",
	"refused-stream", "retriable-status-codes", "retriable-headers", "http3-post-connect-failure",
	"cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable",
}

// grpcStatuses are the names of gRPC's status codes, which fault injection accepts.
var grpcStatuses = []string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

var httpMethods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "*"}

func (c *check) retries(at string, r *networking.HTTPRetry) {
	c.notNegative(at+".attempts", r.Attempts)
	if r.Attempts == 0 && (r.PerTryTimeout != nil || r.RetryOn != "" || r.RetryRemoteLocalities != nil) {
		c.fail(at+".attempts", "is 0, which disables retries, but other settings of retries are set; set attempts or remove them")
	}
	c.duration(at+".perTryTimeout", r.PerTryTimeout)
	c.duration(at+".backoff", r.Backoff)
	if r.RetryOn == "" {
		return
	}
	for s := range strings.SplitSeq(r.RetryOn, ",") {
		s = strings.TrimSpace(s)
		if n, err := strconv.Atoi(s); err == nil && n >= 100 && n <= 599 || slices.Contains(retryConditions, s) {
			continue
		}
		c.fail(at+".retryOn", "invalid condition %q: want status codes or %s", s, strings.Join(retryConditions, ", "))
	}
}

func (c *check) faults(at string, f *networking.HTTPFaultInjection) {
	if f.Delay == nil && f.Abort == nil {
		c.fail(at, "is empty; set delay or abort")
	}
	if d := f.Delay; d != nil {
		c.percent(at+".delay.percentage", d.Percentage)
		c.number(at+".delay.percent", float64(d.Percent), 0, 100) //nolint:staticcheck // deprecated, but supported
		switch t := d.HttpDelayType.(type) {
		case *networking.HTTPFaultInjection_Delay_FixedDelay:
			c.duration(at+".delay.fixedDelay", t.FixedDelay)
		case *networking.HTTPFaultInjection_Delay_ExponentialDelay:
			c.fail(at+".delay.exponentialDelay", "not applied: proxies inject fixed delays only; use fixedDelay")
		default:
			c.fail(at+".delay.fixedDelay", "is missing; set a duration")
		}
	}
	if a := f.Abort; a != nil {
		c.percent(at+".abort.percentage", a.Percentage)
		switch t := a.ErrorType.(type) {
		case *networking.HTTPFaultInjection_Abort_HttpStatus:
			c.number(at+".abort.httpStatus", float64(t.HttpStatus), 200, 599)
		case *networking.HTTPFaultInjection_Abort_GrpcStatus:
			if !slices.Contains(grpcStatuses, t.GrpcStatus) {
				c.fail(at+".abort.grpcStatus", "invalid gRPC status %q: want one of %s", t.GrpcStatus, strings.Join(grpcStatuses, ", "))
			}
		case *networking.HTTPFaultInjection_Abort_Http2Error:
			c.fail(at+".abort.http2Error", "not applied: proxies inject HTTP and gRPC statuses only; use httpStatus or grpcStatus")
		default:
			c.fail(at+".abort", "has no error; set httpStatus or grpcStatus")
		}
	}
}

func (c *check) rewrite(at string, r *networking.HTTPRewrite) {
	x := r.UriRegexRewrite
	switch {
	case r.Uri == "" && r.Authority == "" && x == nil:
		c.fail(at, "is empty; set uri, authority or uriRegexRewrite")
	case r.Uri != "" && x != nil:
		c.fail(at+".uriRegexRewrite", "uri is set too; remove one of the two")
	}
	if x == nil {
		return
	}
	if x.Match == "" || x.Rewrite == "" {
		c.fail(at+".uriRegexRewrite", "needs match and rewrite")
		return
	}
	c.regex(at+".uriRegexRewrite.match", x.Match)
	re, err := regexp.Compile(x.Match)
	if err != nil {
		return
	}
	for i := 0; i+1 < len(x.Rewrite); i++ {
		if x.Rewrite[i] != '\\' {
			continue
		}
		i++
		if d := x.Rewrite[i]; d >= '0' && d <= '9' && int(d-'0') > re.NumSubexp() {
			c.fail(at+".uriRegexRewrite.rewrite", "invalid group \\%c: the expression has %d groups", d, re.NumSubexp())
		} else if (d < '0' || d > '9') && d != '\\' {
			c.fail(at+".uriRegexRewrite.rewrite", "invalid escape \\%c: want \\0 to \\9 for groups and \\\\ for a backslash", d)
		}
	}
	if n := len(x.Rewrite) - len(strings.TrimRight(x.Rewrite, `\`)); n%2 == 1 {
		c.fail(at+".uriRegexRewrite.rewrite", "ends in a single backslash; write \\\\")
	}
}

func (c *check) redirect(at string, r *networking.HTTPRedirect) {
	if r.Uri == "" && r.Authority == "" && r.Scheme == "" && r.PrefixRewrite == "" && r.RedirectPort == nil {
		c.fail(at, "is empty; set uri, authority, scheme or port")
	}
	if r.Uri != "" && r.PrefixRewrite != "" {
		c.fail(at+".prefixRewrite", "uri is set too; remove one of the two")
	}
	if r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https" {
		c.fail(at+".scheme", "invalid scheme %q: want http or https", r.Scheme)
	}
	if p, ok := r.RedirectPort.(*networking.HTTPRedirect_Port); ok {
		c.port(at+".port", p.Port, false)
	}
	if !slices.Contains([]uint32{0, 301, 302, 303, 307, 308}, r.RedirectCode) {
		c.fail(at+".redirectCode", "invalid status %d: want 301, 302, 303, 307 or 308", r.RedirectCode)
	}
}

// maxBody is the maximum size of the body of a direct response in bytes; every proxy keeps it in memory.
const maxBody = 1 << 20

func (c *check) directResponse(at string, r *networking.HTTPDirectResponse) {
	c.number(at+".status", float64(r.Status), 200, 599)
	if n := max(len(r.Body.GetString_()), len(r.Body.GetBytes())); n > maxBody {
		c.fail(at+".body", "invalid body of %d bytes: want at most %d", n, maxBody)
	}
}

func (c *check) mirrors(at string, r *networking.HTTPRoute) {
	if r.Mirror != nil {
		c.destination(at+".mirror", r.Mirror)
		if len(r.Mirrors) > 0 {
			c.fail(at+".mirrors", "mirror is set too; remove one of the two")
		}
	}
	if p := r.MirrorPercent; p != nil { //nolint:staticcheck // deprecated, but supported
		c.number(at+".mirrorPercent", float64(p.Value), 0, 100)
	}
	c.percent(at+".mirrorPercentage", r.MirrorPercentage)
	for i, m := range r.Mirrors {
		c.destination(item(at+".mirrors", i)+".destination", m.GetDestination())
		c.percent(item(at+".mirrors", i)+".percentage", m.GetPercentage())
	}
}

func (c *check) cors(at string, p *networking.CorsPolicy) {
	for i, o := range p.AllowOrigins {
		c.match(item(at+".allowOrigins", i), o, false)
	}
	for i, m := range p.AllowMethods {
		if !slices.Contains(httpMethods, m) {
			c.fail(item(at+".allowMethods", i), "invalid method %q: want one of %s", m, strings.Join(httpMethods, ", "))
		}
	}
	for _, l := range []struct {
		name string
		list []string
	}{{"allowHeaders", p.AllowHeaders}, {"exposeHeaders", p.ExposeHeaders}} {
		for i, h := range l.list {
			if !isToken(h) {
				c.fail(item(at+"."+l.name, i), "invalid header name %q", h)
			}
		}
	}
	if d := p.MaxAge; d != nil && (!d.IsValid() || d.AsDuration() < time.Second || d.AsDuration()%time.Second != 0) {
		c.fail(at+".maxAge", "invalid duration %s: want whole seconds, at least 1s", d.AsDuration())
	}
}

func (c *check) headers(at string, h *networking.Headers) {
	if h == nil {
		return
	}
	c.headerOperations(at+".request", h.Request, true)
	c.headerOperations(at+".response", h.Response, false)
}

func (c *check) headerOperations(at string, o *networking.Headers_HeaderOperations, request bool) {
	if o == nil {
		return
	}
	for _, name := range sorted(o.Set) {
		// The host of a request is the only pseudo-header that may be set.
		host := request && (strings.EqualFold(name, "host") || strings.EqualFold(name, ":authority"))
		c.headerName(entry(at+".set", name), name, host)
		c.headerValue(entry(at+".set", name), o.Set[name])
	}
	for _, name := range sorted(o.Add) {
		c.headerName(entry(at+".add", name), name, false)
		c.headerValue(entry(at+".add", name), o.Add[name])
	}
	for i, name := range o.Remove {
		c.headerName(item(at+".remove", i), name, false)
	}
}

func (c *check) headerName(at, name string, allowHost bool) {
	switch {
	case allowHost:
	case strings.HasPrefix(name, ":") || strings.EqualFold(name, "host"):
		c.fail(at, "%q cannot be changed here; rewrite.authority changes a request's host", name)
	case !isToken(name):
		c.fail(at, "invalid header name %q", name)
	}
}

// command matches an escaped "%" or one of Envoy's commands in the value of a header. Whether the
// command exists is not checked.
var command = regexp.MustCompile(`%%|%[A-Z][A-Z0-9_]*(\([^)]*\))?(:[0-9]+)?%`)

func (c *check) headerValue(at, v string) {
	if strings.ContainsAny(v, "\x00\r\n") {
		c.fail(at, "invalid value: it has a line break or a NUL byte; remove it")
	}
	if strings.Contains(command.ReplaceAllLiteralString(v, ""), "%") {
		c.fail(at, "invalid value %q: want %%%% for a literal %%, or a command such as %%UPSTREAM_HOST%%", v)
	}
}
