package discovery

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/discovery/saved"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// The first change is written at once, those that follow within the pause at its end, or when the
// control plane ends.
func TestSavesAreBatched(t *testing.T) {
	dir := wait.Folder(t)
	k := openKeeper(dir, "config", slog.New(slog.DiscardHandler))
	k.every = time.Hour
	var version, taken atomic.Uint64
	take := func() goodObjects {
		v := version.Load()
		taken.Add(1) // after the version is loaded, which the test changes then
		return goodObjects{version: v, ok: v > 0, objects: []*object.Object{{Key: object.Key{Kind: object.Namespace, Name: "a"}, Meta: object.Meta{Generation: int64(v)}}}}
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.run(ctx, take) }()
	k.changed()
	wait.Until(t, "the keeper has seen that nothing may be saved yet", func() bool { return taken.Load() == 1 })
	if _, err := os.Stat(filepath.Join(dir, savedFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was saved: %v", err)
	}
	generation := func() int64 {
		text, err := os.ReadFile(filepath.Join(dir, savedFile))
		if err != nil {
			return 0
		}
		set, err := saved.Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		return set.Objects[0].Meta.Generation
	}
	version.Store(1)
	k.changed()
	wait.Until(t, "the first change is written", func() bool { return generation() == 1 })
	for range 1000 {
		version.Add(1)
		k.changed()
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if generation() != 1001 || taken.Load() != 3 {
		t.Errorf("saved is version %d after %d snapshots, want 1001 after 3", generation(), taken.Load())
	}
}

func TestOriginsAreRelocatedToANewDirectory(t *testing.T) {
	dir := wait.Folder(t)
	written := time.Unix(1000, 0)
	text, err := new(saved.Encoder).Encode(written, "samples/shop", []*object.Object{
		{Key: object.Key{Kind: object.Namespace, Name: "a"}, Origin: object.Origin{File: "samples/shop/sub/f.yaml", Line: 3}},
		{Key: config.MeshFileKey, Spec: &object.ConfigMapSpec{}, Origin: object.Origin{File: "etc/mesh"}, Saved: time.Unix(500, 0)},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, savedFile), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	k := openKeeper(dir, "/srv//shop/", slog.New(slog.DiscardHandler))
	of, mesh := k.remembered(false), k.remembered(true)
	if len(of) != 1 || of[0].Origin.File != "/srv/shop/sub/f.yaml" || !of[0].Saved.Equal(written) {
		t.Errorf("remembered of the source is %+v", of)
	}
	if len(mesh) != 1 || mesh[0].Origin.File != "etc/mesh" || !mesh[0].Saved.Equal(time.Unix(500, 0)) {
		t.Errorf("remembered of the mesh file is %+v", mesh)
	}
}

func TestIntervalBetweenWritesOfLargeConfigurations(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: time.Second, 20 * time.Millisecond: time.Second, 40 * time.Millisecond: 2 * time.Second, time.Minute: saveAtLeast,
	} {
		if got := saveInterval(time.Second, took); got != want {
			t.Errorf("after a write of %s: %s, want %s", took, got, want)
		}
	}
	if got := saveInterval(time.Minute, time.Second); got != time.Minute {
		t.Errorf("with an interval of a minute: %s", got)
	}
}
