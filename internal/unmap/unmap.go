// Package unmap makes a program's resident set smaller, without changing what the program does.
//
// It has the kernel forget which pages of the program's file a process has in its address space. The pages themselves are unchanged, and stay in the page cache.
package unmap

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// region is a part of the address space, from start up to but not including end.
type region struct{ start, end uintptr }

// Program has the kernel forget which pages of the program's file the process has in its address space. Those that are used again are
// found in the page cache, without reading the file, and the kernel maps 64 kB around each. Most have only been used by the start: the
// tables of protobuf and Kubernetes; others by one phase of the work, such as proxies that connect. To map all 40 MB again takes the
// processor some milliseconds, so that it is worth it after a garbage collection, but not many times a second.
func Program() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil // not Linux, or /proc is not mounted
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return nil // a kernel without it, or a sandbox
	}
	var errs []error
	for _, r := range unchanged(text, program) {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, r.start, r.end-r.start, unix.MADV_DONTNEED); errno != 0 {
			errs = append(errs, fmt.Errorf("madvise %x-%x of %s: %w", r.start, r.end, program, errno))
		}
	}
	return errors.Join(errs...)
}

// unchanged returns the regions of smaps, in the form of proc(5), that are of the program's file, cannot be written, and have no page that
// differs from the file's: what has been written once, by a debugger or for relocation, would be lost.
func unchanged(smaps []byte, program string) (out []region) {
	var r region
	candidate := false
	for s := bufio.NewScanner(bytes.NewReader(smaps)); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) >= 2 && strings.HasSuffix(fields[0], ":") {
			if fields[0] == "Anonymous:" && candidate && fields[1] == "0" {
				out = append(out, r)
			}
			continue
		}
		from, to, ok := strings.Cut(s.Text(), "-")
		to, rest, _ := strings.Cut(to, " ")
		start, err := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		candidate = ok && err == nil && err2 == nil && start < end && len(fields) >= 6 &&
			!strings.Contains(fields[1], "w") && strings.HasSuffix(fields[1], "p") && strings.HasSuffix(rest, " "+program)
		r = region{uintptr(start), uintptr(end)}
	}
	return out
}
