package envoy_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/test/fakeenvoy"
)

// As root it runs as another user, who must be able to open its standard output anew: access
// logs go to /dev/stdout. Otherwise it runs as whoever runs the test.
func TestAnotherUserOwnsItsOutput(t *testing.T) {
	uid := os.Getuid()
	if uid == 0 {
		uid = 1337
	}
	var out buffer
	r := run(t, fakeenvoy.Script{}, func(o *envoy.Options) {
		o.Launch.Binary, o.Launch.Args, o.Policy.Budget, o.Stdout = "/bin/sh", []string{"-c", "id -u >/dev/stdout"}, 0, &out
		if os.Getuid() == 0 {
			o.Launch.As = &envoy.User{UID: uint32(uid), GID: uint32(uid)}
		}
	})
	if err := r.end(); err == nil {
		t.Error("a program that ends at once counts as a success")
	}
	if want := fmt.Sprintln(uid); out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
