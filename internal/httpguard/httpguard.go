// Package httpguard limits what clients may do to the HTTP servers of both programs.
//
// Server makes a server with bounds in time and bytes. FromLoopback, FromThisHost and CheckPage decide which
// requests programs on this host have made: by their source address, and by the headers that tell that a
// web page in a browser on this host has made them. All functions are safe for concurrent use.
package httpguard

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Bounds of a connection.
const (
	// HeaderTimeout is how long the header of a request may take, BodyTimeout its body.
	HeaderTimeout = 10 * time.Second
	BodyTimeout   = 10 * time.Second
	// IdleTimeout is how long a connection may have no request.
	IdleTimeout = time.Minute
	// WriteTimeout is how long a response may take, unless its handler called Unlimited.
	WriteTimeout = 5 * time.Minute
	// MaxHeaderBytes is the size of a header.
	MaxHeaderBytes = 16 << 10
)

// Server returns a server with the bounds above. Callers set what else they need.
func Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: bounded(h), ReadHeaderTimeout: HeaderTimeout, IdleTimeout: IdleTimeout, MaxHeaderBytes: MaxHeaderBytes,
	}
}

// bounded sets the deadlines of each request. ReadTimeout and WriteTimeout of http.Server would end
// profiles, which take as long as the client wishes.
func bounded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, now := http.NewResponseController(w), time.Now()
		if r.ContentLength != 0 { // without a body the server watches the connection for its end
			_ = c.SetReadDeadline(now.Add(BodyTimeout))
		}
		_ = c.SetWriteDeadline(now.Add(WriteTimeout))
		h.ServeHTTP(w, r)
	})
}

// Unlimited is a handler whose response may take as long as the client wishes.
func Unlimited(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		h(w, r)
	}
}

// FromLoopback reports whether a request comes from a program on this host, by a loopback address; see
// mesh.IsLocalSource.
func FromLoopback(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && mesh.IsLocalSource(from.Addr())
}

// FromThisHost is FromLoopback, or whether a request comes from the address that it was sent to.
func FromThisHost(r *http.Request) bool {
	if FromLoopback(r) {
		return true
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || from.Addr().Unmap().IsLoopback() {
		return false
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	to, err := netip.ParseAddrPort(local.String())
	return err == nil && to.Addr().Unmap() == from.Addr().Unmap()
}

// CheckPage returns an error if a web page of another origin may have made a request: a browser on this
// host is on this host, too. The Host must be localhost or an IP address, since any other name may be one
// that a page's owner has made to resolve to this host, and the Origin, if there is one, must be the
// server's own.
func CheckPage(r *http.Request) error {
	if !isLocalName(r.Host) {
		return fmt.Errorf("invalid Host %s: want localhost or an IP address", printable.Quote(r.Host, 100))
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Errorf("invalid Origin %s: want that of the Host, or none", printable.Quote(origin, 100))
		}
	}
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "same-origin" && site != "none" {
			return fmt.Errorf("invalid Sec-Fetch-Site %s: want same-origin or none", printable.Quote(site, 100))
		}
	}
	return nil
}

// isLocalName reports whether a Host, with a port or without, is localhost or an IP address. Programs that
// use HTTP/1.0 send none; browsers always do.
func isLocalName(host string) bool {
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return host == "" || strings.EqualFold(strings.TrimSuffix(name, "."), "localhost")
}
