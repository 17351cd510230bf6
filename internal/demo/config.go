package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// copyConfig copies the YAML of a directory; the demo edits the copy.
func copyConfig(from, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("copy the sample: no *.yaml files in %s", from)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("copy the sample: %w", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(filepath.Join(to, filepath.Base(f)), text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("copy the sample: %w", err)
		}
	}
	return nil
}

// edit replaces text in a file of the mesh's configuration and has it take effect.
func (d *demo) edit(ctx context.Context, file string, oldNew ...string) error {
	path := filepath.Join(d.config, file)
	if err := edit(path, oldNew...); err != nil {
		return err
	}
	return d.mesh.Applied(ctx, path)
}

// edit replaces text in a file of the mesh's directory by renaming a new file over the old one, as editors
// do. Each text to be replaced must exist.
func edit(file string, oldNew ...string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("edit the mesh: %w", err)
	}
	for i := 0; i < len(oldNew); i += 2 {
		if !strings.Contains(string(text), oldNew[i]) {
			return fmt.Errorf("edit the mesh: %s does not contain %q", file, oldNew[i])
		}
	}
	return write(file, []byte(strings.NewReplacer(oldNew...).Replace(string(text))), 0o644)
}

// write writes a file of the mesh's directory by renaming a new file over it.
func write(file string, text []byte, mode os.FileMode) error {
	next := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".new")
	if err := os.WriteFile(next, text, mode); err != nil {
		return fmt.Errorf("edit the mesh: %w", err)
	}
	if err := os.Rename(next, file); err != nil {
		return fmt.Errorf("edit the mesh: %w", err)
	}
	return nil
}
