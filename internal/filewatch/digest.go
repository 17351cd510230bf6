package filewatch

import (
	"crypto/sha256"
	"io"
	"os"
	"syscall"
)

// maxDigest is how much of a file is compared, in bytes.
const maxDigest = 16 << 20

// digest is a hash of a file's content; the zero one of a file that cannot be read.
type digest [sha256.Size]byte

// digests are those of the files at paths.
func digests(paths []string) []digest {
	out := make([]digest, len(paths))
	for i, path := range paths {
		out[i] = digestOf(path)
	}
	return out
}

func digestOf(path string) (d digest) {
	// Not blocking: the path may be that of a pipe without a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return digest{}
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return digest{}
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxDigest)); err != nil {
		return digest{}
	}
	h.Sum(d[:0])
	return d
}
