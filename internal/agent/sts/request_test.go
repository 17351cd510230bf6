package sts

import (
	"net/url"
	"strings"
	"testing"
)

// valid is a form with the least that is required.
func valid() url.Values {
	return url.Values{"grant_type": {grantExchange}, "subject_token": {"a.b.c"}, "subject_token_type": {typeJWT}}
}

func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		name        string
		change      func(url.Values)
		code, wants string // an empty code: it is taken
	}{
		{"least", func(url.Values) {}, "", ""},
		{"all", func(v url.Values) {
			v.Set("audience", "a")
			v.Set("scope", "b c")
			v.Set("requested_token_type", typeAccessToken)
			v.Set("unknown", "is ignored")
		}, "", ""},
		{"no grant", func(v url.Values) { v.Del("grant_type") }, invalidRequest, "grant_type is missing"},
		{"other grant", func(v url.Values) { v.Set("grant_type", "client_credentials") }, unsupportedGrant, "client_credentials"},
		{"no token", func(v url.Values) { v.Del("subject_token") }, invalidRequest, "subject_token is missing"},
		{"no type", func(v url.Values) { v.Del("subject_token_type") }, invalidRequest, "subject_token_type"},
		{"other type", func(v url.Values) { v.Set("subject_token_type", "urn:ietf:params:oauth:token-type:saml2") }, invalidRequest, "saml2"},
		{"other result", func(v url.Values) { v.Set("requested_token_type", typeJWT) }, invalidRequest, "requested_token_type"},
		{"twice", func(v url.Values) { v.Add("subject_token", "x") }, invalidRequest, "2 times"},
		{"actor", func(v url.Values) { v.Set("actor_token", "x") }, invalidRequest, "actor_token is not supported"},
		{"actor's type", func(v url.Values) { v.Set("actor_token_type", typeJWT) }, invalidRequest, "actor_token_type is not supported"},
		{"resource", func(v url.Values) { v.Set("resource", "https://a") }, invalidTarget, "want audience"},
		{"line break", func(v url.Values) { v.Set("subject_token", "a\nb") }, invalidRequest, "characters"},
		{"long token", func(v url.Values) { v.Set("subject_token", strings.Repeat("a", maxToken+1)) }, invalidRequest, "bytes"},
		{"long scope", func(v url.Values) { v.Set("scope", strings.Repeat("a", maxText+1)) }, invalidRequest, "invalid scope"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			form := valid()
			tt.change(form)
			r, refused := parse(form)
			switch {
			case tt.code == "":
				if refused != nil || r.SubjectToken != "a.b.c" || r.Audience != form.Get("audience") || r.Scope != form.Get("scope") {
					t.Errorf("%+v, %v", r, refused)
				}
			case refused == nil || refused.Code != tt.code || !strings.Contains(refused.Description, tt.wants):
				t.Errorf("error %v, want %s with %q", refused, tt.code, tt.wants)
			}
		})
	}
}

// What a client sends is never more than a bounded description of printable ASCII, without the token.
func FuzzRequests(f *testing.F) {
	f.Add(valid().Encode())
	f.Add("grant_type=%ff&subject_token=secret&\"\\=1&\"\\=2")
	f.Fuzz(func(t *testing.T, body string) {
		form, err := url.ParseQuery(body)
		if err != nil {
			return
		}
		_, refused := parse(form)
		if refused == nil {
			return
		}
		if d := refused.Description; len(d) > 1000 || strings.ContainsFunc(d, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
			t.Errorf("description %q", d)
		}
	})
}
