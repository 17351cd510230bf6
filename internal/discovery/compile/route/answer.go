package route

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networking "istio.io/api/networking/v1alpha3"
)

var redirectCodes = map[uint32]routev3.RedirectAction_RedirectResponseCode{
	301: routev3.RedirectAction_MOVED_PERMANENTLY,
	302: routev3.RedirectAction_FOUND,
	303: routev3.RedirectAction_SEE_OTHER,
	307: routev3.RedirectAction_TEMPORARY_REDIRECT,
	308: routev3.RedirectAction_PERMANENT_REDIRECT,
}

// redirect has the default status 301. port is that of the client's request. [control-plane 1.7.18]
func redirect(r *networking.HTTPRedirect, port uint32) *routev3.RedirectAction {
	a := &routev3.RedirectAction{HostRedirect: r.GetAuthority(), ResponseCode: redirectCodes[r.GetRedirectCode()]}
	switch {
	case r.GetPrefixRewrite() != "":
		a.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: r.PrefixRewrite}
	case r.GetUri() != "":
		a.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: r.Uri}
	}
	if r.GetScheme() != "" {
		a.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: r.Scheme}
	}
	switch p := r.GetRedirectPort().(type) {
	case *networking.HTTPRedirect_Port:
		a.PortRedirect = p.Port
	case *networking.HTTPRedirect_DerivePort:
		if p.DerivePort == networking.HTTPRedirect_FROM_REQUEST_PORT {
			a.PortRedirect = port
		} else {
			a.PortRedirect = schemePort(r.GetScheme())
		}
	}
	return a
}

// schemePort returns the default port of a scheme; requests to sidecars are HTTP.
func schemePort(scheme string) uint32 {
	if scheme == "https" {
		return 443
	}
	return 80
}

// Misdirected returns the route of a host that is another listener's, on a connection for whose server name this listener was chosen.
// [RFC 9110 §15.5.20]
func Misdirected() *routev3.Route {
	return &routev3.Route{
		Name: "misdirected", Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: statusMisdirected}},
	}
}

// directResponse is [control-plane 1.7.19].
func directResponse(d *networking.HTTPDirectResponse) *routev3.DirectResponseAction {
	a := &routev3.DirectResponseAction{Status: d.GetStatus()}
	switch b := d.GetBody().GetSpecifier().(type) {
	case *networking.HTTPBody_String_:
		a.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: b.String_}}
	case *networking.HTTPBody_Bytes:
		a.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b.Bytes}}
	}
	return a
}
