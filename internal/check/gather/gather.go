// Package gather finds out the facts that checks decide about: by the API server of a cluster, and by the pages and ports of the control plane.
//
// It changes nothing: objects are created as a dry run only, so that webhooks are called and nothing is stored. A fact that
// cannot be found out has the error instead.
package gather

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/check"
	"github.com/pilothouse/pilothouse/internal/finding"
	"github.com/pilothouse/pilothouse/internal/printable"
)

const (
	// timeout bounds each question.
	timeout = 15 * time.Second
	// atOnce is how many questions are asked at a time.
	atOnce = 16
	// maxPage bounds an answer of the control plane, in bytes; maxSaid what is shown of one that is an error.
	maxPage = 256 << 20
	maxSaid = 400
)

// Replica is one pilot-discovery.
type Replica struct {
	// Name is that of its Pod, or its address.
	Name string
	// Base is the URL of its pages for Client.
	Base   string
	Client *http.Client
	// Dial connects to a port of it; nil if only its pages can be reached.
	Dial func(ctx context.Context, port uint16) (net.Conn, error)
}

// Options say what is asked.
type Options struct {
	// Namespace and Revision are those of the control plane; Version is that of this program.
	Namespace, Revision, Version string
	Replicas                     []Replica
	// Unlisted is why Replicas are not known; nil if they are.
	Unlisted error
	// Config and Client are those of the cluster; nil without one.
	Config *rest.Config
	Client kubernetes.Interface
}

// Facts finds out what the checks of a situation need. It returns within some timeouts, whatever happens.
func Facts(ctx context.Context, o Options, s check.Situation) *check.Facts {
	g := &gatherer{o: o, slots: make(chan struct{}, atOnce), facts: &check.Facts{
		Now: time.Now(), Namespace: o.Namespace, Revision: o.Revision, Version: o.Version, Replicas: make([]check.Replica, len(o.Replicas)),
	}}
	g.facts.Unlisted = found("", o.Unlisted).Err
	if s&(check.Before|check.After) != 0 {
		g.cluster(ctx, s)
	}
	for i, r := range o.Replicas {
		g.replica(ctx, r, &g.facts.Replicas[i])
	}
	g.group.Wait()
	if s&check.After != 0 {
		g.afterwards(ctx)
		g.group.Wait()
	}
	return g.facts
}

// gatherer asks questions at the same time. Each writes facts of its own.
type gatherer struct {
	o     Options
	facts *check.Facts
	group sync.WaitGroup
	slots chan struct{}
}

// ask asks one question.
func (g *gatherer) ask(ctx context.Context, question func(context.Context)) {
	g.group.Go(func() {
		g.slots <- struct{}{}
		defer func() { <-g.slots }()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		question(ctx)
	})
}

// found is a fact, whose error can be shown.
func found[T any](value T, err error) check.Known[T] {
	if err != nil {
		err = errors.New(printable.Escape(printable.Clip(err.Error(), maxSaid)))
	}
	return finding.Of(value, err)
}

// said is an answer of a server, with the times around it.
type said struct {
	text  []byte
	clock check.Clock
}

// get reads a page. An answer that is an error has a clock, too.
func get(ctx context.Context, client *http.Client, page string) (said, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return said{clock: check.Clock{Err: err.Error()}}, err
	}
	out := said{clock: check.Clock{Sent: time.Now()}}
	res, err := client.Do(req)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err
		}
		out.clock.Err = printable.Escape(printable.Clip(err.Error(), maxSaid))
		return out, err
	}
	out.clock.Received = time.Now()
	defer func() { _ = res.Body.Close() }() // it is only read
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		out.clock.Date = date
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxPage+1))
	switch {
	case err != nil:
		return out, err
	case len(text) > maxPage:
		return out, fmt.Errorf("more than %d bytes", maxPage)
	case res.StatusCode != http.StatusOK:
		return out, fmt.Errorf("%s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	out.text = text
	return out, nil
}

// replica finds out what one replica says.
func (g *gatherer) replica(ctx context.Context, r Replica, into *check.Replica) {
	into.Name = r.Name
	page := func(ctx context.Context, name string) (said, error) { return get(ctx, r.Client, r.Base+"/"+name) }
	g.ask(ctx, func(ctx context.Context) {
		s, err := page(ctx, "ready")
		into.Clock, into.Ready = s.clock, found(string(s.text), err)
	})
	g.ask(ctx, func(ctx context.Context) {
		s, err := page(ctx, "version")
		into.Version = found(printable.Escape(strings.TrimSpace(printable.Clip(string(s.text), maxSaid))), err)
	})
	g.ask(ctx, func(ctx context.Context) { into.CA = decoded[check.CA](page(ctx, "debug/ca")) })
	g.ask(ctx, func(ctx context.Context) { into.Proxies = decoded[[]check.Proxy](page(ctx, "debug/syncz")) })
	g.ask(ctx, func(ctx context.Context) {
		into.Mesh = decoded[check.Mesh](page(ctx, "debug/factsz"))
		into.Reached = reached(ctx, r.Base, into.Mesh.Value.Ports)
	})
	if r.Dial == nil {
		return
	}
	g.ask(ctx, func(ctx context.Context) { into.Serving = g.certificates(ctx, r, 15012) })
	g.ask(ctx, func(ctx context.Context) { into.Webhooks = g.certificates(ctx, r, 15017) })
}

// remotePorts are what other hosts connect to.
var remotePorts = []string{"xDS", "webhooks", "metrics"}

// reached tries the ports of a control plane on another host, and returns why one cannot be reached, or "". On this host its pages
// may be a tunnel to it, so that nothing is tried.
func reached(ctx context.Context, base string, ports map[string]string) map[string]string {
	u, err := url.Parse(base)
	if err != nil || u.Hostname() == "localhost" {
		return nil
	}
	if ip := net.ParseIP(u.Hostname()); ip == nil || ip.IsLoopback() {
		return nil // a name may be that of a balancer, which passes on some ports only
	}
	out := map[string]string{}
	for _, name := range remotePorts {
		host, port, err := net.SplitHostPort(ports[name])
		if ip := net.ParseIP(host); err != nil || ip != nil && ip.IsLoopback() {
			continue
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
		if err != nil {
			out[name] = printable.Escape(printable.Clip(err.Error(), maxSaid))
			continue
		}
		_ = conn.Close() // nothing was written
		out[name] = ""
	}
	return out
}

// decoded is the fact in a page.
func decoded[T any](s said, err error) check.Known[T] {
	var value T
	if err == nil {
		err = json.Unmarshal(s.text, &value)
	}
	return found(value, err)
}

// certificates are those that a port shows.
func (g *gatherer) certificates(ctx context.Context, r Replica, port uint16) check.Known[[]*x509.Certificate] {
	conn, err := r.Dial(ctx, port)
	if err != nil {
		return found[[]*x509.Certificate](nil, err)
	}
	defer func() { _ = conn.Close() }() // nothing was written
	t := tls.Client(conn, &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: "istiod." + g.o.Namespace + ".svc", NextProtos: []string{"h2"},
		InsecureSkipVerify: true, // #nosec G402 -- the checks verify the certificate; nothing is sent
	})
	if err := t.HandshakeContext(ctx); err != nil {
		return found[[]*x509.Certificate](nil, fmt.Errorf("port %s: %w", strconv.Itoa(int(port)), err))
	}
	return found(t.ConnectionState().PeerCertificates, nil)
}
