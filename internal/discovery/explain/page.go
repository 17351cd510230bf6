package explain

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Query is a question: may a client make a request to a workload, or to those of a service.
type Query struct {
	// From is the client: POD.NAMESPACE, NAMESPACE/ACCOUNT, a SPIFFE identity, or None.
	From string `json:"from"`
	// To is POD.NAMESPACE, or a service by its host or as NAME.NAMESPACE.
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

// None as From is a client without a proxy, which connects in plaintext.
const None = "none"

// Validate returns an error that names what cannot be asked.
func (q *Query) Validate() error {
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
}

// Answer is the answer to a query.
type Answer struct {
	Decision Decision `json:"decision"`
	From     Client   `json:"from"`
	// To is the service's host or the Pod, Port its port; 0 if it is a Pod.
	To   string `json:"to"`
	Port uint32 `json:"port,omitempty"`
	// Request is what is asked, nil for a connection that is not HTTP.
	Request   *Asked     `json:"request,omitempty"`
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

// Join joins the answers of replicas, each of which has the verdicts of the proxies that are connected to it.
func Join(all []Answer) Answer {
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
