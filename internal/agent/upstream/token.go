package upstream

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// maxToken bounds a token, in bytes.
	maxToken = 64 << 10
	// metadataTimeout bounds a request to the metadata server, which is on the same machine or near it.
	metadataTimeout = 5 * time.Second
	// refreshBefore is how long before its end a token of the metadata server is replaced.
	refreshBefore = 5 * time.Minute
)

// TokenFile returns a function for Options.Token that reads a file each time: the kubelet replaces it
// regularly, the token of a virtual machine is static. [agent S6, S20]
func TokenFile(path string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return ReadTokenFile(path) }
}

// ReadTokenFile reads a file with a token.
func ReadTokenFile(path string) (string, error) {
	if path == "" {
		return "", errors.New("read token: the file name is empty")
	}
	text, err := readFile(path, maxToken)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token, err := checkToken("the file", text)
	if err != nil {
		return "", fmt.Errorf("read token %s: %w", path, err)
	}
	return token, nil
}

// checkToken returns the token of a text. what names the text in errors, which do not quote it.
func checkToken(what string, text []byte) (string, error) {
	token := strings.TrimSpace(string(text))
	switch {
	case token == "":
		return "", errors.New(what + " is empty")
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", errors.New("invalid character: want one line of printable ASCII")
	}
	return token, nil
}

// TokenExpiry returns when a JWT ends, zero if it does not, or if the token is not a JWT. It verifies nothing.
func TokenExpiry(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.Exp <= 0 || claims.Exp > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Exp), 0)
}

// GCE gets identity tokens of a virtual machine from the metadata server of Google Compute Engine. It keeps a token until
// five minutes before its end. [agent S20]
type GCE struct {
	host, audience string
	client         *http.Client

	mu    sync.Mutex
	token string
	until time.Time
}

// NewGCE makes a source of tokens for an audience. host is the metadata server's host, with a port if it is not 80.
func NewGCE(host, audience string) *GCE {
	return &GCE{host: host, audience: audience, client: &http.Client{
		// A proxy of the environment must not get tokens, nor must the target of a redirect.
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Token is a function for Options.Token. Concurrent calls share one request to the server.
func (g *GCE) Token(ctx context.Context) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.token != "" && time.Now().Before(g.until.Add(-refreshBefore)) {
		return g.token, nil
	}
	token, err := g.request(ctx)
	switch {
	case err == nil:
		g.token, g.until = token, TokenExpiry(token)
	case g.token != "" && time.Now().Before(g.until):
		return g.token, nil
	default:
		return "", fmt.Errorf("get a token from the metadata server %s: %w", g.host, err)
	}
	return token, nil
}

// Until is when the last token ends; zero if there was none.
func (g *GCE) Until() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.until
}

func (g *GCE) request(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	u := url.URL{
		Scheme: "http", Host: g.host, Path: "/computeMetadata/v1/instance/service-accounts/default/identity",
		RawQuery: url.Values{"audience": {g.audience}, "format": {"full"}}.Encode(),
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return "", err
	}
	req.Header.Set("Metadata-Flavor", "Google")
	res, err := g.client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxToken+1))
	switch {
	case err != nil:
		return "", err
	case res.StatusCode != http.StatusOK:
		return "", fmt.Errorf("status %d", res.StatusCode)
	case res.Header.Get("Metadata-Flavor") != "Google":
		return "", errors.New("the response lacks Metadata-Flavor: Google: it is not of a metadata server")
	case len(text) > maxToken:
		return "", fmt.Errorf("more than %d bytes", maxToken)
	}
	token, err := checkToken("the response", text)
	if err == nil && !TokenExpiry(token).After(time.Now()) {
		err = errors.New("the token is not a JWT that is valid now")
	}
	return token, err
}
