package cloud

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// serving returns the server of a platform that a handler stands in for.
func serving(t *testing.T, platform string, h http.HandlerFunc) *server {
	t.Helper()
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	s := newServer(platform, Options{})
	s.base = web.URL
	return s
}

// Whatever answers at the address, only short printable values of the platform's own server are used.
func TestAnswersAreChecked(t *testing.T) {
	flavor := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Metadata-Flavor", "Google")
			h(w, r)
		}
	}
	body := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}
	for _, tt := range []struct {
		name, platform string
		answer         http.HandlerFunc
		wants          string
	}{
		{"another server", GCP, body("here"), "lacks Metadata-Flavor"},
		{"no zone", GCP, flavor(http.NotFound), "instance/zone: 404"},
		{"a redirect", GCP, flavor(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}), "status 302"},
		{"too much", Azure, body(strings.Repeat("a", maxAnswer+1)), "more than"},
		{"no JSON", Azure, body("{"), "read the answer"},
		{"no location", Azure, body(`{"name": "a"}`), "no location"},
		{"an unprintable location", Azure, body(`{"location": "a\u001bb"}`), "no location"},
		{"a long location", Azure, body(`{"location": "` + strings.Repeat("a", maxValue+1) + `"}`), "no location"},
		{"no token", AWS, body(""), "no token"},
		{"a token of two lines", AWS, body("a\nb: c"), "no token"},
		{"IMDSv1 only", AWS, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "status 403"},
		{"no region", AWS, func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPut {
				http.NotFound(w, r)
				return
			}
			fmt.Fprint(w, "token")
		}, "no region"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if facts, err := serving(t, tt.platform, tt.answer).facts(t.Context()); err == nil || !strings.Contains(err.Error(), tt.wants) {
				t.Errorf("%+v, %v: want an error with %q", facts, err, tt.wants)
			}
		})
	}
	got, err := serving(t, GCP, flavor(body("a-b"))).facts(t.Context())
	if err != nil || got.Locality.Region != "a" || got.Locality.Zone != "a-b" || got.Metadata["gcp_location"] != "a-b" {
		t.Errorf("%+v, %v", got, err)
	}
	azure, err := serving(t, Azure, body(`{"location": "l", "name": "bad\nname", "tags": "x"}`)).facts(t.Context())
	if err != nil || !maps.Equal(azure.Metadata, map[string]string{"azure_location": "l"}) {
		t.Errorf("%+v, %v", azure, err)
	}
}

// Asking ends with its context.
func TestFindEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{}, tries)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer web.Close()
	go func() {
		<-asked
		cancel()
	}()
	if _, err := Find(ctx, Options{Platform: GCP, GCPHost: strings.TrimPrefix(web.URL, "http://"), Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("no error")
	}
}
