package secret

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// crlOf is a revocation list of the CA.
func crlOf(t *testing.T, ca *fakeCA, number int64) []byte {
	t.Helper()
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		Number: big.NewInt(number), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour),
	}, ca.root, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

func TestRevocationList(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ca-crl.pem")
	synctest.Test(t, func(t *testing.T) {
		ca := newFakeCA(t)
		one, two := crlOf(t, ca, 1), crlOf(t, ca, 2)
		put(t, dir, map[string][]byte{"ca-crl.pem": []byte("damaged")})
		c := NewCRL(path, watcher(t), quiet)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		defer func() { cancel(); <-done }()
		for _, step := range []struct {
			what  string
			text  []byte // nil: the file is removed
			known bool
			want  []byte
		}{
			{"damaged", []byte("damaged"), false, nil},
			{"a first list", one, true, one},
			{"a second list", two, true, two},
			{"half of a list", one[:len(one)/2], true, two},
			{"two lists with text between them", append(append(bytes.Clone(one), "text\n"...), two...), true, append(bytes.Clone(one), two...)},
			{"removed", nil, true, nil},
		} {
			var err error
			if step.text == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, step.text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			pass(5 * time.Second)
			got, known, _ := c.Current()
			if known != step.known || !bytes.Equal(got, step.want) {
				t.Errorf("%s: known %v, want %v; %d bytes, want %d", step.what, known, step.known, len(got), len(step.want))
			}
		}
	})
}
