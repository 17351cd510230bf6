package explain

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Query is a question: may a client make a request to a workload, or to those of a service.
type Query struct {
	// From is the client: POD.NAMESPACE or NAMESPACE/POD, NAMESPACE/ACCOUNT where there is no such Pod, a SPIFFE identity, or None.
	From string `json:"from"`
	// To is POD.NAMESPACE or NAMESPACE/POD, a service by its host, as NAME.NAMESPACE or NAMESPACE/NAME, or a URL,
	// http://HOST[:PORT][/PATH], whose host may be one that is short in the client's namespace.
	To string `json:"to"`
	// Port is the service's, or of a Pod the Pod's; 0 is the only one.
	Port uint32 `json:"port,omitempty"`
	// TCP is set to ask about a connection that is not HTTP.
	TCP bool `json:"tcp,omitempty"`
	// Address is the client's where From does not say it; empty is an address that is not known.
	Address string `json:"address,omitempty"`
	// Method, Path, with its query, and Host are those of the request; empty are GET, / and the service's host. The names of
	// headers may be in any case.
	Method  string              `json:"method,omitempty"`
	Path    string              `json:"path,omitempty"`
	Host    string              `json:"host,omitempty"`
	Headers map[string][]string `json:"headers,omitempty"`
	// Claims are those of a token that is taken for signed by its issuer; nil for none.
	Claims map[string]any `json:"claims,omitempty"`
}

// ClientElsewhere is the note of verdicts for a client whose proxy is not connected to a replica.
const ClientElsewhere = "the client's proxy is not connected to this replica: DestinationRules for how it connects, and routes, are not considered"

// None as From is a client without a proxy, which connects in plaintext.
const None = "none"

// IsURL reports whether To is a URL.
func (q *Query) IsURL() bool { return strings.Contains(q.To, "://") }

// Complete returns the query with the host, the port and the path of a URL in To, of which only the name of the host remains there. The
// error names what cannot be asked.
func (q Query) Complete() (Query, error) {
	if err := q.split(); err != nil {
		return q, err
	}
	return q, q.validate()
}

// split takes a URL apart.
func (q *Query) split() error {
	if !q.IsURL() {
		return nil
	}
	u, err := url.Parse(q.To)
	switch {
	case err != nil:
		return fmt.Errorf("invalid URL %.300q: want http://HOST:PORT/PATH", q.To)
	case u.Scheme != "http":
		return fmt.Errorf("invalid URL %.300q: want http://; what is in TLS of the application is not evaluated: for the connection, want the service and tcp", q.To)
	case u.Hostname() == "" || u.User != nil || u.Fragment != "":
		return fmt.Errorf("invalid URL %.300q: want http://HOST:PORT/PATH", q.To)
	case q.TCP:
		return errors.New("a connection that is not HTTP has no URL: want the service without tcp")
	case q.Port != 0 || q.Path != "":
		return errors.New("port and path are those of the URL: want them there")
	}
	q.Port = 80
	if text := u.Port(); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("invalid URL %.300q: want a port of 1–65535", q.To)
		}
		q.Port = uint32(n)
	}
	if q.Host == "" {
		q.Host = u.Host
	}
	_, rest, _ := strings.Cut(q.To, "://") // as it is written, with its escapes
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		q.Path = rest[i:]
	}
	if strings.HasPrefix(q.Path, "?") {
		q.Path = "/" + q.Path
	}
	q.To = u.Hostname()
	return nil
}

// validate returns an error that names what cannot be asked.
func (q *Query) validate() error {
	switch {
	case q.From == "":
		return errors.New("missing from: want POD.NAMESPACE, NAMESPACE/ACCOUNT, a SPIFFE identity, or none")
	case q.To == "":
		return errors.New("missing to: want POD.NAMESPACE, or a service by its host or as NAME.NAMESPACE")
	case q.Port > 65535:
		return fmt.Errorf("invalid port %d: want 1–65535", q.Port)
	case q.Path != "" && !strings.HasPrefix(q.Path, "/"):
		return fmt.Errorf("invalid path %.100q: want one that begins with /", q.Path)
	case q.TCP && (q.Method != "" || q.Path != "" || q.Host != "" || len(q.Headers) > 0 || q.Claims != nil):
		return errors.New("a connection that is not HTTP has no method, path, host, headers or claims: want them without tcp")
	}
	if !isToken(q.Method) && q.Method != "" {
		return fmt.Errorf("invalid method %.100q: want letters, such as GET", q.Method)
	}
	for name := range q.Headers {
		switch {
		case !isToken(name):
			return fmt.Errorf("invalid header name %.100q", name)
		case strings.EqualFold(name, "host"):
			return errors.New("header host: want host, which is the request's authority")
		}
	}
	if iss, _ := q.Claims["iss"].(string); q.Claims != nil && iss == "" {
		return errors.New("claims without an issuer: want the claim iss, by which the JWT rule is chosen")
	}
	if _, err := netip.ParseAddr(q.Address); err != nil && q.Address != "" {
		return fmt.Errorf("invalid address %.100q: want an IP address", q.Address)
	}
	return nil
}

// isToken reports whether a text is a name as HTTP has them (RFC 9110 section 5.6.2).
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// Identity returns the identity that From names, in a trust domain if it names none; false if it is a Pod or None.
func (q *Query) Identity(trustDomain string) (id mesh.Identity, ok bool, err error) {
	if strings.HasPrefix(q.From, "spiffe://") {
		id, err = mesh.ParseSPIFFE(q.From)
		return id, true, err
	}
	namespace, account, ok := strings.Cut(q.From, "/")
	if !ok {
		return id, false, nil
	}
	if namespace == "" || account == "" || strings.Contains(account, "/") {
		return id, true, fmt.Errorf("invalid client %.100q: want NAMESPACE/ACCOUNT", q.From)
	}
	return mesh.Identity{TrustDomain: trustDomain, Namespace: namespace, ServiceAccount: account}, true, nil
}

// Request returns the request, nil for a connection that is not HTTP. host is the authority without one in the query.
func (q *Query) Request(host string) *simulate.Request {
	if q.TCP {
		return nil
	}
	r := &simulate.Request{Method: "GET", Authority: host, Path: "/", Headers: map[string][]string{}, Claims: q.Claims}
	if q.Method != "" {
		r.Method = q.Method
	}
	if q.Host != "" {
		r.Authority = q.Host
	}
	if q.Path != "" {
		r.Path = q.Path
	}
	for name, values := range q.Headers {
		name = strings.ToLower(name)
		r.Headers[name] = append(r.Headers[name], values...)
	}
	return r
}

// Route is where the client's proxy sends a request, or a connection.
type Route struct {
	// Listener is the one that takes it. Routes, VirtualHost and Name are those of the route; empty for a connection.
	Listener    string `json:"listener,omitempty"`
	Routes      string `json:"routes,omitempty"`
	VirtualHost string `json:"virtualHost,omitempty"`
	Name        string `json:"name,omitempty"`
	// Object is what the route is made from, such as "VirtualService shop/cart", and Origin its file and line; empty for the default.
	Object string `json:"object,omitempty"`
	Origin string `json:"origin,omitempty"`
	// Clusters are those that it may be sent to; none if the proxy answers itself.
	Clusters []RouteCluster `json:"clusters,omitempty"`
	Notes    []string       `json:"notes,omitempty"`
}

// RouteCluster is one of the clusters of a route.
type RouteCluster struct {
	Name string `json:"name"`
	// Weight is 0 for the only one.
	Weight uint32 `json:"weight,omitempty"`
	// Endpoints is how many endpoints it has; nil if the proxy finds them out itself.
	Endpoints *int `json:"endpoints,omitempty"`
	// Request is what is sent there; nil for a connection, and where it is what was asked.
	Request *Asked `json:"request,omitempty"`
}

// Client is who asks.
type Client struct {
	Name string `json:"name"`
	// Identity is what it proves by mutual TLS; empty if it has no proxy.
	Identity string `json:"identity,omitempty"`
	Address  string `json:"address,omitempty"`
}

// Workload is the verdict of one workload, for one way in which the client reaches it.
type Workload struct {
	// Name is POD.NAMESPACE, or an address of which no Pod is known, and Port where it listens.
	Name string `json:"name"`
	Port uint32 `json:"port"`
	// By are the client's clusters by which it is reached, as "port" or "port subset"; none if they are not known.
	By []string `json:"by,omitempty"`
	// Connects is how the client connects: MutualTLS, Plaintext or OtherTLS.
	Connects string `json:"connects,omitempty"`
	Verdict
	// Elsewhere is set if the proxy is not connected to this replica, which so has no verdict.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// Changed is set if the client's route changes the request.
	Changed bool `json:"changed,omitempty"`
}

// Answer is the answer to a query.
type Answer struct {
	Decision Decision `json:"decision"`
	From     Client   `json:"from"`
	// To is the service's host or the Pod, Port its port; 0 if it is a Pod.
	To   string `json:"to"`
	Port uint32 `json:"port,omitempty"`
	// Request is what is asked, nil for a connection that is not HTTP.
	Request *Asked `json:"request,omitempty"`
	// Route is where the client's proxy sends it; nil if To is a Pod, or the client has no proxy that is connected.
	Route     *Route     `json:"route,omitempty"`
	Workloads []Workload `json:"workloads"`
}

// Asked is a request as it is asked about.
type Asked struct {
	Method string `json:"method"`
	Host   string `json:"host"`
	Path   string `json:"path"`
}

// Of is the decision of all workloads: Depends if they differ.
func Of(all []Workload) Decision {
	out := Unknown
	for i, w := range all {
		switch {
		case i == 0:
			out = w.Decision
		case w.Decision != out:
			return Depends
		}
	}
	return out
}

// Join joins the answers of replicas, each of which has the verdicts of the proxies that are connected to it. That of the client's
// replica has the route, which says which workloads there are.
func Join(all []Answer) Answer {
	for i, a := range all {
		if a.Route != nil {
			return a.with(slices.Delete(slices.Clone(all), i, i+1))
		}
	}
	out := all[0]
	out.Workloads = nil
	for _, elsewhere := range []bool{false, true} {
		for _, a := range all {
			for _, w := range a.Workloads {
				known := slices.ContainsFunc(out.Workloads, func(o Workload) bool {
					return o.Name == w.Name && o.Port == w.Port && (elsewhere || o.Connects == w.Connects)
				})
				if w.Elsewhere == elsewhere && !known {
					out.Workloads = append(out.Workloads, w)
				}
			}
		}
	}
	slices.SortStableFunc(out.Workloads, func(a, b Workload) int { return strings.Compare(a.Name, b.Name) })
	out.Decision = Of(out.Workloads)
	return out
}

// with takes the verdicts of workloads that others are connected to, where these have evaluated the same request on the same kind of
// connection: they do not know the client's route.
func (a Answer) with(others []Answer) Answer {
	a.Workloads = slices.Clone(a.Workloads)
	for i, w := range a.Workloads {
		if !w.Elsewhere {
			continue
		}
		for _, other := range others {
			for _, o := range other.Workloads {
				if o.Elsewhere || o.Name != w.Name || o.Port != w.Port {
					continue
				}
				if w.Changed || o.Connects != w.Connects {
					a.Workloads[i].Reason = "its proxy is connected to a replica that does not know how the client connects and what its route changes"
					continue
				}
				o.By = w.By
				o.Notes = slices.DeleteFunc(slices.Clone(o.Notes), func(n string) bool { return n == ClientElsewhere })
				a.Workloads[i] = o
			}
		}
	}
	a.Decision = Of(a.Workloads)
	return a
}
