package discovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/object"
)

// meshFile is a file with mesh configuration, for a control plane whose configuration
// holds no ConfigMap "istio"; where there is one in istio-system, that one counts. A file
// that is not there says nothing.
type meshFile struct {
	path string // "" for none
	// remembered is what was saved of the file's contents by an earlier process, if anything.
	remembered []object.Object
	log        *slog.Logger
	read       chan struct{} // closed once what it says at first has been emitted
}

// meshFileKey is the key of the object that a mesh file stands for. No source has such a namespace.
var meshFileKey = object.Key{Kind: object.ConfigMap, Namespace: "(file)", Name: config.MeshConfigMap}

func newMeshFile(path string, remembered []object.Object, log *slog.Logger) meshFile {
	f := meshFile{path: path, remembered: remembered, log: log, read: make(chan struct{})}
	if path == "" {
		close(f.read)
	}
	return f
}

// object is what the file says as an object.
func (f meshFile) object(text []byte) *object.Object {
	return &object.Object{
		Key: meshFileKey, Origin: object.Origin{File: f.path},
		Spec: &object.ConfigMapSpec{Data: map[string]string{config.MeshKey: string(text)}},
	}
}

// readOnce reads the file; nil where it does not exist. For a file that cannot be read what is
// remembered of it counts.
func (f meshFile) readOnce() (*object.Object, error) {
	if f.path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.path)
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

// Run emits what the file says until ctx ends; without a file it returns at once.
func (f meshFile) Run(ctx context.Context, emit func(object.Batch)) error {
	if f.path == "" {
		return nil
	}
	key, known := meshFileKey, false
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
