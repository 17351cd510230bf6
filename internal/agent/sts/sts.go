// Package sts is the token service of the agent: it exchanges tokens for programs of this machine by RFC 8693.
//
// A Server answers on loopback only: POST /token exchanges the JWT in the request's form, GET /stsStatus tells which tokens it
// holds, without the tokens. Who asks brings a token and gets nothing that this token could not have been exchanged for: an
// answer is remembered for the same token, audience and scope. Requests, answers, the number of remembered tokens and of
// exchanges at a time are bounded, and so is each exchange in time. [agent T1–T5]
package sts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/pilothouse/pilothouse/internal/httpguard"
)

// Options configure a Server. Listener, TokenEnd and Log are required.
type Options struct {
	// Listener is on loopback.
	Listener net.Listener
	// Plugin is the name of what exchanges tokens, and Exchange does it; nil refuses all requests. It is called by at most
	// maxExchanges goroutines at once, with a context that ends after exchangeTimeout.
	Plugin   string
	Exchange func(context.Context, Request) (Token, error)
	// TokenEnd returns when a client's token ends; zero if it cannot be told.
	TokenEnd func(token string) time.Time
	Log      *slog.Logger
}

// Server is a token service. Run it once.
type Server struct {
	o     Options
	cache *cache
}

// New returns a Server, which has not yet accepted a connection.
func New(o Options) *Server {
	return &Server{o: o, cache: newCache(o.Exchange, o.TokenEnd, o.Log)}
}

// Close closes the listener of a Server that is not run.
func (s *Server) Close() error { return s.o.Listener.Close() }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/token", s.token)
	mux.HandleFunc("/stsStatus", s.status)
	server := httpguard.Server(local(mux))
	server.ErrorLog = slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug)
	s.o.Log.Info("token service", "address", s.o.Listener.Addr().String(), "plugin", s.o.Plugin)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(s.o.Listener) }()
	defer s.cache.close()
	select {
	case err := <-ended:
		return fmt.Errorf("serve tokens on %s: %w", s.o.Listener.Addr(), err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if server.Shutdown(end) != nil {
		_ = server.Close()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// local refuses what programs of other machines, or pages in a browser of this one, ask for.
func local(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := httpguard.CheckPage(r)
		if err == nil && !httpguard.FromLoopback(r) {
			err = errors.New("the token service is for programs of this machine")
		}
		if err != nil {
			answer(w, http.StatusForbidden, &Error{Code: accessDenied, Description: err.Error()})
			return
		}
		h.ServeHTTP(w, r)
	})
}

// token answers POST /token. [agent T1–T3]
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		answer(w, http.StatusMethodNotAllowed, invalid("invalid method %s: want POST", r.Method))
		return
	}
	request, code, refused := read(r)
	if refused != nil {
		answer(w, code, refused)
		return
	}
	t, err := s.cache.get(r.Context(), request)
	if err != nil {
		s.o.Log.Warn("a token was not exchanged", "error", err)
		answer(w, http.StatusInternalServerError, &Error{Code: invalidTarget, Description: describe(err.Error())})
		return
	}
	answer(w, http.StatusOK, &response{
		AccessToken: t.Value, IssuedTokenType: typeAccessToken, TokenType: "Bearer", Scope: request.Scope,
		ExpiresIn: max(0, int64(time.Until(t.End)/time.Second)),
	})
}

// read reads the form of a request; the error goes to the client with the HTTP status code.
func read(r *http.Request) (request Request, code int, refused *Error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/x-www-form-urlencoded" {
		return request, http.StatusBadRequest, invalid("invalid Content-Type: want application/x-www-form-urlencoded")
	}
	if r.URL.RawQuery != "" {
		return request, http.StatusBadRequest, invalid("the URL has parameters: want them in the body")
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return request, http.StatusBadRequest, invalid("the body cannot be read")
	case len(body) > maxBody:
		return request, http.StatusRequestEntityTooLarge, invalid("the body has more than %d bytes", maxBody)
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return request, http.StatusBadRequest, invalid("the body is not a form")
	}
	request, refused = parse(form)
	return request, http.StatusBadRequest, refused
}

// response is an answer of RFC 8693, section 2.2.1.
type response struct {
	AccessToken     string `json:"access_token"`
	IssuedTokenType string `json:"issued_token_type"`
	TokenType       string `json:"token_type"`
	ExpiresIn       int64  `json:"expires_in"`
	Scope           string `json:"scope,omitempty"`
}

// status answers GET /stsStatus. [agent T4]
func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		answer(w, http.StatusMethodNotAllowed, invalid("invalid method %s: want GET", r.Method))
		return
	}
	answer(w, http.StatusOK, &state{Plugin: s.o.Plugin, Tokens: s.cache.states()})
}

// state is what /stsStatus shows.
type state struct {
	Plugin string       `json:"plugin"`
	Tokens []TokenState `json:"tokens"`
}

// answer writes JSON, which nobody may store.
func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Pragma", "no-cache")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}
