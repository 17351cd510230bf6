package mesh

import (
	"strings"
	"testing"
)

func TestIsSocketPath(t *testing.T) {
	long := strings.Repeat("x", MaxSocketPath-1)
	for path, want := range map[string]bool{
		"/a": true, "/": true, "@a": true, "@/a": true, "/" + long: true, "@" + long: true,
		"": false, "@": false, "a": false, "./a": false, "/" + long + "x": false, "@" + long + "x": false, "/a\x00b": false, "@a\x00b": false,
	} {
		if got := IsSocketPath(path); got != want {
			t.Errorf("%q: %v", path, got)
		}
	}
}
