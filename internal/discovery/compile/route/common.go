package route

import (
	"cmp"
	"maps"
	"math"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Route is what one match of a VirtualService, or of a route of the Gateway API, says: both are translated to it, and it to
// Envoy's. It has one of Redirect, Direct and Forward; without any, requests get the status Invalid.
type Route struct {
	Name, StatPrefix string
	// Config is the path of the object, and Rule the name in the names of spans, with the port.
	Config, Rule string
	Port         uint32
	Match        *routev3.RouteMatch
	Redirect     *routev3.RedirectAction
	Direct       *routev3.DirectResponseAction
	Forward      *Forward
	// Request and Response are the changes of headers, before those of a single target.
	Request, Response headerOps
	// Filters is the configuration of HTTP filters.
	Filters map[string]*anypb.Any
	// Invalid is the status for what cannot be translated.
	Invalid uint32
}

// Forward says where requests go.
type Forward struct {
	// To are the targets. If Single is set, the only one has no weight.
	To     []Target
	Single bool
	// Timeout is that of a request; nil and 0 are none.
	Timeout *durationpb.Duration
	// Retry is the policy of retries; nil is the default.
	Retry *networking.HTTPRetry
	// Rewrite has the rewrites of path and host, and what is not said here.
	Rewrite *routev3.RouteAction
	Mirrors []*routev3.RouteAction_RequestMirrorPolicy
}

// Target is one destination.
type Target struct {
	Destination
	Weight            int32
	Request, Response headerOps
}

// envoy translates a route; nil if its match is invalid.
func (x Route) envoy(caps mesh.Capability) *routev3.Route {
	r := &routev3.Route{Name: x.Name, Match: x.Match, StatPrefix: x.StatPrefix, Metadata: cluster.ConfigMetadata(x.Config)}
	switch {
	case x.Redirect != nil:
		r.Action = &routev3.Route_Redirect{Redirect: x.Redirect}
	case x.Direct != nil:
		r.Action = &routev3.Route_DirectResponse{DirectResponse: x.Direct}
	case x.Forward != nil:
		if _, own := x.Filters[SessionFilter]; own {
			for i := range x.Forward.To {
				x.Forward.To[i].Session = nil
			}
		}
		x.Forward.set(r, caps, x.Request.authority)
	}
	r.RequestHeadersToAdd = append(x.Request.add, r.RequestHeadersToAdd...)
	r.RequestHeadersToRemove = append(x.Request.remove, r.RequestHeadersToRemove...)
	r.ResponseHeadersToAdd = append(x.Response.add, r.ResponseHeadersToAdd...)
	r.ResponseHeadersToRemove = append(x.Response.remove, r.ResponseHeadersToRemove...)
	if a := r.GetRoute(); a != nil && x.Request.authority != "" {
		a.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: x.Request.authority}
	}
	if len(x.Filters) > 0 {
		if r.TypedPerFilterConfig == nil {
			r.TypedPerFilterConfig = map[string]*anypb.Any{}
		}
		maps.Copy(r.TypedPerFilterConfig, x.Filters)
	}
	if r.Action == nil || r.Validate() != nil {
		if x.Match.Validate() != nil {
			return nil
		}
		r = &routev3.Route{Name: x.Name, Match: x.Match, Metadata: r.Metadata, Action: &routev3.Route_DirectResponse{
			DirectResponse: &routev3.DirectResponseAction{Status: x.Invalid},
		}}
	}
	r.Decorator = &routev3.Decorator{Operation: operation(r, x.Rule, x.Port)}
	return r
}

// set sets the action of a route that forwards. It leaves the action unset if there is nowhere to forward to.
// authority is what the route's changes of headers set the Host header to, empty for nothing.
func (f *Forward) set(r *routev3.Route, caps mesh.Capability, authority string) {
	a := f.Rewrite
	a.Timeout = f.Timeout
	if a.Timeout == nil {
		a.Timeout = &durationpb.Duration{} // no timeout, instead of Envoy's default of 15 s
	}
	a.MaxGrpcTimeout = a.Timeout //nolint:staticcheck // as Istio sends it
	switch {
	case f.Single && len(f.To) == 1:
		f.To[0].alone(r, a, caps, authority)
	case f.Single || !f.weighted(a, caps, authority):
		return
	}
	a.RetryPolicy = retryPolicy(f.Retry, len(a.HashPolicy) > 0, caps)
	a.RequestMirrorPolicies = f.Mirrors
	r.Action = &routev3.Route_Route{Route: a}
}

// alone forwards all requests to one cluster. The target's weight has no effect, and its changes of headers become those of
// the route.
func (t Target) alone(r *routev3.Route, a *routev3.RouteAction, caps mesh.Capability, authority string) {
	a.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: t.Cluster}
	a.HashPolicy = t.Hash
	r.RequestHeadersToAdd, r.RequestHeadersToRemove = t.Request.add, t.Request.remove
	r.ResponseHeadersToAdd, r.ResponseHeadersToRemove = t.Response.add, t.Response.remove
	if t.Request.authority != "" {
		a.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: t.Request.authority}
	}
	r.TypedPerFilterConfig = t.perFilter(caps, cmp.Or(authority, a.GetHostRewriteLiteral()))
}

// weighted distributes requests by weight. It returns false if the sum of the weights is invalid.
func (f *Forward) weighted(a *routev3.RouteAction, caps mesh.Capability, authority string) bool {
	w := &routev3.WeightedCluster{}
	var total uint64
	for _, t := range f.To {
		if t.Weight <= 0 {
			continue
		}
		total += uint64(t.Weight)
		w.Clusters = append(w.Clusters, t.weight(caps, cmp.Or(authority, a.GetHostRewriteLiteral())))
		a.HashPolicy = appendHash(a.HashPolicy, t.Hash)
	}
	if total == 0 || total > math.MaxUint32 {
		return false
	}
	a.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: w}
	return true
}

// weight is the part of a cluster; host is what the Host header of all is rewritten to, empty for none.
func (t Target) weight(caps mesh.Capability, host string) *routev3.WeightedCluster_ClusterWeight {
	c := &routev3.WeightedCluster_ClusterWeight{Name: t.Cluster, Weight: wrapperspb.UInt32(uint32(t.Weight))}
	c.RequestHeadersToAdd, c.RequestHeadersToRemove = t.Request.add, t.Request.remove
	c.ResponseHeadersToAdd, c.ResponseHeadersToRemove = t.Response.add, t.Response.remove
	if t.Request.authority != "" {
		c.HostRewriteSpecifier = &routev3.WeightedCluster_ClusterWeight_HostRewriteLiteral{HostRewriteLiteral: t.Request.authority}
	}
	c.TypedPerFilterConfig = t.perFilter(caps, cmp.Or(t.Request.authority, host))
	return c
}
