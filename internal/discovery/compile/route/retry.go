package route

import (
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hostv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	priorityv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// The default retry policy. [control-plane C4]
const (
	defaultRetryOn       = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
	retriableStatusCodes = "retriable-status-codes"
	defaultAttempts      = 2
	hostAttempts         = 5
	previousHosts        = "envoy.retry_host_predicates.previous_hosts"
	previousPriorities   = "envoy.retry_priorities.previous_priorities"
	// priorityUpdate is the number of attempts after which the priorities tried are excluded.
	priorityUpdate = 2
)

// retryPolicy returns the default policy with the user's settings; nil if attempts is 0. Without settings
// of the user, a route with a hash policy retries on the same host, since the requests of a client
// should go to one host.
func retryPolicy(r *networking.HTTPRetry, hashed bool, caps mesh.Capability) *routev3.RetryPolicy {
	out := &routev3.RetryPolicy{
		RetryOn:                       defaultRetryOn,
		NumRetries:                    wrapperspb.UInt32(defaultAttempts),
		HostSelectionRetryMaxAttempts: hostAttempts,
	}
	otherHosts := !hashed
	if r != nil {
		if r.Attempts <= 0 {
			return nil
		}
		out.NumRetries = wrapperspb.UInt32(uint32(r.Attempts))
		if r.RetryOn != "" {
			out.RetryOn, out.RetriableStatusCodes = retryOn(r.RetryOn)
		}
		out.PerTryTimeout = r.PerTryTimeout
		if r.Backoff.AsDuration() > 0 {
			out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: r.Backoff}
		}
		otherHosts = r.RetryIgnorePreviousHosts == nil || r.RetryIgnorePreviousHosts.GetValue()
		if r.RetryRemoteLocalities.GetValue() && caps.Has(mesh.PreviousPriorities) {
			out.RetryPriority = otherPriorities()
		}
	}
	if otherHosts && caps.Has(mesh.PreviousHosts) {
		out.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{{
			Name:       previousHosts,
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: marshal.MustAny(&hostv3.PreviousHostsPredicate{})},
		}}
	}
	return out
}

func otherPriorities() *routev3.RetryPolicy_RetryPriority {
	return &routev3.RetryPolicy_RetryPriority{
		Name: previousPriorities,
		ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{
			TypedConfig: marshal.MustAny(&priorityv3.PreviousPrioritiesConfig{UpdateFrequency: priorityUpdate}),
		},
	}
}

// retryOn separates conditions from status codes, which are in the same list in Istio. If there are
// codes, it adds the condition that enables them.
func retryOn(s string) (string, []uint32) {
	var conditions []string
	var codes []uint32
	on := false
	for _, p := range strings.Split(s, ",") {
		p = strings.TrimSpace(p)
		if n, err := strconv.ParseUint(p, 10, 16); err == nil {
			codes = append(codes, uint32(n))
		} else if p != "" {
			conditions = append(conditions, p)
			on = on || p == retriableStatusCodes
		}
	}
	if len(codes) > 0 && !on {
		conditions = append(conditions, retriableStatusCodes)
	}
	return strings.Join(conditions, ","), codes
}

// inboundRetry repeats requests whose connection to the application was closed before a part of them was
// sent, which is always safe.
func inboundRetry() *routev3.RetryPolicy {
	return &routev3.RetryPolicy{RetryOn: "reset-before-request", NumRetries: wrapperspb.UInt32(defaultAttempts)}
}
