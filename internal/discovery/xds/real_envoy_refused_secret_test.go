package xds

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"maps"
	bigint "math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"golang.org/x/crypto/ocsp"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/test/wait"
)

// chest has Secrets by name. What Envoy gets is what they have, whether or not it can be used.
type chest map[string]*credentials.Credential

func (c chest) Changed() <-chan struct{} { return make(chan struct{}) }

func (c chest) Want(credentials.Caller) func() { return func() {} }

func (c chest) Get(_ credentials.Caller, n credentials.Name) credentials.Answer {
	one := c[n.Secret]
	if one == nil || n.CA && one.CA == nil {
		return credentials.Answer{State: credentials.Missing}
	}
	return credentials.Answer{State: credentials.Found, Credential: one}
}

// tlsListener ends TLS with a secret's certificate, and verifies clients with its CA if withCA is set.
func tlsListener(t *testing.T, name string, withCA bool) *Resource {
	sds := func(name string) *tlsv3.SdsSecretConfig { return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: ads()} }
	common := &tlsv3.CommonTlsContext{TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sds(credentials.Prefix + name)}}
	if withCA {
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: sds(credentials.Prefix + name + credentials.CASuffix)}
	}
	return NewResource(LDS, name, encode(t, &listenerv3.Listener{Name: name, Address: address(0), FilterChains: []*listenerv3.FilterChain{{
		Filters: []*listenerv3.Filter{{Name: "envoy.filters.network.tcp_proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, &tcpproxyv3.TcpProxy{
			StatPrefix: name, ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: "web"},
		})}}},
		TransportSocket: &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{
			TypedConfig: pack(t, &tlsv3.DownstreamTlsContext{CommonTlsContext: common}),
		}},
	}}}))
}

// secretWith returns a Secret with a self-signed certificate, which change changes.
func secretWith(t *testing.T, key crypto.Signer, change func(c *x509.Certificate)) map[string][]byte {
	t.Helper()
	of := &x509.Certificate{SerialNumber: bigint.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "a"}, DNSNames: []string{"a.example.com"}, NotAfter: time.Now().Add(time.Hour)}
	if change != nil {
		change(of)
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	text, err2 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text}),
	}
}

// secretsOfAllKinds are Secrets that have what people put there, right and wrong, by name.
func secretsOfAllKinds(t *testing.T) map[string]map[string][]byte {
	t.Helper()
	ec := func(c elliptic.Curve) crypto.Signer { k, _ := ecdsa.GenerateKey(c, rand.Reader); return k }
	rsaKey := func(bits int) crypto.Signer { k, _ := rsa.GenerateKey(rand.Reader, bits); return k }
	_, edwards, _ := ed25519.GenerateKey(rand.Reader)
	plain := func() map[string][]byte { return secretWith(t, ec(elliptic.P256()), nil) }
	with := func(key, value string) map[string][]byte { s := plain(); s[key] = []byte(value); return s }
	must := func(c *x509.Certificate) {
		c.ExtraExtensions = []pkix.Extension{{Id: []int{1, 3, 6, 1, 5, 5, 7, 1, 24}, Value: []byte{0x30, 0x03, 0x02, 0x01, 0x05}}}
	}
	staple := func(of map[string][]byte, serial *bigint.Int, thisUpdate time.Time) []byte {
		pair, err := tls.X509KeyPair(of["tls.crt"], of["tls.key"])
		if err != nil {
			t.Fatal(err)
		}
		if serial == nil {
			serial = pair.Leaf.SerialNumber
		}
		out, err := ocsp.CreateResponse(pair.Leaf, pair.Leaf, ocsp.Response{Status: ocsp.Good, SerialNumber: serial, ThisUpdate: thisUpdate, NextUpdate: thisUpdate.Add(time.Hour)}, pair.PrivateKey.(crypto.Signer))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	all := map[string]map[string][]byte{
		"p256": plain(), "p384": secretWith(t, ec(elliptic.P384()), nil), "p521": secretWith(t, ec(elliptic.P521()), nil),
		"p224": secretWith(t, ec(elliptic.P224()), nil), "rsa1024": secretWith(t, rsaKey(1024), nil), "rsa2048": secretWith(t, rsaKey(2048), nil),
		"rsa3072": secretWith(t, rsaKey(3072), nil), "ed25519": secretWith(t, edwards, nil),
		"expired":    secretWith(t, ec(elliptic.P256()), func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) }),
		"notyet":     secretWith(t, ec(elliptic.P256()), func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }),
		"noname":     secretWith(t, ec(elliptic.P256()), func(c *x509.Certificate) { c.DNSNames, c.Subject = nil, pkix.Name{} }),
		"muststaple": secretWith(t, ec(elliptic.P256()), must),
		"ocspjunk":   with("tls.ocsp-staple", "junk"), "crljunk": with("ca.crl", "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n"),
		"clientonly": secretWith(t, ec(elliptic.P256()), func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }),
	}
	all["crljunk"]["ca.crt"] = all["crljunk"]["tls.crt"]
	all["mustandstapled"] = secretWith(t, ec(elliptic.P256()), must)
	all["mustandstapled"]["tls.ocsp-staple"] = staple(all["mustandstapled"], nil, time.Now())
	for name, thisUpdate := range map[string]time.Time{"stapled": time.Now(), "ocspexpired": time.Now().Add(-10 * time.Hour), "ocspfuture": time.Now().Add(10 * time.Hour)} {
		all[name] = plain()
		all[name]["tls.ocsp-staple"] = staple(all[name], nil, thisUpdate)
	}
	all["ocspother"] = plain()
	all["ocspother"]["tls.ocsp-staple"] = staple(all["ocspother"], bigint.NewInt(1), time.Now())
	for name, more := range map[string]string{
		"chaintext": "# a comment\n", "chainjunk": "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n", "chaincut": "-----BEGIN CERTIFICATE-----\nMIIB",
		"chainbase64": "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n", "chainkey": string(all["p256"]["tls.key"]), "chaintwice": string(all["p256"]["tls.crt"]),
	} {
		all[name] = plain()
		all[name]["tls.crt"] = append(all[name]["tls.crt"], more...)
	}
	for name, ca := range map[string]string{
		"ca": string(all["p256"]["tls.crt"]), "catwice": strings.Repeat(string(all["p256"]["tls.crt"]), 2), "catext": "# a comment\n" + string(all["p256"]["tls.crt"]) + "# another\n",
		"cajunk": string(all["p256"]["tls.crt"]) + "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n", "caexpired": string(all["expired"]["tls.crt"]),
		"canone": "x", "ca1024": string(all["rsa1024"]["tls.crt"]),
	} {
		all[name] = plain()
		all[name]["ca.crt"] = []byte(ca)
	}
	return all
}

// TestRealEnvoyTakesWhatIsRead gives Envoy Secrets that it can serve and Secrets that it cannot. None that it refuses is one that package
// credentials reads, so that the last good one of its name stays, and none of them keeps the others from being served.
func TestRealEnvoyTakesWhatIsRead(t *testing.T) {
	all := secretsOfAllKinds(t)
	eachFlavour(t, func(t *testing.T, api string) {
		secrets := chest{}
		v := firstView(t, backend(t, "a"))
		for name, data := range all {
			secrets[name] = &credentials.Credential{Chain: data["tls.crt"], Key: data["tls.key"], CA: data["ca.crt"], CRL: data["ca.crl"], OCSP: data["tls.ocsp-staple"], Version: "1"}
			v = v.put(tlsListener(t, name, data["ca.crt"] != nil))
		}
		r := newRigWith(t, api, v, secrets)
		served := func(name string) (err error) {
			conn, err := net.Dial("tcp", r.listening(name))
			if err != nil {
				return err
			}
			defer conn.Close()
			got := false
			client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error { got = true; return nil }})
			if err := client.Handshake(); !got {
				return err
			}
			return nil
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if _, err := credentials.Parse(all[name]); err != nil {
				t.Logf("%s is not read: %v", name, err)
				if slices.Contains(usable, name) {
					t.Errorf("%s can be used and is not read: %v", name, err)
				}
				continue
			}
			if !slices.Contains(usable, name) {
				t.Errorf("%s is read: want it in the list of the usable ones, or an error", name)
			}
			wait.Until(t, "the server of "+name+" serves", func() bool { return served(name) == nil })
		}
	})
}

// usable are the Secrets that Envoy serves.
var usable = []string{
	"ca", "ca1024", "caexpired", "catext", "catwice", "chainkey", "chaintext", "chaintwice", "clientonly", "ed25519", "expired", "mustandstapled", "notyet",
	"ocspexpired", "ocspfuture", "p256", "p384", "p521", "rsa2048", "rsa3072", "stapled",
}
