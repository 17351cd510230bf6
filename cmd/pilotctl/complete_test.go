package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// The shell offers what pilot-discovery knows: proxies, services and objects; what it cannot know is no list of files.
func TestCompletion(t *testing.T) {
	pages := map[string]string{
		"/debug/syncz":     `[{"proxy": "web-1.shop"}, {"proxy": "web-1.shop"}, {"proxy": "api-1.shop"}, {"proxy": "\u001b[31m.shop"}]`,
		"/debug/registryz": `[{"hostname": "web.shop.svc.cluster.local"}, {"hostname": "api.example.com"}]`,
		"/debug/configz":   `[{"kind": "VirtualService", "metadata": {"name": "web", "namespace": "shop"}}, {"kind": "Sidecar", "metadata": {"name": "all", "namespace": "shop"}}]`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(body))
	}))
	defer s.Close()
	for line, want := range map[string]string{
		"config |":                  "api-1.shop web-1.shop :4",
		"config w|":                 "web-1.shop :4",
		"config web-1.shop |":       "clusters listeners routes endpoints secrets :4",
		"explain no|":               "none :4",
		"explain none |":            "api-1.shop api.example.com web-1.shop web.shop :4",
		"wait virtuals|":            "virtualservice :4",
		"wait virt|":                "virtualservice :4",
		"wait VirtualS|":            "VirtualService :4",
		"wait vs |":                 "shop/web :4",
		"wait sidecar shop/|":       "shop/all :4",
		"wait nothing |":            ":4",
		"up |":                      ":16",
		"exec web -- |":             ":0",
		"wait --discovery nowhere|": ":0",
	} {
		words := strings.Split(strings.TrimSuffix(line, "|"), " ")
		if words[0] != "up" && words[0] != "exec" && !strings.Contains(line, "--discovery") {
			words = slices.Insert(words, 1, "--discovery", s.URL)
		}
		var out, errs strings.Builder
		code := run(t.Context(), append([]string{"__complete"}, words...), nil, &out, &errs)
		if got := strings.Join(strings.Fields(out.String()), " "); code != 0 || strings.TrimSpace(got) != want {
			t.Errorf("%q: code %d, %q, want %q; %s", line, code, got, want, errs.String())
		}
	}
}
