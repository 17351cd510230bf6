package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilothouse/pilothouse/internal/agent/secret"
	"github.com/pilothouse/pilothouse/internal/agent/upstream"
	"github.com/pilothouse/pilothouse/internal/agent/vm"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/internal/settings"
)

// certify gets the machine's certificate, unless it has one.
func (j *joining) certify(ctx context.Context) error {
	if j.held != nil {
		j.done("the machine has a certificate already, until %s; the token is not used", j.held.NotAfter.UTC().Format(time.RFC3339))
		return nil
	}
	s, err := j.request(ctx)
	if err != nil {
		return err
	}
	if err := j.m.Dirs(vm.CertDir); err != nil {
		return err
	}
	for _, f := range vm.Certificate(s) {
		if err := j.change.Write(f); err != nil {
			return err
		}
	}
	j.done("the CA has issued a certificate, until %s; key and certificate are in %s", s.NotAfter.UTC().Format(time.RFC3339), j.m.Path(vm.CertDir))
	// From here on the machine authenticates by its certificate.
	return j.m.Remove(vm.PendingFile)
}

// pending is the text of vm.PendingFile: the key of a join that has not ended. The CA takes the token again from the same key.
type pending struct {
	Token string `json:"token"` // its hash
	Key   string `json:"key"`
}

// pendingKey returns the key for this token: that of an earlier attempt, or a new one, which is on disk before the token is used.
func (j *joining) pendingKey() ([]byte, error) {
	sum := sha256.Sum256([]byte(j.member.Token))
	token := hex.EncodeToString(sum[:])
	text, err := j.m.Read(vm.PendingFile)
	if err != nil {
		return nil, err
	}
	var p pending
	if text != nil && json.Unmarshal(text, &p) == nil && p.Token == token {
		return []byte(p.Key), nil
	}
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		return nil, err
	}
	encoded, err := pki.EncodeKey(key, false)
	if err != nil {
		return nil, err
	}
	if text, err = json.Marshal(pending{Token: token, Key: string(encoded)}); err != nil {
		return nil, err
	}
	// It outlives a join that fails without an answer, so it is not part of what is undone.
	return encoded, j.m.Change().Write(vm.File{Path: vm.PendingFile, Mode: 0o600, Text: text})
}

// repeats prints why something is tried again, once for each new reason.
type repeats struct {
	out  io.Writer
	last string
}

func (r *repeats) tell(err error) {
	if text := err.Error(); text != r.last {
		r.last = text
		fmt.Fprintf(r.out, "  %s; trying again\n", text)
	}
}

// request asks the CA for a certificate, several times if there is no answer.
func (j *joining) request(ctx context.Context) (*pki.Secret, error) {
	server, clean, err := j.ca()
	if err != nil {
		return nil, err
	}
	defer clean()
	keyText, err := j.pendingKey()
	if err != nil {
		return nil, err
	}
	key, err := pki.ParseKey(keyText)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: remove it", j.m.Path(vm.PendingFile), err)
	}
	csr, err := pki.MakeCSR(key, j.member.Identity)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, j.o.timeout)
	defer cancel()
	client := secret.NewCA([]secret.Upstream{server}, "")
	repeats := repeats{out: j.out}
	for {
		chain, roots, err := client.Sign(ctx, csr, settings.DefaultSecretTTL)
		if err == nil {
			return j.checked(keyText, chain, roots)
		}
		if !unanswered(err) {
			// With this token and key there is nothing to repeat.
			return nil, errors.Join(err, j.m.Remove(vm.PendingFile))
		}
		repeats.tell(err)
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(time.Second):
		}
	}
}

// unanswered reports whether the CA may answer later.
func unanswered(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return true
	}
	return false
}

// checked returns the secret of a response, if it is the certificate that was asked for.
func (j *joining) checked(key, chain, roots []byte) (*pki.Secret, error) {
	// The roots of the response are trusted because those of the token verified the CA that sent them.
	s, err := pki.NewSecret(key, chain, bytes.Join([][]byte{roots, j.member.Roots}, []byte("\n")), time.Now())
	if err != nil {
		return nil, fmt.Errorf("the certificate that the CA has issued: %w", err)
	}
	certs, err := pki.ParseBundle(s.Chain)
	if err != nil {
		return nil, err
	}
	if id, err := pki.IdentityOf(certs[0]); err != nil || id != j.member.Identity {
		return nil, errors.Join(fmt.Errorf("the CA has issued a certificate for %s, want %s", id, j.member.Identity), err)
	}
	return s, nil
}

// ca is the CA of the membership. clean removes the file of its roots.
func (j *joining) ca() (_ *upstream.Server, clean func(), err error) {
	dir, err := os.MkdirTemp("", "pilot-agent-join-")
	if err != nil {
		return nil, nil, err
	}
	clean = func() { _ = os.RemoveAll(dir) }
	roots := filepath.Join(dir, "root-cert.pem")
	if err := os.WriteFile(roots, j.member.Roots, 0o600); err != nil {
		clean()
		return nil, nil, err
	}
	address, name := j.member.CA, j.member.ServerName
	if host, port, err := net.SplitHostPort(address); err == nil {
		// The name is in the hosts file later only.
		for _, h := range j.member.Hosts {
			if h.Name == host {
				address = net.JoinHostPort(h.Address, port)
				if name == "" {
					name = host
				}
			}
		}
	}
	token := j.member.Token
	server, err := upstream.New(upstream.Options{
		Name: "CA", Address: address, RootFile: roots, RootsFrom: "the join token: it is of another mesh, or this one has new roots; get another token", ServerName: name, ClusterID: j.member.ClusterID, Keepalive: 30 * time.Second, KeepaliveTimeout: 10 * time.Second,
		Token: func(context.Context) (string, error) { return token, nil },
	})
	if err != nil {
		clean()
	}
	return server, clean, err
}
