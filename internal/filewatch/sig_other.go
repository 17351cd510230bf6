//go:build !linux

package filewatch

import "io/fs"

// SigOf is the signature that a stat gave.
func SigOf(fi fs.FileInfo) Sig {
	return Sig{size: fi.Size(), mtime: fi.ModTime().UnixNano()}
}
