package route

import (
	"math"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	faultcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// filters returns the route's configuration of the HTTP filters that the proxy has.
func (in Input) filters(h *networking.HTTPRoute) map[string]*anypb.Any {
	out := map[string]*anypb.Any{}
	if f := fault(h.GetFault()); f != nil && in.Caps.Has(mesh.Fault) {
		out[FaultFilter] = marshal.MustAny(f)
	}
	if c := h.GetCorsPolicy(); c != nil && in.Caps.Has(mesh.CORS) {
		out[CORSFilter] = marshal.MustAny(cors(c))
	}
	return out
}

// fault returns nil if nothing is injected. The default percentage is 100 %. [control-plane 1.7.23]
func fault(f *networking.HTTPFaultInjection) *faultv3.HTTPFault {
	out := &faultv3.HTTPFault{}
	if d := f.GetDelay(); d.GetFixedDelay().AsDuration() > 0 {
		percent := 100.0
		if d.GetPercentage() != nil {
			percent = d.GetPercentage().GetValue()
		} else if d.GetPercent() > 0 { //nolint:staticcheck // deprecated, but supported
			percent = float64(d.GetPercent()) //nolint:staticcheck // as above
		}
		out.Delay = &faultcommonv3.FaultDelay{
			FaultDelaySecifier: &faultcommonv3.FaultDelay_FixedDelay{FixedDelay: d.GetFixedDelay()},
			Percentage:         fraction(percent),
		}
	}
	out.Abort = abort(f.GetAbort())
	if out.Delay == nil && out.Abort == nil {
		return nil
	}
	return out
}

func abort(a *networking.HTTPFaultInjection_Abort) *faultv3.FaultAbort {
	percent := 100.0
	if a.GetPercentage() != nil {
		percent = a.GetPercentage().GetValue()
	}
	out := &faultv3.FaultAbort{Percentage: fraction(percent)}
	switch t := a.GetErrorType().(type) {
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		if t.HttpStatus < 200 || t.HttpStatus > 599 {
			return nil
		}
		out.ErrorType = &faultv3.FaultAbort_HttpStatus{HttpStatus: uint32(t.HttpStatus)}
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		code, ok := grpcCode(t.GrpcStatus)
		if !ok {
			return nil
		}
		out.ErrorType = &faultv3.FaultAbort_GrpcStatus{GrpcStatus: code}
	default:
		return nil
	}
	return out
}

// grpcCodes are the names of gRPC's status codes, by number.
var grpcCodes = []string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
	"UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

// grpcCode parses a status: a name in any case, or a number.
func grpcCode(s string) (uint32, bool) {
	for i, name := range grpcCodes {
		if strings.EqualFold(s, name) || s == strconv.Itoa(i) {
			return uint32(i), true
		}
	}
	return 0, false
}

// fraction converts a percentage, clamped to 0–100, with a resolution of 0.0001 %, Envoy's finest.
func fraction(percent float64) *typev3.FractionalPercent {
	n := math.Round(min(max(percent, 0), 100) * 10000)
	return &typev3.FractionalPercent{Numerator: uint32(n), Denominator: typev3.FractionalPercent_MILLION}
}

// cors forwards preflights that match no origin to the application, unless unmatchedPreflights is
// IGNORE. [control-plane 1.7.25]
func cors(c *networking.CorsPolicy) *corsv3.CorsPolicy {
	out := &corsv3.CorsPolicy{
		AllowMethods:  strings.Join(c.GetAllowMethods(), ","),
		AllowHeaders:  strings.Join(c.GetAllowHeaders(), ","),
		ExposeHeaders: strings.Join(c.GetExposeHeaders(), ","),
		FilterEnabled: &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{Numerator: 100}},
		ForwardNotMatchingPreflights: wrapperspb.Bool(
			c.GetUnmatchedPreflights() != networking.CorsPolicy_IGNORE),
	}
	for _, o := range c.GetAllowOrigins() {
		if m, ok := originMatcher(o); ok {
			out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, m)
		}
	}
	for _, o := range c.GetAllowOrigin() { //nolint:staticcheck // deprecated, but supported
		out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, exactOrigin(o))
	}
	if age := c.GetMaxAge(); age != nil {
		out.MaxAge = strconv.FormatInt(age.GetSeconds(), 10)
	}
	if c.GetAllowCredentials() != nil {
		out.AllowCredentials = c.GetAllowCredentials()
	}
	return out
}

// originMatcher returns false for a match that Envoy would reject; without it, the origin is not allowed.
func originMatcher(o *networking.StringMatch) (*matcherv3.StringMatcher, bool) {
	if p, ok := o.GetMatchType().(*networking.StringMatch_Prefix); ok && p.Prefix == "" {
		return nil, false
	}
	return stringMatcher(o)
}

func exactOrigin(o string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: o}}
}
