package sds

import (
	"errors"

	"golang.org/x/sys/unix"
)

// temporary reports whether an error of opening the socket may pass without a change of the configuration.
func temporary(err error) bool {
	for _, e := range []error{unix.ENOSPC, unix.EDQUOT, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EINTR, unix.EIO, unix.ESTALE, unix.EADDRINUSE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
