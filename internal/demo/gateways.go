package demo

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/pki"
)

const (
	ingress     = "60-ingress.yaml"
	certificate = "65-certificate.yaml"
	egress      = "61-egress.yaml"
	// ingressHost and ingressPort are those of the gateway's HTTPS server, newsHost the service outside.
	ingressHost = "bookshop.example.com"
	ingressPort = "8443"
	newsHost    = "news.example.com"
	// fewer requests than many: what is compared is none with some.
	some = 200
	// startBound is the longest time until a gateway serves.
	startBound = 30 * time.Second
)

// authority issues certificates to the ingress gateway, as one on the internet would.
type authority struct {
	root *x509.Certificate
	key  crypto.Signer
}

func newAuthority(now time.Time) (*authority, error) {
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		return nil, fmt.Errorf("make an authority for the gateway's certificate: %w", err)
	}
	term := pki.Validity{NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour)}
	root, err := pki.Sign(pki.RootTemplate("example.com", term), nil, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make an authority for the gateway's certificate: %w", err)
	}
	return &authority{root, key}, nil
}

// secret is a Secret with a new certificate for a host, as YAML, and the certificate's serial number.
func (a *authority) secret(namespace, name, host string) (text string, serial *big.Int, err error) {
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		return "", nil, fmt.Errorf("issue the gateway's certificate: %w", err)
	}
	term := pki.Validity{NotBefore: a.root.NotBefore, NotAfter: a.root.NotAfter}
	cert, err := pki.Sign(pki.ServerTemplate([]string{host}, term), a.root, key.Public(), a.key)
	if err != nil {
		return "", nil, fmt.Errorf("issue the gateway's certificate: %w", err)
	}
	keyText, err := pki.EncodeKey(key, true)
	if err != nil {
		return "", nil, fmt.Errorf("issue the gateway's certificate: %w", err)
	}
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\n  namespace: %s\ntype: kubernetes.io/tls\ndata:\n  tls.crt: %s\n  tls.key: %s\n",
		name, namespace, encode(pki.EncodeCerts(cert)), encode(keyText)), cert.SerialNumber, nil
}

// writeCertificate writes the ingress gateway's Secret with a new certificate, if the mesh has one.
func (d *demo) writeCertificate() (file string, serial *big.Int, err error) {
	if _, err := os.Stat(filepath.Join(d.config, ingress)); errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	text, serial, err := d.authority.secret("bookshop", "bookshop-certificate", ingressHost)
	if err != nil {
		return "", nil, err
	}
	file = filepath.Join(d.config, certificate)
	return file, serial, write(file, []byte(text), 0o600)
}

// to makes all connections to one address, whatever the name.
type to struct {
	meshup.Dialer
	addr string
}

// Dial implements meshup.Dialer.
func (t to) Dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return t.Dialer.Dial(ctx, network, t.addr)
}

// handshake makes a TLS connection to the ingress gateway and returns the serial number of its certificate, which is valid.
func (d *demo) handshake(ctx context.Context, from meshup.Dialer) (*big.Int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	raw, err := from.Dial(ctx, "tcp", "")
	if err != nil {
		return nil, err
	}
	defer func() { _ = raw.Close() }()
	c := tls.Client(raw, d.tlsConfig())
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	// Closed in order, so that Envoy counts no error.
	if end, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(end)
	}
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, c)
	return c.ConnectionState().PeerCertificates[0].SerialNumber, nil
}

func (d *demo) tlsConfig() *tls.Config {
	return &tls.Config{RootCAs: pki.Pool([]*x509.Certificate{d.authority.root}), ServerName: ingressHost, MinVersion: tls.VersionTLS12}
}

// ingress makes requests from a Pod without a sidecar, so with no identity and no way in but the gateway.
func (d *demo) ingress(ctx context.Context) error {
	legacy, err := d.pod("legacy")
	if err != nil {
		return err
	}
	gateway, err := d.pod("ingress")
	if err != nil {
		return err
	}
	from := to{legacy.From, net.JoinHostPort(gateway.IP.String(), ingressPort)}
	err = meshup.Await(ctx, startBound, "the ingress gateway has its certificate", func(ctx context.Context) error {
		_, err := d.handshake(ctx, from)
		return err
	})
	if err != nil {
		return err
	}
	client := meshup.Client(from, workers)
	client.Transport.(*http.Transport).TLSClientConfig = d.tlsConfig()
	// What calls productpage is the gateway, as whom productpage knows it.
	d.use(newLoad("ingress", "https://"+ingressHost+":"+ingressPort+"/", client))
	return d.counted(ctx, func() error {
		d.load.send(ctx, some, nil)
		t := d.load.snapshot()
		d.check("no request failed", noFailure(t))
		d.check("each call had the identity of its caller, the first one the gateway's", identities(t))
		var took time.Duration
		var renewed error
		err := d.load.during(ctx, func() (err error) {
			took, renewed, err = d.renew(ctx, from)
			return err
		})
		if err != nil {
			return err
		}
		d.check(fmt.Sprintf("new connections get the new certificate %d ms after the Secret was replaced", took.Milliseconds()), renewed)
		d.check("no request failed meanwhile", noFailure(d.load.snapshot()))
		return nil
	})
}

// renew replaces the certificate in the Secret and waits until the gateway uses it. Renewed is why it does not.
func (d *demo) renew(ctx context.Context, from meshup.Dialer) (took time.Duration, renewed, err error) {
	if err := d.awaitSent(ctx, 50); err != nil {
		return 0, nil, err
	}
	file, serial, err := d.writeCertificate()
	if err != nil {
		return 0, nil, err
	}
	began := time.Now()
	if err := d.mesh.Applied(ctx, file); err != nil {
		return 0, nil, err
	}
	renewed = meshup.Await(ctx, d.o.EditBound, "the ingress gateway has the new certificate", func(ctx context.Context) error {
		have, err := d.handshake(ctx, from)
		if err == nil && have.Cmp(serial) != 0 {
			err = errors.New("it has the old one")
		}
		return err
	})
	return time.Since(began), renewed, d.awaitSent(ctx, 50)
}

// egress makes requests to a service outside.
func (d *demo) egress(ctx context.Context) error {
	shopper, err := d.pod("shopper")
	if err != nil {
		return err
	}
	page, err := d.pod("productpage")
	if err != nil {
		return err
	}
	gateway, err := d.pod("egress")
	if err != nil {
		return err
	}
	news, err := d.pod("news")
	if err != nil {
		return err
	}
	// Where a client finds the host; capture and routes decide where its requests go.
	address := net.JoinHostPort(news.IP.String(), "80")
	const target = "http://" + newsHost + "/"
	hops := []hop{{"news", []string{"news"}}}
	// Gateways may still be getting their certificates when the mesh has started.
	err = meshup.Await(ctx, startBound, "the egress gateway serves", func(ctx context.Context) error {
		_, err := meshup.Post(ctx, meshup.Client(to{shopper.From, address}, 0), target, nil)
		return err
	})
	if err != nil {
		return err
	}
	d.use(newLoad("shopper", target, meshup.Client(to{shopper.From, address}, workers)))
	err = d.countedAt(ctx, hops, func() error {
		before, err := passed(ctx, gateway)
		if err != nil {
			return err
		}
		d.load.send(ctx, some, nil)
		t := d.load.snapshot()
		d.check("no request failed", noFailure(t))
		after, err := passed(ctx, gateway)
		if err == nil && after-before != some {
			err = fmt.Errorf("%d of %d did", after-before, some)
		}
		d.check("each passed the egress gateway", err)
		d.check("the gateway knew the shopper", identities(t))
		return nil
	})
	if err != nil {
		return err
	}
	client := meshup.Client(to{page.From, address}, 0)
	ask := func(ctx context.Context) error {
		_, err := meshup.Post(ctx, client, target, nil)
		return err
	}
	served, err := d.served(ctx, hops)
	if err != nil {
		return err
	}
	refused := ask(ctx)
	after, err := d.served(ctx, hops)
	switch {
	case err != nil:
	case refused == nil:
		err = errors.New("it is answered")
	case !strings.Contains(refused.Error(), "status 403"):
		err = refused
	case after[0] != served[0]:
		err = errors.New("its request arrived")
	}
	d.check("productpage, which no policy allows to, gets no request out: status 403", err)
	const allowed = "cluster.local/ns/bookshop/sa/shopper"
	began := time.Now()
	if err := d.edit(ctx, egress, "["+allowed+"]", "["+allowed+", cluster.local/ns/bookshop/sa/productpage]"); err != nil {
		return err
	}
	err = meshup.Await(ctx, d.o.EditBound, "productpage is answered", ask)
	d.check(fmt.Sprintf("it is answered %d ms after the policy's edit", time.Since(began).Milliseconds()), err)
	return nil
}

// passed is how many requests have passed a gateway to the service outside.
func passed(ctx context.Context, gateway Pod) (int64, error) {
	page, err := gateway.Admin(ctx, "/clusters")
	if err != nil {
		return 0, err
	}
	return requestsTo(string(page), "outbound|80||"+newsHost)
}

// requestsTo adds up the requests to the endpoints of a cluster in Envoy's page /clusters, which has lines such as
// name::10.0.0.1:80::rq_total::7. These are counted whatever statistics the proxy is to have.
func requestsTo(page, cluster string) (int64, error) {
	sum, found := int64(0), false
	for l := range strings.SplitSeq(page, "\n") {
		parts := strings.Split(l, "::")
		if len(parts) != 4 || parts[0] != cluster || parts[2] != "rq_total" {
			continue
		}
		n, err := strconv.ParseInt(parts[3], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read Envoy's clusters: %q: %w", l, err)
		}
		sum, found = sum+n, true
	}
	if !found {
		return 0, fmt.Errorf("read Envoy's clusters: %s has no endpoint", cluster)
	}
	return sum, nil
}
