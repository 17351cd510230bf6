package envoy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// sharedMemory is where Linux keeps POSIX shared memory.
	sharedMemory = "/dev/shm"
	// lockPrefix and the base id are the name of a reservation, beside Envoy's segment and in the
	// abstract sockets of the network namespace alike.
	lockPrefix = "pilothouse_base_id_"
	// segmentPrefix and ten times the base id are the name that Envoy gives its segment.
	segmentPrefix = "envoy_shared_memory_"
	// socketPrefix, parent_ or child_, and ten times the base id plus 0 to 2 are those of its sockets.
	socketPrefix = "@envoy_domain_socket_"
	// knownLayout is the hot restart version whose segment is known by its bytes, knownSize is its
	// size, and at flagsAt lie the flags, whose lowest bit says that an Envoy initialises. [envoy R5]
	knownLayout  = "11.104"
	knownSize    = 104
	flagsAt      = 96
	initialising = 1
	// baseIDs bounds the base ids: ten times one must fit into 32 bits.
	baseIDs     = 1 << 28
	baseIDTries = 64
)

// shared is a base id that is this agent's own: no other agent takes it that sees the same
// /dev/shm (by a lock on a file there) or the same network namespace (by an abstract
// socket), and no Envoy of another program uses it. The kernel releases both when the
// agent exits; the next agent removes the files.
type shared struct {
	dir  string
	id   int
	lock *os.File
	name net.PacketConn
}

// reserve removes what dead agents of this user left behind and takes a free base id.
func reserve(dir string) (*shared, error) {
	if dir == "" {
		dir = sharedMemory
	}
	sweep(dir)
	var last error
	for range baseIDTries {
		s := &shared{dir: dir, id: 1 + rand.IntN(baseIDs-1)}
		if last = s.take(); last == nil {
			return s, nil
		}
		if errors.Is(last, fs.ErrPermission) || errors.Is(last, fs.ErrNotExist) || errors.Is(last, unix.EROFS) || errors.Is(last, unix.ENOSPC) {
			break
		}
	}
	return nil, fmt.Errorf("find a base id for Envoy's shared memory: %w", last)
}

func (s *shared) lockPath() string { return filepath.Join(s.dir, lockPrefix+strconv.Itoa(s.id)) }
func (s *shared) segment() string {
	return filepath.Join(s.dir, segmentPrefix+strconv.Itoa(s.id)+"0")
}

// take makes both reservations, or none.
func (s *shared) take() (err error) {
	if s.lock, err = os.OpenFile(s.lockPath(), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = s.remove() // the first error says why
		}
	}()
	// An agent that sweeps may hold it already, and is about to remove it.
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil || !same(s.lock, s.lockPath()) {
		return fmt.Errorf("%s is taken", s.lockPath())
	}
	if _, err := os.Lstat(s.segment()); err == nil {
		return fmt.Errorf("%s exists: another program uses it", s.segment())
	}
	sockets, err := os.ReadFile("/proc/self/net/unix")
	if err != nil {
		return err
	}
	for _, role := range []string{"parent_", "child_"} {
		if strings.Contains(string(sockets), socketPrefix+role+strconv.Itoa(s.id)) {
			return fmt.Errorf("an Envoy has base id %d", s.id)
		}
	}
	// Last: from here on the segment counts as ours.
	s.name, err = net.ListenPacket("unixgram", "@"+lockPrefix+strconv.Itoa(s.id))
	return err
}

// remove removes the segment and gives the base id up; no Envoy of ours runs.
func (s *shared) remove() error {
	var errs []error
	for _, path := range []string{s.segment(), s.lockPath()} {
		// Without the abstract socket the segment may be another agent's.
		if s.name == nil && path == s.segment() {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove Envoy's shared memory: %w", err))
		}
	}
	if s.name != nil {
		_ = s.name.Close() // it holds nothing but a name
	}
	_ = s.lock.Close() // likewise
	return errors.Join(errs...)
}

// clearFlag makes the segment takeable again after an Envoy ended before it was live. Call it
// once that Envoy is reaped, and with the hot restart version that it shared with its parent.
func (s *shared) clearFlag(version string) error {
	if version != knownLayout {
		return fmt.Errorf("clear the initialising flag: the layout of hot restart version %q is not known, only that of %s", version, knownLayout)
	}
	f, err := os.OpenFile(s.segment(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("clear the initialising flag: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Size() != knownSize {
		return fmt.Errorf("clear the initialising flag: %s does not have %d bytes", s.segment(), knownSize)
	}
	var word [8]byte
	if _, err := f.ReadAt(word[:], flagsAt); err != nil {
		return fmt.Errorf("clear the initialising flag: %w", err)
	}
	flags := binary.NativeEndian.Uint64(word[:])
	binary.NativeEndian.PutUint64(word[:], flags&^initialising)
	if _, err := f.WriteAt(word[:], flagsAt); err != nil {
		return fmt.Errorf("clear the initialising flag: %w", err)
	}
	return nil
}

// sweep removes segments and locks of agents of this user that are dead. What it may not
// touch it leaves.
func sweep(dir string) {
	locks, _ := filepath.Glob(filepath.Join(dir, lockPrefix+"*")) // the pattern is good
	for _, path := range locks {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(path), lockPrefix))
		if err != nil {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		// An unlocked file belonged to an agent that was killed.
		if own(f) && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil && same(f, path) {
			_ = os.Remove((&shared{dir: dir, id: id}).segment())
			_ = os.Remove(path)
		}
		_ = f.Close()
	}
}

func own(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && int(st.Uid) == os.Geteuid()
}

// same reports whether path still refers to the file: it has not been removed since it was opened.
func same(f *os.File, path string) bool {
	opened, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(opened, there)
}
