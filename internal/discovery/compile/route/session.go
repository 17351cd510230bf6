package route

import (
	"fmt"
	"hash/fnv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	sessionv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/stateful_session/v3"
	cookiestatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/stateful_session/cookie/v3"
	headerstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/stateful_session/header/v3"
	cookiev3 "github.com/envoyproxy/go-control-plane/envoy/type/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
)

// SessionFilter keeps the requests of a session at one endpoint. It does nothing but for routes that say how.
const SessionFilter = "envoy.filters.http.stateful_session"

// session translates the session persistence of the i-th rule of a route. A name that is not given is one of this rule alone, so that the sessions of
// different backends do not overwrite each other. The path of cookies is "/": without one, browsers would send them below the path of the first
// request only. [control-plane 1.11.7]
func session(rule KubernetesRule, grpc bool, i int, s *gatewayv1.SessionPersistence) *anypb.Any {
	name := value(s.SessionName)
	if name == "" {
		h := fnv.New64a()
		fmt.Fprintf(h, "%v/%s/%s/%d", grpc, rule.Namespace, rule.Name, i)
		name = fmt.Sprintf("session-%016x", h.Sum64())
	}
	if value(s.Type) == gatewayv1.HeaderBasedSessionPersistence {
		return byHeader(name)
	}
	cookie := &cookiev3.Cookie{Name: name, Path: "/"}
	if s.CookieConfig != nil && value(s.CookieConfig.LifetimeType) == gatewayv1.PermanentCookieLifetimeType {
		cookie.Ttl = seconds(duration(s.AbsoluteTimeout))
	}
	return byCookie(cookie)
}

// Session is the configuration of SessionFilter for routes that keep sessions at one endpoint: with a cookie, which lasts as long as the
// client's session, or else a header. [control-plane 1.12.20]
func Session(cookie, path, header string) *anypb.Any {
	if cookie == "" {
		return byHeader(header)
	}
	return byCookie(&cookiev3.Cookie{Name: cookie, Path: path})
}

func byHeader(name string) *anypb.Any {
	return sessionState("envoy.http.stateful_session.header", &headerstatev3.HeaderBasedSessionState{Name: name})
}

func byCookie(c *cookiev3.Cookie) *anypb.Any {
	return sessionState("envoy.http.stateful_session.cookie", &cookiestatev3.CookieBasedSessionState{Cookie: c})
}

func sessionState(kind string, state proto.Message) *anypb.Any {
	return marshal.MustAny(&sessionv3.StatefulSessionPerRoute{Override: &sessionv3.StatefulSessionPerRoute_StatefulSession{
		StatefulSession: &sessionv3.StatefulSession{SessionState: &corev3.TypedExtensionConfig{Name: kind, TypedConfig: marshal.MustAny(state)}},
	}})
}

// seconds rounds up to whole seconds, which the age of a cookie is.
func seconds(d *durationpb.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New((d.AsDuration() + time.Second - 1).Truncate(time.Second))
}
