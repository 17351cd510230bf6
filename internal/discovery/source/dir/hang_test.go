package dir

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// A file system does not answer at the start: the remembered objects are emitted nevertheless, and replaced when it
// answers.
func TestDirectoryThatDoesNotAnswer(t *testing.T) {
	top := t.TempDir()
	file := filepath.Join(top, "f.yaml")
	was := decode.Documents(file, []byte("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"))
	was.Objects[0].Saved = time.Unix(1000, 0)
	s, err := New(Options{Dir: top, Poll: time.Millisecond, Remembered: was.Objects})
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan struct{})
	s.patience = time.Millisecond
	s.walk = func(root, exclude string) *listing {
		<-answers
		return list(root, exclude)
	}
	ctx, stop := context.WithTimeout(t.Context(), wait.Bound)
	defer stop()
	batches, ended := make(chan object.Batch, 10), make(chan error, 1)
	go func() { ended <- s.Run(ctx, func(b object.Batch) { batches <- b }) }()
	next := func() object.Batch {
		t.Helper()
		select {
		case b := <-batches:
			return b
		case <-ctx.Done():
			t.Fatal("nothing is emitted")
		}
		panic("unreachable")
	}
	if b := next(); !b.Synced || len(b.Changes) != 1 || b.Changes[0].Object.Name != "a" || len(b.Problems) != 1 || !strings.Contains(b.Problems[0].Text, "has not answered") {
		t.Errorf("the first batch is %+v", b)
	}
	if _, behind := s.Behind(); !behind {
		t.Error("not behind, although nothing could be read")
	}
	close(answers)
	for removed, cleared := false, false; !removed || !cleared; {
		b := next()
		removed = removed || len(b.Changes) == 1 && b.Changes[0].Object == nil
		cleared = cleared || b.Problems != nil && len(b.Problems) == 0
	}
	if since, behind := s.Behind(); behind {
		t.Errorf("behind since %v, although everything was read", since)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
