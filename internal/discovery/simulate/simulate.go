// Package simulate evaluates connections and requests against compiled listeners, as Envoy would.
//
// It consists of pure functions of values: the listener as it is sent to a proxy, what arrives there, and the time. It
// evaluates what decides who is let in: the choice of a filter chain, the identity of the client, the normalization of
// paths, tokens, and role-based access control. It knows nothing of the objects that a listener was compiled from, so that
// it finds what was compiled wrongly, and it never guesses: a part of a listener that may decide and that it does not know
// is an error, which names that part. Certificates are taken for valid: what a client presents is of an accepted root. What an
// external authorizer answers is in no listener: that it is asked is part of the verdict.
// Functions are safe for concurrent use.
package simulate

import (
	"fmt"
	"net/netip"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networkextv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Connection is a connection that arrives at a listener.
type Connection struct {
	// Source is the peer; its zero value is an address that is not known, so that a rule about it is an error. Destination is where
	// it connected to, before any redirection.
	Source, Destination netip.AddrPort
	// TLS is nil for a connection in plaintext.
	TLS *TLS
	// Protocol is what the first bytes of a connection in plaintext look like: "http/1.0", "http/1.1", "h2c", or "" for
	// anything else.
	Protocol string
}

// TLS is what the client says in its handshake.
type TLS struct {
	ServerName string
	ALPN       []string
	// Identities are the URIs in the client's certificate, such as "spiffe://cluster.local/ns/shop/sa/cart"; nil if it
	// presents none.
	Identities []string
}

// Request is an HTTP request.
type Request struct {
	Method, Authority string
	// Path has the query.
	Path string
	// Headers are by names in lower case, without pseudo headers and Host.
	Headers map[string][]string
	// Claims are those of a token that the request has besides; nil is none. It is taken for signed with a key of its issuer, which
	// is the claim "iss", and is where the issuer's provider looks for tokens first.
	Claims map[string]any
	// Unknown are headers whose values are not known, by names in lower case: a rule about one is an error.
	Unknown map[string]bool
}

// Verdict says what becomes of a connection or of a request.
type Verdict struct {
	// Allowed is whether the connection, or the request, gets through to the application.
	Allowed bool
	// Chain is the name of the filter chain; "" if the listener has none for the connection.
	Chain string
	// Status is the status code of a request that the proxy answers itself: 400, 401 or 403. It is 0 for all others.
	Status int
	// Path is the path that the filters of a request see, normalized.
	Path string
	// By is what refused, or what permitted where rules permit: the name of a rule, such as
	// "ns[shop]-policy[viewers]-rule[0]", or of a filter; "" if nothing refused and no rule had to permit.
	By string
	// Rules are the rules that have matched, of all filters that were asked, in their order, and Others those that have not.
	Rules, Others []Match
	// Asks are the rules of CUSTOM policies that have matched, so that an external authorizer is asked. All else is the verdict
	// for the case that it allows the request and changes nothing of it.
	Asks []string
}

// Values of By that are no names.
const (
	// NoChain: the listener has no filter chain for the connection.
	NoChain = "no filter chain"
	// NoAllow: there are rules of ALLOW, and none has matched.
	NoAllow = "no rule of ALLOW policies"
)

// Match is a rule that has matched a connection or a request.
type Match struct {
	// Rule is its name, and Action is "ALLOW", "DENY" or "LOG".
	Rule, Action string
	// DryRun is set for a rule that is evaluated, and decides nothing.
	DryRun bool
}

// Chain returns the filter chain of a connection at a listener; nil if there is none. The error names a part of the listener that is
// not known here.
func Chain(l *listenerv3.Listener, c Connection) (*listenerv3.FilterChain, error) {
	chain, err := filterChain(l, c)
	if err != nil {
		return nil, fmt.Errorf("simulate listener %q: %w", l.GetName(), err)
	}
	return chain, nil
}

// Evaluate returns what becomes of a connection at a listener, and of the first request on it if the filter chain is for
// HTTP and there is one. A chain for TCP ignores the request. The error names a part of the listener that is not known
// here.
func Evaluate(l *listenerv3.Listener, c Connection, r *Request, now time.Time) (Verdict, error) {
	chain, err := Chain(l, c)
	if err != nil {
		return Verdict{}, err
	}
	if chain == nil {
		return Verdict{By: NoChain}, nil
	}
	v := Verdict{Chain: chain.GetName()}
	if err := v.evaluate(chain, c, r, now); err != nil {
		return Verdict{}, fmt.Errorf("simulate listener %q: filter chain %q: %w", l.GetName(), chain.GetName(), err)
	}
	return v, nil
}

// evaluate passes a connection through the filters of its chain.
func (v *Verdict) evaluate(chain *listenerv3.FilterChain, c Connection, r *Request, now time.Time) error {
	peer := subject{connection: c, metadata: map[string]*structpb.Struct{}}
	if s := chain.GetTransportSocket(); s != nil {
		identities, refused, err := handshake(s, c)
		if err != nil {
			return err
		}
		if refused != "" {
			v.By = refused
			return nil
		}
		peer.encrypted, peer.identities = true, identities
	}
	for _, f := range chain.GetFilters() {
		message, err := f.GetTypedConfig().UnmarshalNew()
		if err != nil {
			return fmt.Errorf("filter %q: %w", f.GetName(), err)
		}
		switch m := message.(type) {
		case *networkrbacv3.RBAC:
			if m.GetMatcher() != nil || m.GetShadowMatcher() != nil {
				return unknown("matchers of filter " + f.GetName())
			}
			if ok, err := v.authorize(peer, networkRBAC, m.GetRules(), m.GetShadowRules(), m.GetShadowRulesStatPrefix()); err != nil || !ok {
				return err
			}
		case *networkextv3.ExtAuthz:
			if err := v.ask(peer, f.GetName(), m.GetFilterEnabledMetadata()); err != nil {
				return err
			}
		case *hcmv3.HttpConnectionManager:
			if r == nil {
				v.Allowed = true
				return nil
			}
			return v.request(m, peer, *r, now)
		default:
			if !passiveNetwork[message.ProtoReflect().Descriptor().FullName()] {
				return unknown(fmt.Sprintf("filter %q (%s)", f.GetName(), message.ProtoReflect().Descriptor().FullName()))
			}
			if terminal[message.ProtoReflect().Descriptor().FullName()] {
				v.Allowed = true
				return nil
			}
		}
	}
	return unknown("a chain without a last filter")
}

// unknown is the error for a part of a listener that may decide, and that is not evaluated here.
func unknown(what string) error { return fmt.Errorf("%s: not known to the simulation", what) }

// message decodes a message that must be of one type.
func message[M proto.Message](a *anypb.Any, m M) (M, error) {
	if err := a.UnmarshalTo(m); err != nil {
		return m, unknown(a.GetTypeUrl())
	}
	return m, nil
}
