package discovery

import (
	"crypto/tls"
	"testing"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// Proxies of a revision connect to its Service, istiod-REVISION.
func TestSecurePortHasTheNameOfTheRevision(t *testing.T) {
	for revision, name := range map[string]string{"canary": "istiod-canary.istio-system.svc", "default": "istiod.istio-system.svc", "": "istiod.istio-system.svc"} {
		p := start(t, func(o *Options) { o.Names.Revision = revision })
		c, err := tls.Dial("tcp", p.addr.SecureGRPC, &tls.Config{RootCAs: pki.Pool(p.server.authority.State().Roots), ServerName: name})
		if err != nil {
			t.Errorf("revision %q: %v", revision, err)
			continue
		}
		_ = c.Close()
	}
}
