package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/test/kube/node/podstate"
)

// owner is who the files of a volume belong to.
type owner struct {
	// group is the Pod's fsGroup, or -1. user is the user that all containers run as, or -1; tokens are readable by
	// it alone.
	group, user int
}

// data is the link to the directory with the files, as the kubelet names it: programs that watch their configuration
// see that this link is replaced.
const data = "..data"

// writePayload makes dir have the files, in one step for those who read them through the link. It does nothing if they
// are there already.
func writePayload(dir string, files map[string]podstate.File, o owner) error {
	if samePayload(dir, files) {
		return nil
	}
	next, err := os.MkdirTemp(dir, "..2")
	if err != nil {
		return err
	}
	if err := os.Chmod(next, 0o755); err != nil {
		return err
	}
	for name, f := range files {
		path := filepath.Join(next, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.Data, 0o600); err != nil {
			return err
		}
		if err := o.give(path, f); err != nil {
			return err
		}
	}
	old, err := os.Readlink(filepath.Join(dir, data))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	link := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(filepath.Base(next), link); err != nil {
		return err
	}
	if err := os.Rename(link, filepath.Join(dir, data)); err != nil {
		return err
	}
	if err := linkNames(dir, files); err != nil {
		return err
	}
	if old == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(dir, old))
}

// give sets the owner and the mode of a file.
func (o owner) give(path string, f podstate.File) error {
	mode := fs.FileMode(f.Mode)
	if f.Token && (o.group >= 0 || o.user >= 0) {
		mode = 0o600
	}
	if o.group >= 0 {
		mode |= 0o440
	}
	user := -1
	if f.Token {
		user = o.user
	}
	return errors.Join(os.Chown(path, user, o.group), os.Chmod(path, mode))
}

// samePayload says whether the files are in dir.
func samePayload(dir string, files map[string]podstate.File) bool {
	root := filepath.Join(dir, data)
	if _, err := os.Stat(root); err != nil {
		return false
	}
	real, err := filepath.EvalSymlinks(root)
	if err != nil {
		return false
	}
	count := 0
	err = filepath.WalkDir(real, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(real, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if f, ok := files[name]; err != nil || !ok || !bytes.Equal(text, f.Data) {
			return errors.Join(err, fs.ErrInvalid)
		}
		count++
		return nil
	})
	return err == nil && count == len(files)
}

// linkNames makes the names in dir: links through ..data for the first part of each path.
func linkNames(dir string, files map[string]podstate.File) error {
	var names []string
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		if !slices.Contains(names, top) {
			names = append(names, top)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if i := slices.Index(names, e.Name()); i >= 0 {
			names = slices.Delete(names, i, i+1)
		} else if e.Type()&fs.ModeSymlink != 0 && e.Name() != data {
			// Directories are mount points of other volumes.
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for _, name := range names {
		if err := os.Symlink(filepath.Join(data, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// makeEmptyDir makes the directory of an emptyDir, which everybody may write to.
func makeEmptyDir(dir string, o owner) error {
	mode := fs.FileMode(0o777)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("make an emptyDir: %w", err)
	}
	if o.group >= 0 {
		mode |= fs.ModeSetgid
		if err := os.Chown(dir, -1, o.group); err != nil {
			return err
		}
	}
	return os.Chmod(dir, mode)
}
