package ca

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

// Names in the state folder, in addition to those of the first root. A root that was made by a rotation is
// in the folder ca-ID, with the first 16 digits of its SHA-256.
const (
	rotationFile    = "ca-rotation.json"
	instancesFolder = "ca-instances"
	reportSuffix    = ".json"
)

// Limits of files, and how long an instance waits for another one that changes the state.
const (
	maxRotationFile = 64 << 10
	maxReportFile   = 64 << 10
	maxInstances    = 256
	lockTimeout     = 10 * time.Second
	// reportKept is the age at which the report of an instance that has ended is removed.
	reportKept = 10 * time.Minute
)

// rotationStore keeps the state of the rotation in the state folder, for all instances that share it.
type rotationStore struct {
	stateDir string
	instance string

	mu sync.Mutex // serialises the goroutines of this process, for which the lock would be polled
}

// storedState is the contents of the rotation's file.
type storedState struct {
	Version int `json:"version"`
	rotation.State
}

// storedVersion is the version of the file's format.
const storedVersion = 1

func newRotationStore(stateDir string) *rotationStore {
	return &rotationStore{stateDir: stateDir, instance: strings.ToLower(rand.Text())}
}

// readRotation reads the state; false if there is none.
func readRotation(stateDir string) (rotation.State, bool, error) {
	path := filepath.Join(stateDir, rotationFile)
	text, err := statefile.ReadOwn(path, maxRotationFile)
	if errors.Is(err, fs.ErrNotExist) {
		return rotation.State{}, false, nil
	}
	if err != nil {
		return rotation.State{}, false, fmt.Errorf("read the state of the root's rotation: %w", err)
	}
	var s storedState
	if err := json.Unmarshal(text, &s); err != nil {
		return rotation.State{}, false, fmt.Errorf("read the state of the root's rotation: parse %s: %w; restore it from a copy", path, err)
	}
	if s.Version != storedVersion || len(s.Signer.ID) != sha256Digits {
		return rotation.State{}, false, fmt.Errorf("read the state of the root's rotation: %s: version %d, want %d, with the root that signs; restore it from a copy", path, s.Version, storedVersion)
	}
	return s.State, true, nil
}

const sha256Digits = 64

// changeExisting is change for a state that must exist.
func (s *rotationStore) changeExisting(ctx context.Context, f func(rotation.State) (*rotation.State, error)) error {
	return s.change(ctx, func(old rotation.State, found bool) (*rotation.State, error) {
		if !found {
			return nil, fmt.Errorf("%s has been removed: restart to continue with the root that signs", filepath.Join(s.stateDir, rotationFile))
		}
		return f(old)
	})
}

// change replaces the state by what f makes of it, while no other instance does. A nil result keeps it.
func (s *rotationStore) change(ctx context.Context, f func(old rotation.State, found bool) (*rotation.State, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := filepath.Join(s.stateDir, instancesFolder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("change the state of the root's rotation: %w", err)
	}
	lock, err := claim.Folder(ctx, dir, lockTimeout, nil)
	if err != nil {
		return fmt.Errorf("change the state of the root's rotation: %w", err)
	}
	defer func() { _ = lock.Release() }() // closing a folder that was only read does not fail
	old, found, err := readRotation(s.stateDir)
	if err != nil {
		return err
	}
	next, err := f(old, found)
	if err != nil || next == nil {
		return err
	}
	text, err := json.MarshalIndent(storedState{Version: storedVersion, State: *next}, "", "  ")
	if err != nil {
		return fmt.Errorf("change the state of the root's rotation: %w", err)
	}
	if err := statefile.Replace(filepath.Join(s.stateDir, rotationFile), append(text, '\n')); err != nil {
		return fmt.Errorf("change the state of the root's rotation: %w", err)
	}
	return nil
}

func (s *rotationStore) reportPath() string {
	return filepath.Join(s.stateDir, instancesFolder, s.instance+reportSuffix)
}

// report writes the report of this instance.
func (s *rotationStore) report(r rotation.Report) error {
	r.Instance = s.instance
	text, err := json.Marshal(r)
	if err == nil {
		err = statefile.Replace(s.reportPath(), text)
	}
	if err != nil {
		return fmt.Errorf("report to the other instances: %w", err)
	}
	return nil
}

// leave removes the report of this instance.
func (s *rotationStore) leave() error {
	if err := os.Remove(s.reportPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("report to the other instances: %w", err)
	}
	return nil
}

// reports reads the reports of all instances. One that cannot be read is that of an instance whose state is not
// known, so that it is an error.
func (s *rotationStore) reports(now time.Time) ([]rotation.Report, error) {
	dir := filepath.Join(s.stateDir, instancesFolder)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the reports of the instances: %w", err)
	}
	var out []rotation.Report
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), reportSuffix) || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if fi, err := e.Info(); err == nil && now.Sub(fi.ModTime()) > reportKept {
			_ = os.Remove(path) // another instance may have removed it
			continue
		}
		text, err := statefile.ReadOwn(path, maxReportFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var r rotation.Report
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil {
			return nil, fmt.Errorf("read the report of an instance, %s: %w", path, err)
		}
		if out = append(out, r); len(out) > maxInstances {
			return nil, fmt.Errorf("read the reports of the instances: more than %d in %s", maxInstances, dir)
		}
	}
	return out, nil
}

// folderOf returns the folder of the root with an ID.
func folderOf(stateDir, id string) string {
	made := filepath.Join(stateDir, madeFolder(id))
	if _, err := os.Lstat(made); err == nil {
		return made
	}
	return filepath.Join(stateDir, rootFolder)
}

func madeFolder(id string) string { return rootFolder + "-" + id[:min(len(id), 16)] }

// signerFolder returns the folder of the root that signs: that of the stored state, or that of the first root if
// there is none. A first root must not be made while there are others, whose state has been lost.
func signerFolder(stateDir string, now time.Time) (string, error) {
	s, found, err := readRotation(stateDir)
	if err != nil {
		return "", err
	}
	first := filepath.Join(stateDir, rootFolder)
	if found {
		signer := s.Signer
		if s.Next != nil && !now.Before(signer.NotAfter) {
			signer = s.Next.Root
		}
		return folderOf(stateDir, signer.ID), nil
	}
	if made, err := madeFolders(stateDir); err != nil || len(made) == 0 {
		return first, err
	}
	if _, err := os.Lstat(first); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("state folder %s has rotated roots, and %s is missing, which says which of them signs: restore it from a copy", stateDir, rotationFile)
	}
	return first, nil
}

// madeFolders lists the folders of roots that rotations have made.
func madeFolders(stateDir string) ([]string, error) {
	all, err := filepath.Glob(filepath.Join(stateDir, rootFolder+"-????????????????"))
	if err != nil {
		return nil, fmt.Errorf("find roots: %w", err)
	}
	return all, nil
}
