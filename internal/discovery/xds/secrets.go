package xds

import (
	"maps"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilothouse/pilothouse/internal/discovery/credentials"
	"github.com/pilothouse/pilothouse/internal/discovery/marshal"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Secrets are not resources of views: they are in no dump and no saved state, a page has only their names, and who gets which depends on who
// asks. A stream remembers the names that it wants and the versions that it was sent. [control-plane 1.6.4, 1.9.6]

// SecretType is the type URL of Envoy's secrets.
var SecretType = marshal.TypeURL((*tlsv3.Secret)(nil))

// secretLabel is the name of the type in metrics and nonces.
const secretLabel = "sds"

const (
	// maxSecrets bounds the secrets that a stream may want.
	maxSecrets = 8192
	// secretBatch is about how much one response has, in bytes: the next one follows its acknowledgement.
	secretBatch = 1 << 20
	// secretPlace is about what the name of a secret takes besides its bytes.
	secretPlace = 96
)

// Credentials decides which secrets a proxy may have; credentials.Store is one.
type Credentials interface {
	// Want says that a caller wants Secrets, until release is called.
	Want(who credentials.Caller) (release func())
	// Get returns what a caller has of a Secret that it wants.
	Get(who credentials.Caller, n credentials.Name) credentials.Answer
	Changed() <-chan struct{}
}

// ServeSecrets has the server serve secrets. Call it before serving.
func (s *Server) ServeSecrets(c Credentials) { s.credentials = c }

// secretStream is what one stream has of the secrets. It is not a Type: a proxy that lacks a secret has everything else applied.
type secretStream struct {
	// wanted has the version that was sent, by name: empty if none was, absentVersion if the client was told that there is none.
	wanted map[string]string
	moved  <-chan struct{} // closed when something has changed; nil while nothing is wanted
	nonces uint64
	open   bool     // the last response is not acknowledged yet
	flight []string // the names in it
	// again has names of responses that were refused, in groups, each of which is sent in a response of its own: a client refuses a whole
	// response for one secret, and those that it has not come to are still to be sent.
	again [][]string
	held  int // bytes that are charged
	// unwant ends that Secrets are wanted; nil if none are.
	unwant func()
	told   bool // the log has said that the caller is not authenticated
}

// absentVersion stands for a secret that the client was told there is none of.
const absentVersion = "absent"

func (t *secretStream) nonce() string { return secretLabel + "-" + strconv.FormatUint(t.nonces, 10) }

// servesSecrets reports whether the stream's caller gets secrets: who it is must be proven.
func (s *stream) servesSecrets() bool {
	if s.server.credentials == nil {
		return false
	}
	if !s.caller.proven && !s.secrets.told {
		s.secrets.told = true
		s.log.Warn("secrets are not served to a proxy that is not authenticated: want a connection to the secure port", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID)
	}
	return s.caller.proven
}

// secretRequest handles a request for secrets.
func (s *stream) secretRequest(m incoming) error {
	t := &s.secrets
	if t.wanted == nil {
		t.wanted = map[string]string{}
	}
	s.answeredSecrets(m.req)
	if s.delta {
		for name := range m.req.Unsubscribe.plain() {
			delete(t.wanted, string(name))
		}
		for name := range m.req.Names.plain() {
			t.wanted[string(name)] = "" // asked for again it is sent again
		}
		if m.req.Nonce == "" {
			for name, version := range m.req.Initial.all() {
				if _, ok := t.wanted[string(name)]; ok && len(version) <= maxMessage {
					t.wanted[string(name)] = string(version)
				}
			}
		}
	} else {
		before := t.wanted
		t.wanted = make(map[string]string, len(before))
		for name := range m.req.Names.plain() {
			t.wanted[string(name)] = before[string(name)]
		}
		if m.req.Nonce == "" {
			clear(before)
			for name := range t.wanted {
				t.wanted[name] = ""
			}
		}
	}
	if len(t.wanted) > maxSecrets {
		return &refusal{codes.ResourceExhausted, reasonNames, "more than " + strconv.Itoa(maxSecrets) + " secrets subscribed: want at most that many"}
	}
	held := 0
	for name := range t.wanted {
		held += secretPlace + len(name)
	}
	change := held - t.held
	t.held = held
	if err := s.account.charge(change - m.cost); err != nil {
		return err
	}
	s.conn.wantsSecrets(slices.Sorted(maps.Keys(t.wanted)))
	s.wantSecrets()
	return s.sendSecrets()
}

// secretCaller is who the Secrets are for.
func (s *stream) secretCaller() credentials.Caller {
	return credentials.Caller{Identity: s.caller.identity, Cluster: s.conn.status.Node.Metadata.ClusterID}
}

// wantSecrets says whether the client wants Secrets.
func (s *stream) wantSecrets() {
	t := &s.secrets
	wants := false
	for name := range t.wanted {
		_, known := credentials.ParseName(name, s.caller.identity.Namespace)
		wants = wants || known
	}
	switch {
	case !wants:
		t.release()
	case t.unwant == nil:
		t.unwant = s.server.credentials.Want(s.secretCaller())
	}
}

// release ends that Secrets are wanted.
func (t *secretStream) release() {
	if t.unwant != nil {
		t.unwant()
	}
	t.unwant = nil
}

// answeredSecrets handles the acknowledging part of a request.
func (s *stream) answeredSecrets(r Request) {
	t := &s.secrets
	if !t.open || r.Nonce != t.nonce() {
		return
	}
	t.open = false
	s.conn.secretsAnswered(t.flight, r.Refused)
	if r.Refused {
		s.server.metrics.allRejects.WithLabelValues(secretLabel).Inc()
		s.logRefused("proxy refused secrets", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID,
			"names", t.flight[:min(len(t.flight), maxLogged)], "message", printable.Quote(r.Message, maxMessage))
		if n := len(t.flight); n > 1 {
			t.again = append(t.again, t.flight[n/2:], t.flight[:n/2])
		}
	}
	t.flight = nil
}

// sendSecrets sends the secrets that the client wants and does not have, unless it has not answered the last response. One that the
// client has and that is gone stays with it: connections that are served with it go on. Of a response that was refused the halves are
// sent again, and halves of these; one that is refused alone is not sent again until it changes.
func (s *stream) sendSecrets() error {
	t := &s.secrets
	if len(t.wanted) == 0 {
		t.moved = nil
		return nil
	}
	t.moved = s.server.credentials.Changed() // before they are read
	if t.open {
		return nil
	}
	var resources []*discoveryv3.Resource
	var removed []string
	for again := true; len(resources) == 0 && (len(removed) == 0 || !s.delta); {
		if !again {
			return nil
		}
		var names []string
		names, again = t.next()
		var err error
		if resources, removed, err = s.secretsFor(names, again); err != nil {
			return err
		}
	}
	t.nonces++
	t.open, t.flight = true, nil
	var m any
	if s.delta {
		m = &discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: t.nonce(), TypeUrl: SecretType, Nonce: t.nonce(), Resources: resources, RemovedResources: removed}
	} else {
		r := &discoveryv3.DiscoveryResponse{VersionInfo: t.nonce(), TypeUrl: SecretType, Nonce: t.nonce()}
		for _, one := range resources {
			r.Resources = append(r.Resources, one.Resource)
		}
		m = r
	}
	for _, one := range resources {
		t.flight = append(t.flight, one.Name)
	}
	if err := s.wire.SendMsg(m); err != nil {
		s.server.metrics.pushes.WithLabelValues(secretLabel + "_senderr").Inc()
		return err
	}
	s.server.metrics.pushes.WithLabelValues(secretLabel).Inc()
	return nil
}

// next returns the names that the next response may have, sorted: a group of a response that was refused (again is true), or all that
// are wanted. Of a group what is unwanted by now is left out.
func (t *secretStream) next() (names []string, again bool) {
	last := len(t.again) - 1
	if last < 0 {
		return slices.Sorted(maps.Keys(t.wanted)), false
	}
	names = slices.DeleteFunc(t.again[last], func(name string) bool { _, ok := t.wanted[name]; return !ok })
	t.again[last] = nil
	t.again = t.again[:last]
	return names, true
}

// secretsFor returns what a response has of the names: the secrets that the client does not have, about secretBatch bytes of them, and
// the names of those that it is to be told there are none of. Again includes those that it was sent.
func (s *stream) secretsFor(names []string, again bool) (resources []*discoveryv3.Resource, removed []string, err error) {
	t := &s.secrets
	size := 0
	for i, name := range names {
		if size > secretBatch {
			if again {
				t.again = append(t.again, names[i:])
			}
			break
		}
		part, known := credentials.ParseName(name, s.caller.identity.Namespace)
		answer := credentials.Answer{State: credentials.Missing}
		if known {
			answer = s.server.credentials.Get(s.secretCaller(), part)
		}
		c := answer.Credential
		switch {
		case answer.State == credentials.Pending:
		case answer.State == credentials.Found:
			if t.wanted[name] == c.Version && !again {
				continue
			}
			body, err := encodeSecret(name, part, c)
			if err != nil {
				return nil, nil, err
			}
			t.wanted[name] = c.Version
			resources = append(resources, &discoveryv3.Resource{Name: name, Version: c.Version, Resource: body})
			size += len(body.Value)
		case t.wanted[name] == "":
			t.wanted[name] = absentVersion
			removed = append(removed, name)
			s.server.metrics.noSecret.Inc()
			s.logAbsent(name, answer)
		}
	}
	return resources, removed, nil
}

// logAbsent says that a proxy does not get a secret that it wants.
func (s *stream) logAbsent(name string, a credentials.Answer) {
	why := a.Why
	switch {
	case why != "":
	case a.State == credentials.Forbidden:
		why = "the proxy's identity may not read it"
	default:
		why = "there is none with what is asked for"
	}
	s.logRefused("proxy does not get a secret", "proxy", s.conn.status.Node.NodeID.String(), "connection", s.conn.status.ID, "name", printable.Quote(name, 256), "reason", why)
}

// encodeSecret returns the resource of a credential, or of its CA.
func encodeSecret(name string, n credentials.Name, c *credentials.Credential) (*anypb.Any, error) {
	inline := func(text []byte) *corev3.DataSource {
		if len(text) == 0 {
			return nil
		}
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: text}}
	}
	m := &tlsv3.Secret{Name: name}
	if n.CA {
		m.Type = &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(c.CA), Crl: inline(c.CRL)}}
	} else {
		m.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(c.Chain), PrivateKey: inline(c.Key), OcspStaple: inline(c.OCSP),
		}}
	}
	body, err := marshal.Append(nil, m)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: SecretType, Value: body}, nil
}
