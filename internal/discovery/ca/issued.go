package ca

import (
	"context"
	"crypto/x509"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// maxIssued bounds how many certificates are remembered; of more, any is forgotten.
const maxIssued = 100_000

// Issued is the newest certificate of an identity that was issued to a caller at an address.
type Issued struct {
	Identity, Address   string
	NotBefore, NotAfter time.Time
}

// issued remembers the newest certificates. It is safe for concurrent use.
type issued struct {
	mu  sync.Mutex
	all map[[2]string]Issued // by identity and address
}

// note remembers a certificate.
func (i *issued) note(ctx context.Context, id mesh.Identity, cert *x509.Certificate) {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		host = p.Addr.String()
	}
	e := Issued{id.SPIFFE(), host, cert.NotBefore, cert.NotAfter}
	key := [2]string{e.Identity, e.Address}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.all == nil {
		i.all = map[[2]string]Issued{}
	}
	if _, has := i.all[key]; !has && len(i.all) >= maxIssued {
		for k := range i.all {
			delete(i.all, k)
			break
		}
	}
	i.all[key] = e
}

// Issued returns the newest certificates that have not ended, in order of identity and address; it forgets the others. Those that
// were issued before the process started are not known. Any goroutine may call it.
func (s *Server) Issued(now time.Time) []Issued {
	i := &s.issued
	i.mu.Lock()
	defer i.mu.Unlock()
	out := make([]Issued, 0, len(i.all))
	for k, e := range i.all {
		if now.After(e.NotAfter) {
			delete(i.all, k)
			continue
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Issued) int {
		return strings.Compare(a.Identity+"\x00"+a.Address, b.Identity+"\x00"+b.Address)
	})
	return out
}
