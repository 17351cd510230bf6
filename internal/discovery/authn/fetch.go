package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/pilothouse/pilothouse/internal/printable"
)

const (
	// maxDocument bounds a discovery document, in bytes.
	maxDocument = 64 << 10
	// maxRedirects bounds the redirections of one request.
	maxRedirects  = 3
	discoveryPath = "/.well-known/openid-configuration"
)

// fetcher returns what fetches the keys of a rule. The context must have a deadline.
func fetcher(r Rule, transport http.RoundTripper) func(context.Context) (*keySet, error) {
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.DisableKeepAlives = true // fetches are minutes apart
		t.MaxResponseHeaderBytes = 64 << 10
		transport = t
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(to *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return fmt.Errorf("more than %d redirections", maxRedirects)
		}
		return checkKeysURL(to.URL.String())
	}}
	return func(ctx context.Context) (*keySet, error) {
		from := r.keysURL
		if from == "" {
			var err error
			if from, err = discover(ctx, client, r.issuer); err != nil {
				return nil, err
			}
		}
		text, err := get(ctx, client, from, maxKeySet)
		if err != nil {
			return nil, err
		}
		keys, err := parseKeys(text)
		if err != nil {
			return nil, fmt.Errorf("GET %s: %w", from, err)
		}
		return keys, nil
	}
}

// discover returns where the issuer's discovery document says that the keys are.
func discover(ctx context.Context, client *http.Client, issuer string) (string, error) {
	at := strings.TrimSuffix(issuer, "/") + discoveryPath
	text, err := get(ctx, client, at, maxDocument)
	if err != nil {
		return "", err
	}
	var doc struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return "", fmt.Errorf("GET %s: invalid JSON: want a discovery document", at)
	}
	if doc.Issuer != issuer {
		return "", fmt.Errorf("GET %s: the document is of issuer %s, want %q", at, printable.Quote(doc.Issuer, maxShown), issuer)
	}
	if err := checkKeysURL(doc.JWKSURI); err != nil {
		return "", fmt.Errorf("GET %s: jwks_uri: %w", at, err)
	}
	return doc.JWKSURI, nil
}

// get returns the body of a response with status 200 and at most limit bytes.
func get(ctx context.Context, client *http.Client, url string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: status %d", url, resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("GET %s: the response did not end in time", url)
	}
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", url, err)
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("GET %s: more than %d bytes", url, limit)
	}
	return text, nil
}
