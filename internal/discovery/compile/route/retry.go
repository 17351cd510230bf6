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
	// priorityUpdate is after how many attempts the priorities tried are left out.
	priorityUpdate = 2
)

// retryPolicy is the default with the user's settings over it; nil where no attempts
// are wanted. A hashed route retries on the host that its hash picks unless the user
// sets retries, since the same client should stay with the same host.
func retryPolicy(r *networking.HTTPRetry, hashed bool, caps mesh.Capability) *routev3.RetryPolicy {
	out := &routev3.RetryPolicy{
		RetryOn:                       defaultRetryOn,
		NumRetries:                    wrapperspb.UInt32(defaultAttempts),
		HostSelectionRetryMaxAttempts: hostAttempts,
	}
	elsewhere := !hashed
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
		elsewhere = r.RetryIgnorePreviousHosts == nil || r.RetryIgnorePreviousHosts.GetValue()
		if r.RetryRemoteLocalities.GetValue() && caps.Has(mesh.PreviousPriorities) {
			out.RetryPriority = otherPriorities()
		}
	}
	if elsewhere && caps.Has(mesh.PreviousHosts) {
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

// retryOn splits conditions from status codes, which users write into the same list.
// Codes count only beside the condition that turns them on, so it is added.
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

// inboundRetry repeats a request that the application's connection closed under, before
// any of it was sent: the one case in which repeating is always safe.
func inboundRetry() *routev3.RetryPolicy {
	return &routev3.RetryPolicy{RetryOn: "reset-before-request", NumRetries: wrapperspb.UInt32(defaultAttempts)}
}
