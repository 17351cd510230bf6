package bench_test

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/pilothouse/pilothouse/internal/agent/dns"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// dnsRate is how many queries are sent in a second.
const dnsRate = 5000

// BenchmarkDNS measures how long the agent takes to answer queries for names of a mesh of 10,000 hosts, at 5,000 queries a second, of
// which every hundredth is for a name that is forwarded to a server that does not respond.
func BenchmarkDNS(b *testing.B) {
	conf := filepath.Join(b.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("search shop.svc.cluster.local svc.cluster.local\nnameserver 127.0.0.9\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", wait.FreePort(b))
	s, err := dns.New(dns.Options{Address: address, Conf: conf, Self: dns.Self{Namespace: "shop", Domain: "svc.cluster.local"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	var table []byte
	const hosts = 10_000
	for i := range hosts {
		name := fmt.Sprintf("s%d", i)
		table = mesh.AppendNameInfo(table, mesh.NameInfo{
			Host: name + ".shop.svc.cluster.local", IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Registry: mesh.KubernetesRegistry, Short: name, Namespace: "shop",
		})
	}
	began := time.Now()
	if err := s.SetNames(table); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "ms/table")
	done := make(chan error, 1)
	go func() { done <- s.Run(b.Context()) }()
	c, err := net.Dial("udp", address)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	// The ID of a query is its number modulo 1<<16: no more are open.
	sent := make([]atomic.Int64, 1<<16) // when, since began
	var queries [200][]byte
	for i := range queries {
		name := fmt.Sprintf("s%d.shop.", i*hosts/len(queries))
		if i%100 == 99 {
			name = fmt.Sprintf("unknown%d.example.com.", i)
		}
		m := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
		if queries[i], err = m.Pack(); err != nil {
			b.Fatal(err)
		}
	}
	want := b.N - b.N/100
	var times []time.Duration
	received := make(chan struct{})
	go func() {
		defer close(received)
		buf := make([]byte, 512)
		for len(times) < want {
			if c.SetReadDeadline(time.Now().Add(10*time.Second)) != nil {
				return
			}
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			if n > 12 && buf[3]&0xf == 0 { // not the failure of a name that nobody knows
				times = append(times, time.Since(began)-time.Duration(sent[binary.BigEndian.Uint16(buf)].Load()))
			}
		}
	}()
	b.ResetTimer()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	begin := time.Now()
	for i := 0; i < b.N; {
		<-tick.C
		for due := int(time.Since(begin) * dnsRate / time.Second); i < min(due, b.N); i++ {
			q := queries[i%len(queries)]
			binary.BigEndian.PutUint16(q, uint16(i))
			sent[uint16(i)].Store(int64(time.Since(began)))
			if _, err := c.Write(q); err != nil {
				b.Fatal(err)
			}
		}
	}
	<-received
	b.StopTimer()
	slices.Sort(times)
	if len(times) < want {
		b.Errorf("%d answers to %d queries", len(times), want)
	}
	if len(times) > 0 {
		b.ReportMetric(float64(times[len(times)/2].Microseconds()), "µs-p50")
		b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "µs-p99")
	}
}
