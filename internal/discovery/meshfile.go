package discovery

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
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
	log  *slog.Logger
	read chan struct{} // closed once what it says at first has been emitted
}

func newMeshFile(path string, log *slog.Logger) meshFile {
	f := meshFile{path: path, log: log, read: make(chan struct{})}
	if path == "" {
		close(f.read)
	}
	return f
}

// Run emits what the file says until ctx ends; without a file it returns at once.
func (f meshFile) Run(ctx context.Context, emit func(object.Batch)) error {
	if f.path == "" {
		return nil
	}
	key := object.Key{Kind: object.ConfigMap, Namespace: "(file)", Name: config.MeshConfigMap}
	first := sync.OnceFunc(func() { close(f.read) })
	return filewatch.Run(ctx, filewatch.Options{Path: f.path, Log: f.log}, func(c filewatch.Contents) {
		defer first()
		switch {
		case c.Err == nil:
			emit(object.Batch{Changes: []object.Change{{Key: key, Object: &object.Object{
				Key: key, Origin: object.Origin{File: f.path},
				Spec: &object.ConfigMapSpec{Data: map[string]string{config.MeshKey: string(c.Data)}},
			}}}})
		case errors.Is(c.Err, fs.ErrNotExist):
			emit(object.Batch{Changes: []object.Change{{Key: key}}})
		default:
			f.log.Error("mesh configuration file cannot be read; what it said last stays", "file", f.path, "error", c.Err)
		}
	})
}
