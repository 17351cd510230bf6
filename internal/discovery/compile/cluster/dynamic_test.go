package cluster_test

import (
	"regexp"
	"testing"

	"github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
)

func TestHostPattern(t *testing.T) {
	for _, tt := range []struct{ host, header, want string }{
		{"*.a.com", "x.a.com", "x.a.com"},
		{"*.a.com", "x.y.A.com:15000", "x.y.A.com"},
		{"*.a.com", "x.a.com.:80", "x.a.com"},
		{"*.a.com", "x.a.com:", "x.a.com"},
		{"*.a.com", "a.com", ""},
		{"*.a.com", ".a.com", ""},
		{"*.a.com", "xa.com", ""},
		{"*.a.com", "x.aXcom", ""},
		{"*.a.com", "x.a.com.evil.com", ""},
		{"*.a.com", "evil.com:80.a.com:80", "evil.com:80.a.com"}, // no name that DNS has
		{"*.a.com", "127.0.0.1", ""},
		{"x.a.com", "x.a.com:80", "x.a.com"},
		{"x.a.com", "y.a.com", ""},
		{"", "any.name:8080", "any.name"},
		{"", "127.0.0.1:15000", "127.0.0.1"},
		{"", "[::1]:15000", "[::1]"},
		{"", "[::1]", "[::1]"},
	} {
		got := ""
		if m := regexp.MustCompile(cluster.HostPattern(tt.host)).FindStringSubmatch(tt.header); m != nil {
			got = m[1]
		}
		if got != tt.want {
			t.Errorf("the names of %q find %q in %q, want %q", tt.host, got, tt.header, tt.want)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, tt := range []struct {
		host  string
		names []string
		want  bool
	}{
		{"*.a.com", []string{"*.a.com"}, true}, {"*.a.com", []string{"x.a.com", "*.y.a.com"}, true}, {"x.a.com", []string{"x.a.com"}, true},
		{"*.a.com", nil, false}, {"*.a.com", []string{"x.a.com", "b.com"}, false}, {"*.a.com", []string{"*.com"}, false}, {"*.a.com", []string{"a.com"}, false},
		{"x.a.com", []string{"y.x.a.com"}, false}, {"x.a.com", []string{"*.a.com"}, false},
	} {
		if got := cluster.Covers(tt.host, tt.names); got != tt.want {
			t.Errorf("%q covers %q: %v, want %v", tt.host, tt.names, got, tt.want)
		}
	}
}
