package discovery

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/policy"
	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// rotate asks for a rotation, and returns the status and the body of the answer.
func (p *plane) rotate() (int, string) {
	p.t.Helper()
	resp, err := http.Post("http://"+p.addr.HTTP+"/debug/ca/rotate", jsonType, strings.NewReader("{}"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// issue has the CA sign a certificate.
func (p *plane) issue() {
	p.t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.root()))
	creds := credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "istiod.istio-system.svc"})
	if code := p.certificateCode(p.addr.SecureGRPC, creds); code != codes.OK {
		p.t.Fatalf("no certificate: %s", code)
	}
}

func rootOf(i *policy.Issuer) rotation.Root {
	return rotation.Root{ID: pki.Fingerprint(i.Root()), NotBefore: i.Root().NotBefore, NotAfter: i.Root().NotAfter}
}

// A rotation that cannot begin now is a conflict, with the reason: one is in progress, or too many roots are trusted.
func TestARotationThatCannotBeginIsAConflict(t *testing.T) {
	p := start(t)
	p.issue() // otherwise nothing waits for the new root
	if code, body := p.rotate(); code != http.StatusOK {
		t.Fatalf("the first: %d %s", code, body)
	}
	if code, body := p.rotate(); code != http.StatusConflict || !strings.Contains(body, "a rotation of the root is in progress") {
		t.Errorf("during a rotation: %d %s", code, body)
	}

	dir, now := wait.Folder(t), time.Now()
	a, err := ca.OpenRoot(dir, "cluster.local", 0, "")
	if err != nil {
		t.Fatal(err)
	}
	state := rotation.State{Signer: rootOf(a.State().Issuer)}
	for range rotation.MaxTrusted - 1 {
		old, err := policy.NewRoot("cluster.local", "", pki.Validity{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		key, err := old.KeyPEM()
		if err != nil {
			t.Fatal(err)
		}
		folder := filepath.Join(dir, "ca-"+rootOf(old).ID[:16])
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string][]byte{"ca-cert.pem": pki.EncodeCerts(old.Root()), "ca-key.pem": key} {
			if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		state.Retired = append(state.Retired, rotation.Retired{Root: rootOf(old), Until: now.Add(time.Hour)})
	}
	text, err := json.Marshal(struct {
		Version int `json:"version"`
		rotation.State
	}{1, state})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca-rotation.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	p = start(t, func(o *Options) { o.StateDir = dir })
	code, body := p.rotate()
	if want := fmt.Sprintf("%d roots are trusted, the maximum: want the oldest to end first", rotation.MaxTrusted); code != http.StatusConflict || !strings.Contains(body, want) {
		t.Errorf("with as many roots as can be trusted: %d %s, want %d %s", code, body, http.StatusConflict, want)
	}
}
