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

	"golang.org/x/sync/semaphore"

	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
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

// Folder is a Store in the state folder, for all instances that share it. Create one with NewFolder.
type Folder struct {
	stateDir string
	instance string

	// changing serialises the goroutines of this process, for which the lock would be polled. No mutex: the
	// one that has it may wait for another process.
	changing *semaphore.Weighted

	reports sync.Mutex
	left    bool // guarded by reports: this instance has ended
}

// storedState is the contents of the rotation's file.
type storedState struct {
	Version int `json:"version"`
	rotation.State
}

// Versions of the file's format. A state without a plugged-in CA has the first one, which earlier programs read.
const (
	storedVersion        = 1
	storedVersionPlugged = 2
)

// NewFolder returns the Store in a state folder. The folder is made when something is stored.
func NewFolder(stateDir string) *Folder {
	return &Folder{stateDir: stateDir, instance: strings.ToLower(rand.Text()), changing: semaphore.NewWeighted(1)}
}

// String returns the path of the folder.
func (s *Folder) String() string { return s.stateDir }

// First implements Store.
func (s *Folder) First(_ context.Context, create func() (StoredRoot, error)) (StoredRoot, error) {
	statefile.Sweep(s.stateDir, rootFolder)
	dir, err := signerFolder(s.stateDir, time.Now())
	if err != nil {
		return StoredRoot{}, err
	}
	// An empty folder is as good as none, such as one that was created to mount something there.
	if entries, err := os.ReadDir(dir); filepath.Base(dir) == rootFolder && (os.IsNotExist(err) || err == nil && len(entries) == 0) {
		if create == nil {
			return StoredRoot{}, nil
		}
		made, err := create()
		if err != nil {
			return StoredRoot{}, err
		}
		if err := createFolder(s.stateDir, rootFolder, made); err != nil {
			return StoredRoot{}, err
		}
	}
	return readRoot(dir, false)
}

func createFolder(stateDir, name string, root StoredRoot) error {
	files := map[string][]byte{rootCert: root.Cert}
	if len(root.Key) > 0 {
		files[rootKey] = root.Key
	}
	return statefile.CreateOnce(stateDir, name, files)
}

// add stores a root, unless it is there.
func (s *Folder) add(root StoredRoot) error {
	certs, err := pki.ParseBundle(root.Cert)
	if err != nil {
		return err
	}
	id := pki.Fingerprint(certs[0])
	if has, err := readRoot(folderOf(s.stateDir, id), len(root.Key) == 0); err == nil {
		if certs, err := pki.ParseBundle(has.Cert); err == nil && pki.Fingerprint(certs[0]) == id {
			return nil
		}
	}
	return createFolder(s.stateDir, madeFolder(id), root)
}

// Root implements Store.
func (s *Folder) Root(_ context.Context, root rotation.Root) (StoredRoot, error) {
	return readRoot(folderOf(s.stateDir, root.ID), root.Plugged)
}

// readRoot reads the root in a folder, without its key if it is plugged in.
func readRoot(dir string, plugged bool) (StoredRoot, error) {
	out := StoredRoot{CertAt: filepath.Join(dir, rootCert), KeyAt: filepath.Join(dir, rootKey), Remedy: "remove " + dir}
	var err error
	if out.Cert, err = statefile.ReadPublic(out.CertAt); err != nil {
		return StoredRoot{}, fmt.Errorf("read root certificate: %w", err)
	}
	if plugged {
		return out, nil
	}
	if out.Key, err = statefile.ReadPrivate(out.KeyAt); err != nil {
		return StoredRoot{}, fmt.Errorf("read root key: %w", err)
	}
	return out, nil
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
	s, err := DecodeRotation(text)
	if err != nil {
		return rotation.State{}, false, fmt.Errorf("read the state of the root's rotation: %s: %w; restore it from a copy", path, err)
	}
	return s, true, nil
}

// EncodeRotation returns the state of a rotation as a Store keeps it.
func EncodeRotation(s rotation.State) ([]byte, error) {
	version := storedVersion
	if s.HasPlugged() {
		version = storedVersionPlugged
	}
	text, err := json.MarshalIndent(storedState{Version: version, State: s}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the state of the root's rotation: %w", err)
	}
	return append(text, '\n'), nil
}

// DecodeRotation decodes what EncodeRotation has encoded.
func DecodeRotation(text []byte) (rotation.State, error) {
	var s storedState
	if err := json.Unmarshal(text, &s); err != nil {
		return rotation.State{}, fmt.Errorf("parse the state: %w", err)
	}
	if s.Version != storedVersion && s.Version != storedVersionPlugged || len(s.Signer.ID) != sha256Digits {
		return rotation.State{}, fmt.Errorf("version %d, want %d or %d, with the root that signs", s.Version, storedVersion, storedVersionPlugged)
	}
	return s.State, nil
}

const sha256Digits = 64

// Change implements Store.
func (s *Folder) Change(ctx context.Context, f func(old rotation.State, found bool) (*StoreChange, error)) error {
	if err := s.changing.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("change the state of the root's rotation: %w", err)
	}
	defer s.changing.Release(1)
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
	if found {
		if err := s.removeFolders(old); err != nil {
			return err
		}
	}
	next, err := f(old, found)
	if err != nil || next == nil {
		return err
	}
	if !found && next.State.HasPlugged() {
		// Their folders would be taken for those of roots that are not trusted any more.
		if made, err := madeFolders(s.stateDir); err != nil || len(made) > 0 {
			return errors.Join(err, missingState(s.stateDir))
		}
	}
	for _, root := range next.Added {
		if err := s.add(root); err != nil {
			return err
		}
	}
	text, err := EncodeRotation(next.State)
	if err != nil {
		return err
	}
	if err := statefile.Replace(filepath.Join(s.stateDir, rotationFile), text); err != nil {
		return fmt.Errorf("change the state of the root's rotation: %w", err)
	}
	return nil
}

func (s *Folder) reportPath() string {
	return filepath.Join(s.stateDir, instancesFolder, s.instance+reportSuffix)
}

// Report implements Store.
func (s *Folder) Report(_ context.Context, r rotation.Report) error {
	s.reports.Lock()
	defer s.reports.Unlock()
	if s.left {
		return nil
	}
	r.Instance = s.instance
	text, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(filepath.Join(s.stateDir, instancesFolder), 0o700)
	}
	if err == nil {
		err = statefile.Replace(s.reportPath(), text)
	}
	if err != nil {
		return fmt.Errorf("report to the other instances: %w", err)
	}
	return nil
}

// Leave implements Store.
func (s *Folder) Leave(context.Context) error {
	s.reports.Lock()
	defer s.reports.Unlock()
	s.left = true
	if err := os.Remove(s.reportPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("report to the other instances: %w", err)
	}
	return nil
}

// Reports implements Store.
func (s *Folder) Reports(_ context.Context, now time.Time) ([]rotation.Report, error) {
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
		if root, ok := FirstOf(s, now); ok {
			return folderOf(stateDir, root.ID), nil
		}
		return first, nil
	}
	if made, err := madeFolders(stateDir); err != nil || len(made) == 0 {
		return first, err
	}
	if _, err := os.Lstat(first); errors.Is(err, fs.ErrNotExist) {
		return "", missingState(stateDir)
	}
	return first, nil
}

// FirstOf returns the self-signed root of a state that Store.First returns, false if there is none.
func FirstOf(s rotation.State, now time.Time) (rotation.Root, bool) {
	for _, root := range s.Signers() {
		if !root.Plugged && now.Before(root.NotAfter) {
			return root, true
		}
	}
	return s.Signer, !s.Signer.Plugged
}

func missingState(stateDir string) error {
	return fmt.Errorf("state folder %s has rotated roots, and %s is missing, which says which of them signs: restore it from a copy", stateDir, rotationFile)
}

// madeFolders lists the folders of roots that rotations have made.
func madeFolders(stateDir string) ([]string, error) {
	all, err := filepath.Glob(filepath.Join(stateDir, rootFolder+"-????????????????"))
	if err != nil {
		return nil, fmt.Errorf("find roots: %w", err)
	}
	return all, nil
}

// removeFolders removes the folders of roots that the stored state does not trust any more, with their
// keys, and those of rotations that were interrupted before they were stored.
func (s *Folder) removeFolders(state rotation.State) error {
	made, err := madeFolders(s.stateDir)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, t := range state.Trusted() {
		keep[folderOf(s.stateDir, t.ID)] = true
	}
	for _, dir := range append(made, filepath.Join(s.stateDir, rootFolder)) {
		if keep[dir] || filepath.Base(dir) == rootFolder && !readable(filepath.Join(dir, rootCert)) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove a root that is not trusted any more: %w", err)
		}
	}
	return nil
}

// readable reports whether a root can be read. One that cannot be was never trusted, and is left alone.
func readable(cert string) bool {
	_, err := statefile.ReadPublic(cert)
	return err == nil
}
