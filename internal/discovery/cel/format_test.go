package cel_test

import (
	"errors"
	"strings"
	"testing"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	fileaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/cel"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// logged is a bootstrap of a proxy whose administration has an access log with a format.
func logged(t *testing.T, format string) *bootstrapv3.Bootstrap {
	t.Helper()
	text := &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: format}}}}
	a, err := anypb.New(&fileaccesslogv3.FileAccessLog{Path: "/dev/null", AccessLogFormat: &fileaccesslogv3.FileAccessLog_LogFormat{LogFormat: text}})
	if err != nil {
		t.Fatal(err)
	}
	b := envoytest.Bootstrap()
	b.Admin = &bootstrapv3.Admin{AccessLog: []*accesslogv3.AccessLog{{Name: "log", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: a}}}}
	return b
}

// What Istio's own Envoy evaluates becomes a format that stock Envoy accepts, or an error says why not.
func TestFormat(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"request.host", "%CEL(request.host):99%"},
		{"string(destination.port)", "%CEL(destination.port):99%"},
		{"'a'", "a"},
		{"''", ""},
		{"string(7)", "7"},
		{"100u", "100"},
		{"'100%'", "100%%"},
		{"request.method + '-' + string(response.code)", "%CEL(request.method):99%-%CEL(response.code):99%"},
		{"1 + response.code", "%CEL(1 + response.code):99%"},
		{"has(request.useragent) ? request.useragent : 'none'", `%CEL((has(request.useragent)) ? (request.useragent) : ("none")):99%`},
		{"true ? string(response.code) : false ? '1' : string(destination.port)", `%CEL((true) ? (response.code) : ((false) ? ("1") : (destination.port))):99%`},
		{"int(request.headers['x'])%7 == 0 ? 'a' : ')%'", `%CEL((int(request.headers["x"]) % 7 == 0) ? ("a") : (")\x25")):99%`},
		{`request.headers["a\"):5%\n"]`, `%CEL(request.headers["a\"):5\x25\n"]):99%`},
		{"request.path.contains('" + strings.Repeat("a", 60) + "') && request.path.contains('" + strings.Repeat("b", 60) + "')",
			`%CEL(request.path.contains("` + strings.Repeat("a", 60) + `") && request.path.contains("` + strings.Repeat("b", 60) + `")):99%`},
		{"xds.node.metadata['NAME'] // whose", `%CEL(xds.node.metadata["NAME"]):99%`},
		{"b'a'", `%CEL(b"\141"):99%`},
	} {
		got, err := cel.Format(tt.text, 99)
		if err != nil || got != tt.want {
			t.Errorf("%s: %q, error %v\nwant %q", tt.text, got, err, tt.want)
		}
		if out, err := envoytest.Check(t, logged(t, "x"+got+"\n")); err != nil {
			t.Errorf("%s: Envoy refuses %q: %v\n%s", tt.text, got, err, out)
		}
	}
	if _, err := envoytest.Check(t, logged(t, "%CEL(nosuch(1)):99%")); err == nil {
		t.Error("Envoy accepts anything")
	}
	for text, want := range map[string]string{
		"string(request.host) == 'a'":               `calls "string"`,
		"node.metadata['A']":                        "as xds.node",
		"upstream_peer.name":                        `names "upstream_peer"`,
		"request.host.upperAscii()":                 `calls "upperAscii"`,
		"true ? string(1) + 'a' : 'b'":              "joins strings",
		"string(1).contains('a') ? 'a' : 'b'":       `calls "string"`,
		"'a\\n'":                                    "control character",
		"[1].map(x, x)":                             `calls "map"`,
		"request.host.matches('(')":                 "invalid regular expression",
		"true ? request.host.upperAscii() : 'x'":    `calls "upperAscii"`,
		"'a' + request.host.upperAscii() + 'b'":     `calls "upperAscii"`,
		"false ? 'a' : (nosuch ? 'a' : 'b')":        `names "nosuch"`,
		"string(request.host.upperAscii() ? 1 : 2)": `calls "upperAscii"`,
	} {
		var invalid *cel.Invalid
		if got, err := cel.Format(text, 99); err == nil || errors.As(err, &invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, error %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "a +", "(", strings.Repeat("a", cel.MaxLength+1)} {
		var invalid *cel.Invalid
		if got, err := cel.Format(text, 99); !errors.As(err, &invalid) {
			t.Errorf("%.20q: %q, error %v", text, got, err)
		}
	}
}

// A format is one line and has no command that the expression would have put there.
func FuzzFormat(f *testing.F) {
	for _, s := range []string{"request.host", "'%REQ(a)%'", `"\"):5%" + string(1)`, "true ? 'a' : r')%'", "a%2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := cel.Format(s, 9)
		if err != nil {
			return
		}
		rest := strings.ReplaceAll(got, "%%", "")
		for {
			before, after, found := strings.Cut(rest, "%CEL(")
			if strings.Contains(before, "%") {
				t.Fatalf("%q: %q", s, got)
			}
			if !found {
				break
			}
			_, rest, found = strings.Cut(after, "):9%")
			if !found {
				t.Fatalf("%q: %q", s, got)
			}
		}
		if strings.ContainsAny(got, "\n\r") {
			t.Fatalf("%q: %q", s, got)
		}
	})
}
