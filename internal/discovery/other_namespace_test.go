package discovery

import (
	"net/http"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A token of one namespace with a node id that ends in another is refused. It is neither listed nor found as a proxy of
// the other namespace.
func TestAProxyIsNotListedInAnotherNamespace(t *testing.T) {
	p := start(t)
	p.emit(claimed, true)
	for _, domain := range []string{"shop", "bank"} {
		err := p.join("default", "sidecar~10.99.0.8~far-1.bank~"+domain+".svc.cluster.local", "")
		if status.Code(err) != codes.PermissionDenied && status.Code(err) != codes.InvalidArgument {
			t.Errorf("with the DNS domain of %s: %v, want it refused", domain, err)
		}
	}
	if list := p.sync(); len(list) > 0 {
		t.Errorf("listed: %+v", list)
	}
	if code, body := p.get(p.addr.HTTP, "/debug/config_dump?proxyID=far-1.bank"); code != http.StatusNotFound {
		t.Errorf("found: %d %s", code, body)
	}
}
