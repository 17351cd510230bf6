package filewatch

import (
	"io/fs"
	"syscall"
)

// SigOf is the signature that a stat gave.
func SigOf(fi fs.FileInfo) Sig {
	s := Sig{size: fi.Size(), mtime: fi.ModTime().UnixNano()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino, s.ctime = uint64(st.Dev), st.Ino, st.Ctim.Nano()
	}
	return s
}
