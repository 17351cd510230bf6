package multi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/source/dir"
	"github.com/pilothouse/pilothouse/internal/discovery/source/sourcetest"
	"github.com/pilothouse/pilothouse/internal/object"
)

// The suite for all sources passes with further sources beside the first: a directory, a remote cluster, and one that
// cannot be read.
func TestSource(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Harness {
		root, beside := t.TempDir(), t.TempDir()
		file := func(k object.Key) string {
			return filepath.Join(root, fmt.Sprintf("%s-%s-%s.yaml", k.Kind, k.Namespace, k.Name))
		}
		open := func(path string, _ []object.Object) (Runner, error) { return dir.New(dir.Options{Dir: path}) }
		return sourcetest.Harness{
			Source: func(t *testing.T) sourcetest.Source {
				first, err := open(root, nil)
				if err != nil {
					t.Fatal(err)
				}
				return New(Options{
					First: first, Place: root, OpenDirectory: open, ConfigSources: []string{directoryScheme + beside}, Log: slog.New(slog.DiscardHandler),
					Secrets: func(ctx context.Context, report func([]Secret, error)) {
						report([]Secret{{Name: "s", Data: map[string][]byte{"two": []byte("x")}}}, nil)
						<-ctx.Done()
					},
					OpenCluster: func(string, []byte, []object.Object) (Runner, error) { return quiet{}, nil },
				})
			},
			Put: func(t *testing.T, k object.Key, yaml string) {
				tmp := filepath.Join(t.TempDir(), "x")
				if err := errors.Join(os.WriteFile(tmp, []byte(yaml), 0o600), os.Rename(tmp, file(k))); err != nil {
					t.Fatal(err)
				}
			},
			Delete: func(t *testing.T, k object.Key) {
				if err := os.Remove(file(k)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

// quiet is a cluster without objects.
type quiet struct{}

func (quiet) Run(ctx context.Context, emit func(object.Batch)) error {
	emit(object.Batch{Synced: true})
	<-ctx.Done()
	return nil
}

// dead is a cluster that is never read.
type dead struct{}

func (dead) Run(ctx context.Context, _ func(object.Batch)) error { <-ctx.Done(); return nil }

// A cluster that cannot be read is waited for as long as is set, and no longer; one whose kubeconfig is refused is not
// waited for, and leaves the one before in use.
func TestDeadCluster(t *testing.T) {
	secrets := make(chan []Secret, 1)
	reports := make(chan struct{}, 10)
	s := New(Options{
		First: quiet{}, Place: "one", Timeout: time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Secrets: func(ctx context.Context, report func([]Secret, error)) {
			for {
				select {
				case list := <-secrets:
					report(list, nil)
					reports <- struct{}{}
				case <-ctx.Done():
					return
				}
			}
		},
		OpenCluster: func(_ string, kubeconfig []byte, _ []object.Object) (Runner, error) {
			if string(kubeconfig) == "bad" {
				return nil, errors.New("refused")
			}
			return dead{}, nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	batches, done := make(chan object.Batch, 100), make(chan error, 1)
	go func() { done <- s.Run(ctx, func(b object.Batch) { batches <- b }) }()
	until := func(what string, cond func(object.Batch) bool) {
		t.Helper()
		for late := time.After(time.Minute); ; {
			select {
			case b := <-batches:
				if cond(b) {
					return
				}
			case <-late:
				t.Fatal(what + " has not come")
			}
		}
	}
	has := func(text string) func(object.Batch) bool {
		return func(b object.Batch) bool {
			for _, p := range b.Problems {
				if p.Error() == text {
					return true
				}
			}
			return false
		}
	}
	secrets <- []Secret{{Name: "s", Data: map[string][]byte{"two": []byte("good")}}}
	<-reports
	until("that the cluster is late", has("cluster two: has not been read within 1ms: what is known of it stays in force"))
	secrets <- []Secret{{Name: "s", Data: map[string][]byte{"two": []byte("bad")}}}
	<-reports
	until("that the kubeconfig is refused", has("Secret s: data.two: key refused; the kubeconfig before stays in use"))
	if list := s.Clusters(); len(list) != 1 || list[0].ID != "two" || list[0].Secret != "s" || list[0].Synced {
		t.Errorf("clusters %+v, want two of Secret s, not synced", list)
	}
	if n := s.Timeouts(); len(n) != 1 || n["two"] != 1 {
		t.Errorf("clusters that were not read in time %v, want two once", n)
	}
	secrets <- nil
	<-reports
	until("the end of the problems", func(b object.Batch) bool { return b.Problems != nil && len(b.Problems) == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
