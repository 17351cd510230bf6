package filewatch

import (
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SigOf is the signature that a stat gave.
func SigOf(fi fs.FileInfo) Sig {
	s := Sig{size: fi.Size(), mtime: fi.ModTime().UnixNano()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.ctime = uint64(st.Dev), st.Ino, st.Ctim.Nano()
	}
	return s
}

// WrittenTo says whether the file was written to longer than a moment after it was made,
// so that it did not get its contents in one go; true where the file system does not
// tell when it was made.
func WrittenTo(path string, moment time.Duration) bool {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME|unix.STATX_MTIME, &st); err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return true
	}
	made, written := time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)), time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec))
	return written.Sub(made) > moment
}
