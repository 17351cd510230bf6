package ca

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/test/wait"
)

// While another process has the state's lock, all goroutines that want to change the state wait no longer than their contexts.
func TestAChangeThatWaitsForAnotherProcessEndsWithItsContext(t *testing.T) {
	dir := wait.Folder(t)
	instances := filepath.Join(dir, instancesFolder)
	if err := os.Mkdir(instances, 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := claim.Folder(t.Context(), instances, time.Second, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Release() }()
	synctest.Test(t, func(t *testing.T) {
		s := NewFolder(dir)
		never := func(rotation.State, bool) (*StoreChange, error) {
			t.Error("the state is changed without its lock")
			return nil, nil
		}
		first := make(chan error, 1)
		go func() { first <- s.Change(t.Context(), never) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Change(ctx, never); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a change with a second behind one that waits: %v, want %v", err, context.DeadlineExceeded)
		}
		var taken *claim.TakenError
		if err := <-first; !errors.As(err, &taken) {
			t.Errorf("a change while another process has the lock: %v, want that it is locked", err)
		}
	})
}
