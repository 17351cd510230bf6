package sds

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"

	"github.com/pilothouse/pilothouse/internal/claim"
)

// fetchEnv has this test program fetch the workload's secret from a socket and print what it got.
const fetchEnv = "SDS_TEST_FETCH"

// TestFetchAsAnotherUser is run by fetchAs, as another user.
func TestFetchAsAnotherUser(t *testing.T) {
	socket := os.Getenv(fetchEnv)
	if socket == "" {
		return
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	r, err := secretv3.NewSecretDiscoveryServiceClient(conn).FetchSecrets(ctx, ask("", LeafName))
	if err != nil {
		fmt.Println("refused:", err)
		return
	}
	fmt.Println("got", namesIn(t, r))
}

// fetchAs fetches the workload's secret as a user, and returns what that process printed.
func fetchAs(t *testing.T, uid uint32, socket string) string {
	t.Helper()
	// The program is copied to where the user can run it.
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(filepath.Dir(socket), "program")
	// A process that another test starts meanwhile would have the open file until it is executed, and the program could not be run:
	// "text file busy".
	syscall.ForkLock.RLock()
	err = os.WriteFile(program, self, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run=^TestFetchAsAnotherUser$", "-test.v")
	cmd.Dir, cmd.Env = "/", []string{fetchEnv + "=" + socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// openFolder is a folder that every user may write to, as a volume of a Pod is.
func openFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sds-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestOnlyItsUsersAreServed: the socket is in a folder that every user may write to.
func TestOnlyItsUsersAreServed(t *testing.T) {
	const envoy, other = 1337, 4711
	for name, tt := range map[string]struct {
		users Users
		uid   uint32
		want  string
	}{
		"Envoy's user":       {Users{UIDs: []uint32{0, envoy}}, envoy, "got [default]"},
		"another user":       {Users{UIDs: []uint32{0, envoy}}, other, "refused:"},
		"a further user":     {Users{UIDs: []uint32{0, envoy, other}}, other, "got [default]"},
		"every user":         {Users{All: true}, other, "got [default]"},
		"root, if not among": {Users{UIDs: []uint32{envoy}}, 0, "refused:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config(filepath.Join(openFolder(t), "socket"), &value{s: secretA})
			c.Users = tt.users
			socket := serveConfig(t, c)
			if got := fetchAs(t, tt.uid, socket); !strings.Contains(got, tt.want) {
				t.Errorf("user %d: %s, want %q", tt.uid, got, tt.want)
			}
		})
	}
}

func TestAccessOfTheSocket(t *testing.T) {
	c := config(filepath.Join(openFolder(t), "socket"), &value{s: secretA})
	c.Access = claim.SocketOptions{Mode: 0o660, UID: 1337, GID: 1338}
	serveConfig(t, c)
	st, err := os.Stat(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if owner := st.Sys().(*syscall.Stat_t); st.Mode().Perm() != 0o660 || owner.Uid != 1337 || owner.Gid != 1338 {
		t.Errorf("mode %v, owner %d:%d", st.Mode().Perm(), owner.Uid, owner.Gid)
	}
}

// TestAnotherServersSocketIsLeftAlone: one that answers, and one that took this one's place.
func TestAnotherServersSocketIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "socket")
	foreign, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	_, err = New(config(path, &value{}))
	if err == nil || !strings.Contains(err.Error(), "in use by another process (of user "+strconv.Itoa(os.Getuid())+")") {
		t.Errorf("%v, want that another process uses it", err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("the other server's socket: %v", err)
	} else {
		c.Close()
	}

	path = filepath.Join(dir, "replaced")
	s, err := New(config(path, &value{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	later, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("the socket that took its place: %v", err)
	} else {
		c.Close()
	}
}

// TestListeningIsTriedAgain: four more times, each after twice the time.
func TestListeningIsTriedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "socket")
	var waits []time.Duration
	c := config(path, &value{})
	c.after = func(d time.Duration) <-chan time.Time {
		waits = append(waits, d)
		now := make(chan time.Time, 1)
		now <- time.Time{}
		return now
	}
	// The folder is a file, so that listening never succeeds.
	if err := os.WriteFile(filepath.Dir(path), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Server{Config: c}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "5 attempts") {
		t.Errorf("%v, want the end after five attempts", err)
	}
	if got := fmt.Sprint(waits); got != "[1s 2s 4s 8s]" {
		t.Errorf("waits %s", got)
	}
	// At the third attempt it is a folder.
	waits = nil
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	after := c.after
	c.after = func(d time.Duration) <-chan time.Time {
		if len(waits) == 1 {
			if err := os.Remove(filepath.Dir(path)); err != nil {
				t.Error(err)
			}
		}
		return after(d)
	}
	s = &Server{Config: c}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	if _, err := dial(t, path).FetchSecrets(t.Context(), ask("", "nosuch"), grpc.WaitForReady(true)); err == nil || !strings.Contains(err.Error(), "none of this name") {
		t.Errorf("%v, want an answer of the server", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestTemporaryErrors: a full disk may be emptied, a file in place of a folder is a mistake.
func TestTemporaryErrors(t *testing.T) {
	for err, want := range map[error]bool{
		fmt.Errorf("x: %w", syscall.ENOSPC): true, fmt.Errorf("x: %w", syscall.EMFILE): true,
		fmt.Errorf("x: %w", syscall.ENOTDIR): false, &claim.InUseError{}: false,
	} {
		if temporary(err) != want {
			t.Errorf("%v: %v, want %v", err, !want, want)
		}
	}
}
