package dns

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// An agent has the names that an earlier one has received, until discovery sends others; a damaged file is left aside.
func TestNamesAreSaved(t *testing.T) {
	dir := wait.Folder(t)
	file := filepath.Join(dir, "names.saved")
	conf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 127.0.0.2\nsearch shop.svc.cluster.local\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() (*Server, *wait.Output, func()) {
		var log wait.Output
		s, err := New(Options{
			Address: fmt.Sprintf("127.0.0.1:%d", wait.FreePort(t)), Conf: conf, Saved: file, Self: Self{"shop", "svc.cluster.local"},
			Log: slog.New(slog.NewTextHandler(io.MultiWriter(&log, t.Output()), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		return s, &log, func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	text := func(ip string) []byte {
		return mesh.AppendNameInfo(nil, mesh.NameInfo{Host: "auto.example.com", IPs: ips(ip), Registry: mesh.ExternalRegistry})
	}
	has := func(s *Server, ip string) bool {
		a, ok := s.table.Load().Answer("auto.example.com", false, nil, 0)
		return ok && len(a.IPs) == 1 && a.IPs[0].String() == ip
	}

	s, _, stop := start()
	if n := s.Names(); n.Hosts != 0 || !n.Received.IsZero() || s.table.Load() != nil {
		t.Errorf("at first: %+v", n)
	}
	if err := s.SetNames(text("10.0.0.1")); err != nil || !has(s, "10.0.0.1") || s.Names().Saved {
		t.Errorf("%v, %+v", err, s.Names())
	}
	if err := s.SetNames([]byte("\x0a\xff")); err == nil || !has(s, "10.0.0.1") {
		t.Errorf("an invalid table: %v", err)
	}
	if list := s.NameTable(); len(list) != 1 || list[0].Host != "auto.example.com" {
		t.Errorf("%+v", list)
	}
	wait.Until(t, "the table is saved", func() bool { _, err := os.Stat(file); return err == nil })
	stop()

	s, log, stop := start()
	if n := s.Names(); !n.Saved || n.Hosts != 1 || n.Received.IsZero() || !has(s, "10.0.0.1") || !strings.Contains(log.String(), "earlier agent") {
		t.Errorf("after a restart: %+v", n)
	}
	if err := s.SetNames(text("10.0.0.2")); err != nil || s.Names().Saved || !has(s, "10.0.0.2") {
		t.Errorf("%v, %+v", err, s.Names())
	}
	stop() // what is not saved yet is saved at the end
	saved, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(saved), "10.0.0.2") {
		t.Errorf("%q, %v", saved, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}

	saved[len(saved)-1]++
	if err := os.WriteFile(file, saved, 0o600); err != nil {
		t.Fatal(err)
	}
	s, log, stop = start()
	defer stop()
	if s.table.Load() != nil || !strings.Contains(log.String(), "cannot be used") {
		t.Error("a damaged file is used")
	}
	// A folder that cannot be written harms nothing.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.SetNames(text("10.0.0.3")); err != nil || !has(s, "10.0.0.3") {
		t.Error(err)
	}
	wait.Until(t, "the problem is known", func() bool { return s.Names().Problem != "" })
}

// A flood of names that nobody knows, while no server responds, takes bounded memory, and names of the mesh are answered meanwhile.
func TestFloodOfUnknownNames(t *testing.T) {
	w := newHarness(t, "nameserver 127.0.0.2\noptions timeout:30 attempts:1\n", func(s *Server) { s.table.Store(shopTable()) })
	w.nameServer(2, neverRespond)
	flood := w.dial(overUDP)
	const queries = 5000
	for i := range queries {
		if _, err := flood.Write(newQuery(t, fmt.Sprintf("n%d.example.org.", i), dnsmessage.TypeA, 1232)); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			if m := w.get(overUDP, newQuery(t, "web.shop.", dnsmessage.TypeA, 0)); len(m.Answers) != 1 || !m.Authoritative {
				t.Fatalf("%+v", m)
			}
		}
	}
	wait.Until(t, "queries are waiting", func() bool { return w.s.Stats().Upstream >= maxUDPQueries })
	if n := runtime.NumGoroutine(); n > 6*maxUDPQueries {
		t.Errorf("%d goroutines", n)
	}
	var mem runtime.MemStats
	runtime.GC()
	if runtime.ReadMemStats(&mem); mem.HeapInuse > 40<<20 {
		t.Errorf("%d bytes are in use", mem.HeapInuse)
	}
	if s := w.s.Stats(); s.Answered < queries/100 || s.Upstream > 4*maxUDPQueries {
		t.Errorf("%+v", s)
	}
}
