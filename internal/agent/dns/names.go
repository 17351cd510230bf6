package dns

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/statefile"
)

const (
	// maxTable is the size of the largest table in bytes; maxSaved of the largest that is saved, since the folder may be in memory.
	maxTable, maxSaved = 64 << 20, 16 << 20
	// savedPrefix is the start of a saved table.
	savedPrefix = "pilothouse name table 1 sha256:"
	// saveEvery is the least time between two writes.
	saveEvery = 5 * time.Second
)

// NamesState says which names of the mesh are resolved.
type NamesState struct {
	// Hosts is how many hosts the table has.
	Hosts int `json:"hosts"`
	// Received is when discovery sent the table, or when that was saved; zero if there is none.
	Received time.Time `json:"received,omitzero"`
	// Saved says that the table is from the file of an earlier agent, and discovery has sent none yet.
	Saved bool `json:"saved,omitempty"`
	// Problem is why the table is not saved for the next agent.
	Problem string `json:"problem,omitempty"`
}

// names are the names of the mesh.
type names struct {
	self Self
	path string // where the table is saved; empty for nowhere
	log  *slog.Logger
	// changed has an element if the table is to be saved.
	changed chan struct{}

	mu    sync.Mutex // guards the rest; readers of the table use Server.table
	text  []byte     // of the table
	state NamesState
}

// SetNames replaces the names of the mesh, an encoded message of mesh.NameTableType, which must not be changed afterwards. An error
// changes nothing. Any goroutine may call it.
func (s *Server) SetNames(text []byte) error {
	if len(text) > maxTable {
		return fmt.Errorf("name table of %d bytes: want at most %d", len(text), maxTable)
	}
	list, err := mesh.ParseNameTable(text)
	if err != nil {
		return err
	}
	n := &s.names
	t := NewTable(list, n.self)
	n.mu.Lock()
	defer n.mu.Unlock()
	first := n.state.Received.IsZero() || n.state.Saved
	same := bytes.Equal(text, n.text)
	n.text = text
	n.state = NamesState{Hosts: t.Len(), Received: time.Now(), Problem: n.state.Problem}
	s.table.Store(t)
	if first {
		n.log.Info("names of the mesh are resolved", "hosts", t.Len())
	}
	if !same {
		select {
		case n.changed <- struct{}{}:
		default:
		}
	}
	return nil
}

// Names returns which names are resolved.
func (s *Server) Names() NamesState {
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	return s.names.state
}

// NameTable returns the hosts that are resolved.
func (s *Server) NameTable() []mesh.NameInfo {
	s.names.mu.Lock()
	text := s.names.text
	s.names.mu.Unlock()
	list, _ := mesh.ParseNameTable(text) // it was parsed before
	return list
}

// load reads the table that an earlier agent has saved.
func (s *Server) load() {
	n := &s.names
	if n.path == "" {
		return
	}
	info, err := os.Stat(n.path)
	var text []byte
	if err == nil {
		text, err = statefile.ReadOwn(n.path, maxSaved+int64(len(savedPrefix))+2*sha256.Size+1)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var list []mesh.NameInfo
	if err == nil {
		text, err = decodeSaved(text)
	}
	if err == nil {
		list, err = mesh.ParseNameTable(text)
	}
	if err != nil {
		n.log.Warn("the saved names of the mesh cannot be used: queries are forwarded until discovery has sent the names", "file", n.path, "error", err)
		return
	}
	t := NewTable(list, n.self)
	s.table.Store(t)
	n.text, n.state = text, NamesState{Hosts: t.Len(), Received: info.ModTime(), Saved: true}
	n.log.Info("names of the mesh are resolved as an earlier agent has saved them, until discovery has sent them", "hosts", t.Len(), "saved", info.ModTime().UTC().Format(time.RFC3339))
}

func encodeSaved(text []byte) []byte {
	sum := sha256.Sum256(text)
	return append([]byte(savedPrefix+hex.EncodeToString(sum[:])+"\n"), text...)
}

func decodeSaved(file []byte) ([]byte, error) {
	_, text, ok := bytes.Cut(file, []byte("\n"))
	if !ok || !bytes.Equal(encodeSaved(text), file) {
		return nil, errors.New("want a name table of this version with its checksum: the file was truncated or modified, or another version wrote it")
	}
	return text, nil
}

// save saves each table until ctx ends.
func (s *Server) save(ctx context.Context) {
	n := &s.names
	for n.path != "" {
		select {
		case <-n.changed:
			n.write()
		case <-ctx.Done():
			select {
			case <-n.changed:
				n.write()
			default:
			}
			return
		}
		pause := time.NewTimer(saveEvery)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
}

func (n *names) write() {
	n.mu.Lock()
	text := n.text
	n.mu.Unlock()
	err := fmt.Errorf("%d bytes, want at most %d", len(text), maxSaved)
	if len(text) <= maxSaved {
		err = statefile.Replace(n.path, encodeSaved(text))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case err != nil && n.state.Problem == "":
		n.log.Warn("the names of the mesh cannot be saved for the next agent", "file", n.path, "error", err)
	case err == nil && n.state.Problem != "":
		n.log.Info("the names of the mesh are saved again", "file", n.path)
	}
	if n.state.Problem = ""; err != nil {
		n.state.Problem = err.Error()
	}
}

// answer returns the response to a message from the table; nil if it is not a query of which the table knows the answer.
func (s *Server) answer(msg []byte, t transport) []byte {
	table := s.table.Load()
	if table == nil {
		return nil
	}
	q, code, ok := parseQuery(msg)
	if !ok || code != noError {
		return nil
	}
	name, ipv6, ok := q.question()
	if !ok {
		return nil
	}
	a, ok := table.Answer(name, ipv6, s.up.conf.search(), s.turn.Add(1))
	if !ok {
		return nil
	}
	s.queries.Add(1)
	s.answered.Add(1)
	return q.answered(name, ipv6, a, t)
}
