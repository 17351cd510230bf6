package statefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// CheckFolder returns an error unless only this user and root can change what is in the folder: it must
// be theirs and not writable by others. The path may be a symbolic link. The error wraps
// fs.ErrNotExist if there is no folder.
func CheckFolder(path string) error {
	f, err := openFolder(path, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// openFolder opens a folder and checks it. The flag is unix.O_NOFOLLOW if it must not be a link.
func openFolder(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, unix.O_DIRECTORY|flag, 0)
	if err != nil {
		return nil, linkError("open state folder", path, err, syscall.ENOTDIR)
	}
	fi, err := f.Stat()
	if err == nil {
		err = checkOwner(fi, os.Geteuid())
	}
	if mode := fi.Mode().Perm(); err == nil && mode&0o022 != 0 {
		err = fmt.Errorf("mode %04o lets others write it, want 0700: check what is in it and chmod 700 it, or use a folder below it", mode)
	}
	if err != nil {
		return nil, fmt.Errorf("state folder %s: %w", path, errors.Join(err, f.Close()))
	}
	return f, nil
}

// ReadMine reads a regular file of at most limit bytes that belongs to this user and that nobody else can
// read or write. It follows no link. Unlike ReadOwn it takes any folder, such as one that is mounted for a Pod.
func ReadMine(path string, limit int64) ([]byte, error) {
	// Not blocking: the path may be that of a pipe without a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	owner, known := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case !known || int(owner.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s: owned by another user than %d", path, os.Geteuid())
	case st.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s: mode %04o, want 0600", path, st.Mode().Perm())
	case st.Size() > limit:
		return nil, fmt.Errorf("%s: %d bytes, want at most %d", path, st.Size(), limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// ReadOwn reads a file of at most limit bytes. It returns an error if the contents of the file cannot be
// trusted: if the file or its folder is of another user than this one and root, or can be written by
// others, or if the file is a symbolic link. The error wraps fs.ErrNotExist if there is no file.
func ReadOwn(path string, limit int64) ([]byte, error) { return read(path, limit, 0o022, 0) }

// read reads a file whose mode must have none of the bits refused. folderFlag is unix.O_NOFOLLOW if its
// folder must not be a link.
func read(path string, limit int64, refused fs.FileMode, folderFlag int) ([]byte, error) {
	dir, err := openFolder(filepath.Dir(path), folderFlag)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// Opening a named pipe blocks until it has a writer, unless O_NONBLOCK is set.
	fd, err := unix.Openat(int(dir.Fd()), filepath.Base(path), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, linkError("read state file", path, &fs.PathError{Op: "open", Path: path, Err: err}, syscall.ELOOP)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	fi, err := f.Stat()
	if err == nil {
		err = checkFile(fi, refused)
	}
	if err != nil {
		return nil, fmt.Errorf("read state file %s: %w", path, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read state file: %w", err)
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("read state file %s: more than %d bytes", path, limit)
	}
	return text, nil
}

// checkFile returns an error unless the file is regular, of this user or root, and without the bits
// refused in its mode.
func checkFile(fi fs.FileInfo, refused fs.FileMode) error {
	if !fi.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	if err := checkOwner(fi, os.Geteuid()); err != nil {
		return err
	}
	switch mode := fi.Mode().Perm(); {
	case mode&refused&0o022 != 0 && refused&0o044 == 0:
		return fmt.Errorf("mode %04o lets others write it, want 0600", mode)
	case mode&refused != 0:
		return fmt.Errorf("mode %04o gives others access, want 0600: if nobody has read it, chmod 600 it, else remove its folder to create a new one", mode)
	}
	return nil
}

// checkOwner returns an error unless the file is of the user or of root.
func checkOwner(fi fs.FileInfo, user int) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("its owner is not known")
	}
	if owner := int(st.Uid); owner != 0 && owner != user {
		return fmt.Errorf("owned by uid %d, want %d: run as its owner, or check what it is and chown it", owner, user)
	}
	return nil
}

// linkError adds that the path is a symbolic link to the error of opening it, where the system's error
// for that is code.
func linkError(what, path string, err error, code syscall.Errno) error {
	if fi, statErr := os.Lstat(path); errors.Is(err, code) && statErr == nil && fi.Mode()&os.ModeSymlink != 0 {
		return fmt.Errorf("%s %s: it is a symbolic link, want the file or folder itself", what, path)
	}
	return fmt.Errorf("%s: %w", what, err)
}
