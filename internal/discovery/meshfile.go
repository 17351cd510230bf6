package discovery

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"

	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/filewatch"
	"github.com/pilothouse/pilothouse/internal/object"
)

// meshFile is a file with mesh configuration, for a control plane whose configuration
// holds no ConfigMap "istio"; where there is one in istio-system, that one counts. A file
// that is not there says nothing.
type meshFile struct {
	path string
	log  *slog.Logger
}

func (f meshFile) Run(ctx context.Context, emit func(object.Batch)) error {
	key := object.Key{Kind: object.ConfigMap, Namespace: "(file)", Name: config.MeshConfigMap}
	return filewatch.Run(ctx, filewatch.Options{Path: f.path}, func(c filewatch.Contents) {
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
