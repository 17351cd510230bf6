package sts

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// PluginGoogle is the name of the plugin that Google is.
const PluginGoogle = "GoogleTokenExchange"

const (
	// cloudScope is the scope of what a client does not limit.
	cloudScope = "https://www.googleapis.com/auth/cloud-platform"
	// askTimeout bounds one request to Google; a failed one is repeated up to maxTries times in all, after pauses from firstPause on.
	askTimeout = 10 * time.Second
	maxTries   = 3
	firstPause = 200 * time.Millisecond
	// maxAnswer bounds an answer of Google, in bytes.
	maxAnswer = 128 << 10
	// maxLife is the life that is asked for of an access token, and the longest that is believed.
	maxLife = time.Hour
)

// GoogleOptions configure a Google. Audience, TokenURL and TLS are required.
type GoogleOptions struct {
	// Audience is that of the federated token: identitynamespace:POOL:PROVIDER, or a provider of a workload identity pool.
	Audience string
	// TokenURL exchanges a token for a federated one; AccessURL exchanges that for an access token of a service account,
	// empty if the federated token is what clients get. Both are https.
	TokenURL, AccessURL string
	// TLS returns the configuration of a client, with the roots that are trusted now.
	TLS func() (*tls.Config, error)
}

// Google exchanges tokens with Google's Security Token Service. It is safe for concurrent use. [agent T5]
type Google struct{ o GoogleOptions }

// NewGoogle returns a Google.
func NewGoogle(o GoogleOptions) *Google { return &Google{o: o} }

// Exchange exchanges a JWT for a federated token, and that for an access token if there is an AccessURL.
func (g *Google) Exchange(ctx context.Context, r Request) (Token, error) {
	config, err := g.o.TLS()
	if err != nil {
		return Token{}, err
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: 64 << 10,
	}
	defer transport.CloseIdleConnections() // tokens are exchanged seldom
	client := &http.Client{
		Transport: transport, Timeout: askTimeout,
		// The target of a redirect must not get tokens.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	federated, err := g.federated(ctx, client, r)
	if err != nil {
		return Token{}, fmt.Errorf("get a federated token: %w", err)
	}
	if g.o.AccessURL == "" {
		return federated, nil
	}
	access, err := g.access(ctx, client, r, federated)
	if err != nil {
		return Token{}, fmt.Errorf("get an access token: %w", err)
	}
	return access, nil
}

// federated exchanges a JWT for a federated token.
func (g *Google) federated(ctx context.Context, client *http.Client, r Request) (Token, error) {
	audience, scope := g.o.Audience, cloudScope
	if r.Audience != "" {
		audience = r.Audience
	}
	if r.Scope != "" {
		scope = r.Scope
	}
	var answer struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int64  `json:"expires_in"`
	}
	issued := time.Now()
	err := ask(ctx, client, g.o.TokenURL, "", map[string]any{
		"audience": audience, "grantType": grantExchange, "requestedTokenType": typeAccessToken,
		"subjectTokenType": typeJWT, "subjectToken": r.SubjectToken, "scope": scope,
	}, &answer)
	if err != nil {
		return Token{}, err
	}
	return token("federated token", answer.AccessToken, issued, issued.Add(time.Duration(min(max(answer.ExpiresIn, 0), int64(maxLife/time.Second)))*time.Second))
}

// access exchanges a federated token for one of a service account.
func (g *Google) access(ctx context.Context, client *http.Client, r Request, federated Token) (Token, error) {
	scopes := strings.Fields(r.Scope)
	if len(scopes) == 0 {
		scopes = []string{cloudScope}
	}
	var answer struct {
		AccessToken string    `json:"accessToken"`
		ExpireTime  time.Time `json:"expireTime"`
	}
	issued := time.Now()
	err := ask(ctx, client, g.o.AccessURL, federated.Value, map[string]any{"scope": scopes, "lifetime": fmt.Sprintf("%ds", maxLife/time.Second)}, &answer)
	if err != nil {
		return Token{}, err
	}
	end := answer.ExpireTime
	if last := issued.Add(maxLife); end.After(last) {
		end = last
	}
	return token("access token", answer.AccessToken, issued, end)
}

// token checks what was issued.
func token(kind, value string, issued, end time.Time) (Token, error) {
	switch {
	case value == "" || len(value) > maxToken || strings.ContainsFunc(value, func(c rune) bool { return c <= ' ' || c > '~' }):
		return Token{}, errors.New("the answer has no token")
	case !end.After(issued):
		return Token{}, errors.New("the answer's token has ended")
	}
	return Token{Value: value, Type: kind, Issued: issued, End: end}, nil
}

// refusedError is an answer that a repetition would not change.
type refusedError struct{ error }

// ask sends a request as JSON, and again if the server or the connection fails.
func ask(ctx context.Context, client *http.Client, to, bearer string, request map[string]any, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	pause := firstPause
	for try := 1; ; try++ {
		err := askOnce(ctx, client, to, bearer, body, answer)
		var refused refusedError
		if err == nil || errors.As(err, &refused) || try == maxTries || ctx.Err() != nil {
			return err
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return err
		}
		pause *= 2
	}
}

func askOnce(ctx context.Context, client *http.Client, to, bearer string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return refusedError{err}
	}
	req.Header.Set("Content-Type", "application/json")
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return err
	}
	switch {
	case res.StatusCode >= http.StatusInternalServerError || res.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("%s answers %d: %s", to, res.StatusCode, reason(text))
	case res.StatusCode != http.StatusOK:
		return refusedError{fmt.Errorf("%s answers %d: %s", to, res.StatusCode, reason(text))}
	case len(text) > maxAnswer:
		return refusedError{fmt.Errorf("%s answers more than %d bytes", to, maxAnswer)}
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return refusedError{fmt.Errorf("%s answers what is not JSON", to)} // the answer may have a token
	}
	return nil
}

// reason is why a request was refused: the text of an error of RFC 6749, or of one of Google's.
func reason(answer []byte) string {
	var oauth struct {
		Description string `json:"error_description"`
	}
	var google struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(answer, &oauth) == nil && oauth.Description != "" {
		return printable.Quote(oauth.Description, 300)
	}
	if json.Unmarshal(answer, &google) == nil && google.Error.Message != "" {
		return printable.Quote(google.Error.Message, 300)
	}
	return "without a reason"
}
