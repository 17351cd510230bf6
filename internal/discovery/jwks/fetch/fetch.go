// Package fetch fetches the keys of the issuers of tokens, as a jwks.Plan decides.
//
// The URLs are written by whoever may write RequestAuthentications, so that nothing is trusted: connections are made to addresses
// that jwks.CheckAddress allows only, which is decided when a connection is made, after names were resolved and for each redirect;
// there are no proxies of the environment, cookies or credentials; time, redirects and the length of every response are bounded, and
// compressed ones are refused. Each source is fetched for itself: none that is slow, or dead, holds up another.
package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/jwks"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// maxRedirects bounds the redirects of one fetch, maxError the text of its error, in bytes.
const (
	maxRedirects = 5
	maxError     = 300
)

// Client fetches key sets. It is safe for concurrent use.
type Client struct {
	http *http.Client
}

// Security says how servers are connected to.
type Security struct {
	// Blocked are addresses that must not be asked, besides those that never are.
	Blocked []netip.Prefix
	// Roots are those that certificates of servers may have; nil means the system's. Insecure does not verify certificates.
	Roots    *x509.CertPool
	Insecure bool
	// Check, if it is set, replaces jwks.CheckAddress, in tests.
	Check func(netip.Addr) error
}

// NewClient returns a client.
func NewClient(s Security) *Client {
	check := s.Check
	if check == nil {
		check = func(a netip.Addr) error { return jwks.CheckAddress(a, s.Blocked) }
	}
	dialer := &net.Dialer{KeepAlive: -1, ControlContext: func(_ context.Context, network, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil || network != "tcp4" && network != "tcp6" {
			return fmt.Errorf("address %s must not be asked for keys", address)
		}
		return check(at.Addr())
	}}
	return &Client{http: &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext,
			TLSClientConfig: &tls.Config{
				RootCAs: s.Roots, MinVersion: tls.VersionTLS12,
				InsecureSkipVerify: s.Insecure, // #nosec G402 -- a setting, which the log warns of
			},
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(to *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("more than %d redirects", maxRedirects)
			}
			_, err := jwks.Follow(via[len(via)-1].URL, to.URL.String())
			return err
		},
	}}
}

// Keys fetches the keys of a source, in the form and number that pki.PublicKeySet returns. ctx must have a deadline. The error is short and
// printable, and has nothing of what a server has sent.
func (c *Client) Keys(ctx context.Context, s jwks.Source) (keys string, number int, err error) {
	defer func() {
		if err != nil {
			err = errors.New(printable.Clip(printable.Escape(printable.Reason(err)), maxError))
		}
	}()
	u, err := jwks.ParseURL(s.First())
	if err != nil {
		return "", 0, err
	}
	if s.Document() != "" {
		text, at, err := c.get(ctx, u, jwks.MaxDocument)
		if err != nil {
			return "", 0, err
		}
		if u, err = jwks.KeysIn(text, at); err != nil {
			return "", 0, fmt.Errorf("GET %s: %w", s.Document(), err)
		}
	}
	text, _, err := c.get(ctx, u, pki.MaxKeySet)
	if err != nil {
		return "", 0, err
	}
	if keys, number, err = pki.PublicKeySet(string(text)); err != nil {
		return "", 0, fmt.Errorf("GET %s: %w", u, err)
	}
	return keys, number, nil
}

// get returns the body of a response with status 200 and at most limit bytes, and the URL that it came from.
func (c *Client) get(ctx context.Context, u *url.URL, limit int64) ([]byte, *url.URL, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	req.Header.Set("User-Agent", "pilot-discovery")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, tell(ctx, u, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, nil, fmt.Errorf("GET %s: status %d", u, resp.StatusCode)
	case resp.Header.Get("Content-Encoding") != "":
		return nil, nil, fmt.Errorf("GET %s: the response is compressed, which was not asked for", u)
	case resp.ContentLength > limit:
		return nil, nil, fmt.Errorf("GET %s: more than %d bytes", u, limit)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, nil, tell(ctx, u, err)
	}
	if int64(len(text)) > limit {
		return nil, nil, fmt.Errorf("GET %s: more than %d bytes", u, limit)
	}
	return text, resp.Request.URL, nil
}

// tell returns an error that names the URL once, and says that there was no time left rather than what was waited for.
func tell(ctx context.Context, u *url.URL, err error) error {
	if deadline, ok := ctx.Deadline(); ok && ctx.Err() != nil && !time.Now().Before(deadline) {
		return fmt.Errorf("GET %s: not finished in time", u)
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
		if wrapped.URL != u.String() {
			return fmt.Errorf("GET %s, redirected to %s: %w", u, wrapped.URL, err)
		}
	}
	return fmt.Errorf("GET %s: %w", u, err)
}
