package pki

import (
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// handshake connects a client with a policy to a server, and returns what they agreed on.
func handshake(t *testing.T, p TLSPolicy, server *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	key, err := GenerateKey(ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"a"}}
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	server.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	go func() {
		if c, err := l.Accept(); err == nil {
			_ = tls.Server(c, server).Handshake()
			_ = c.Close()
		}
	}()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "a", RootCAs: Pool([]*x509.Certificate{leaf})}
	p.Apply(config)
	c := tls.Client(a, config)
	err = c.Handshake()
	return c.ConnectionState(), err
}

func TestPolicies(t *testing.T) {
	chacha := []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}
	for _, tt := range []struct {
		name    string
		policy  TLSPolicy
		server  *tls.Config
		version uint16
		curve   tls.CurveID
		fails   bool
	}{
		{"none", "", &tls.Config{}, tls.VersionTLS13, tls.X25519MLKEM768, false},
		{"fips-140-2", FIPS1402, &tls.Config{}, tls.VersionTLS12, tls.CurveP256, false},
		{"fips-140-2 and TLS 1.3 only", FIPS1402, &tls.Config{MinVersion: tls.VersionTLS13}, 0, 0, true},
		{"fips-140-2 and ChaCha20", FIPS1402, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: chacha}, 0, 0, true},
		{"fips-140-2 and X25519", FIPS1402, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, 0, 0, true},
		{"fips-140-3", FIPS1403, &tls.Config{}, tls.VersionTLS13, tls.CurveP256, false},
		{"fips-140-3 and P-384", FIPS1403, &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP384}}, tls.VersionTLS13, tls.CurveP384, false},
		{"fips-140-3 and X25519", FIPS1403, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}, 0, 0, true},
		{"pqc", PQC, &tls.Config{}, tls.VersionTLS13, tls.X25519MLKEM768, false},
		{"pqc and TLS 1.2", PQC, &tls.Config{MaxVersion: tls.VersionTLS12}, 0, 0, true},
		{"pqc and X25519", PQC, &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256}}, 0, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := handshake(t, tt.policy, tt.server)
			if (err != nil) != tt.fails || err == nil && (s.Version != tt.version || s.CurveID != tt.curve) {
				t.Errorf("version %s, curve %s, error %v", tls.VersionName(s.Version), s.CurveID, err)
			}
		})
	}
}

// A server may choose a suite of TLS 1.3 that crypto/tls offers whatever its configuration says.
func TestASuiteThatIsNotPermittedEndsTheConnection(t *testing.T) {
	c := &tls.Config{}
	FIPS1403.Apply(c)
	if err := c.VerifyConnection(tls.ConnectionState{CipherSuite: tls.TLS_CHACHA20_POLY1305_SHA256}); err == nil || !strings.Contains(err.Error(), "fips-140-3 does not permit") {
		t.Errorf("error %v", err)
	}
	if err := c.VerifyConnection(tls.ConnectionState{CipherSuite: tls.TLS_AES_256_GCM_SHA384}); err != nil {
		t.Error(err)
	}
}
