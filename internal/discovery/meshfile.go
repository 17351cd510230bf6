package discovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/object"
)

// meshFile is a file with mesh configuration. A ConfigMap "istio" in the control plane's namespace overrides
// it. The file does not have to exist.
type meshFile struct {
	path string // "" for none
	// remembered has the file's contents as an earlier process saved them, if it did.
	remembered []object.Object
	log        *slog.Logger
	read       chan struct{} // closed after the first contents have been emitted
}

func newMeshFile(path string, remembered []object.Object, log *slog.Logger) meshFile {
	f := meshFile{path: path, remembered: remembered, log: log, read: make(chan struct{})}
	if path == "" {
		close(f.read)
	}
	return f
}

// object returns the file's contents as an object.
func (f meshFile) object(text []byte) *object.Object {
	return &object.Object{
		Key: config.MeshFileKey, Origin: object.Origin{File: f.path},
		Spec: &object.ConfigMapSpec{Data: map[string]string{config.MeshKey: string(text)}},
	}
}

// readOnce reads the file. It returns nil if the file does not exist, and the saved contents if it
// cannot be read.
func (f meshFile) readOnce() (*object.Object, error) {
	if f.path == "" {
		return nil, nil
	}
	text, err := filewatch.ReadFile(f.path, filewatch.DefaultMaxBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil && len(f.remembered) > 0:
		return &f.remembered[0], nil
	case err != nil:
		return nil, fmt.Errorf("read mesh configuration: %w", err)
	}
	return f.object(text), nil
}

// Run watches the file and emits its contents until ctx ends; without a path it returns at once.
func (f meshFile) Run(ctx context.Context, emit func(object.Batch)) error {
	if f.path == "" {
		return nil
	}
	key, known := config.MeshFileKey, false
	first := sync.OnceFunc(func() { close(f.read) })
	return filewatch.Run(ctx, filewatch.Options{Path: f.path, Log: f.log}, func(c filewatch.Contents) {
		defer first()
		switch {
		case c.Err == nil:
			known = true
			emit(object.Batch{Changes: []object.Change{{Key: key, Object: f.object(c.Data)}}})
		case errors.Is(c.Err, fs.ErrNotExist):
			emit(object.Batch{Changes: []object.Change{{Key: key}}})
		case !known && len(f.remembered) > 0:
			known = true
			emit(object.Batch{Changes: []object.Change{{Key: key, Object: &f.remembered[0]}}})
			f.log.Error("mesh configuration file cannot be read; its last contents stay in force", "file", f.path, "error", c.Err, "saved", f.remembered[0].Saved)
		case !known:
			f.log.Error("mesh configuration file cannot be read, and its earlier contents are not known", "file", f.path, "error", c.Err)
		default:
			f.log.Error("mesh configuration file cannot be read; its last contents stay in force", "file", f.path, "error", c.Err)
		}
	})
}
