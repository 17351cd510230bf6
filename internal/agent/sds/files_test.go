package sds

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"github.com/pilothouse/pilothouse/internal/agent/secret"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
)

// TestFilesReachTheStreamsThatNameThem joins the real keeper of files and the real server.
func TestFilesReachTheStreamsThatNameThem(t *testing.T) {
	dir := t.TempDir()
	id := mesh.Identity{TrustDomain: "td", Namespace: "shop", ServiceAccount: "alice"}
	write := func(name string) []byte {
		text := pki.EncodeCerts(newRootSigner(t, id).root)
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
		return text
	}
	follower := filewatch.NewFollower(filewatch.FollowerOptions{})
	n := secret.NewNamed(nil, follower, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- n.Run(ctx) }()
	go func() { done <- follower.Run(ctx) }()
	defer func() { cancel(); <-done; <-done }()
	socket := serveFiles(t, &value{}, n) // the workload's own secret does not come

	a, b := "file-root:"+dir+"/a", "file-root:"+dir+"/b"
	want := write("a")
	both, late := open(t, socket, a, b, "file-root:../x"), open(t, socket, b)
	expect := func(c envoy, names ...string) (last []byte) {
		t.Helper()
		_, got := c.next()
		if len(got) != len(names) {
			t.Fatalf("got %v, want %v", got, names)
		}
		for i, s := range got {
			if s.GetName() != names[i] {
				t.Errorf("got %s, want %s", s.GetName(), names[i])
			}
			last = s.GetValidationContext().GetTrustedCa().GetInlineBytes()
		}
		return last
	}
	if r, got := both.next(); len(got) != 0 || len(r.GetResourceErrors()) != 1 || r.GetResourceErrors()[0].GetResourceName().GetName() != "file-root:../x" {
		t.Errorf("got %v, want an error of the name that is invalid", r)
	}
	if got := expect(both, a); string(got) != string(want) {
		t.Errorf("the root is %s", got)
	}
	want = write("b") // comes later, and only then is there something for the other
	if got := expect(late, b); string(got) != string(want) {
		t.Errorf("the root is %s", got)
	}
	open(t, socket, b).next() // a second stream with the same name
	want = write("b")
	if got := expect(late, b); string(got) != string(want) {
		t.Errorf("the root is %s", got)
	}
}

// counted is a source of files that counts who follows what.
type counted map[string]int

func (c counted) Follow(name string) (func(), error) {
	if name == "file-root:bad" {
		return nil, errors.New("bad name")
	}
	c[name]++
	return func() { c[name]-- }, nil
}
func (counted) Get(string) *pki.Secret   { return nil }
func (counted) Changed() <-chan struct{} { return make(chan struct{}) }

func TestAStreamFollowsWhatItNamesAndNoMore(t *testing.T) {
	c := counted{}
	f := newFollower(c, anyName{})
	for _, s := range []struct {
		names []string
		fails bool
		want  counted
	}{
		{[]string{LeafName}, false, counted{}},
		{[]string{LeafName, "file-root:a", "file-root:bad"}, true, counted{"file-root:a": 1}},
		{[]string{"file-root:a", "file-root:b", "file-root:bad"}, false, counted{"file-root:a": 1, "file-root:b": 1}},
		{[]string{"file-root:b"}, false, counted{"file-root:a": 0, "file-root:b": 1}},
		{nil, false, counted{"file-root:a": 0, "file-root:b": 0}},
	} {
		if problems := f.set(s.names); (len(problems) > 0) != s.fails || !maps.Equal(c, s.want) {
			t.Errorf("%v: %v, following %v, want %v", s.names, problems, c, s.want)
		}
		if (f.changed() == nil) != (len(f.entries) == 0) {
			t.Errorf("%v: following %d names, channel of changes nil: %v", s.names, len(f.entries), f.changed() == nil)
		}
	}
}

// talking is a stream whose client never stops asking.
type talking struct {
	grpc.ServerStream
	ctx context.Context
}

func (t talking) Context() context.Context { return t.ctx }
func (talking) RecvMsg(any) error          { return nil }

// TestEndOfTheStreamReachesABusyHandler ends a stream while a request waits for its handler.
func TestEndOfTheStreamReachesABusyHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_, ended := receive[request](talking{ctx: ctx})
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("the handler would wait forever")
		}
	})
}
