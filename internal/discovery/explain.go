package discovery

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	clusters "github.com/pilothouse/pilothouse/internal/discovery/compile/cluster"
	"github.com/pilothouse/pilothouse/internal/discovery/explain"
	"github.com/pilothouse/pilothouse/internal/discovery/model"
	"github.com/pilothouse/pilothouse/internal/discovery/simulate"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// Bounds of a question and of its answer.
const (
	maxQuestion  = 1 << 20 // bytes
	maxExplained = 1000    // workloads
)

// explain answers who may do what: a GET with the parameters of explain.Query, where header is NAME=VALUE and claims is JSON, or a
// POST of one as JSON, for what is not to be in a URL.
func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	q, err := explainQuery(w, r)
	if err == nil {
		q, err = q.Complete()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e, ok := s.newExplainer()
	if !ok {
		unanswered(w)
		return
	}
	out, err := e.answer(q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	writeJSON(w, out)
}

// explainQuery parses a question.
func explainQuery(w http.ResponseWriter, r *http.Request) (q explain.Query, err error) {
	if r.Method == http.MethodPost {
		if r.Header.Get("Content-Type") != jsonType {
			return q, fmt.Errorf("invalid Content-Type: want %s", jsonType)
		}
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxQuestion))
		if err == nil {
			err = json.Unmarshal(text, &q)
		}
		if err != nil {
			return q, fmt.Errorf("read the question: %w", err)
		}
		return q, nil
	}
	v := r.URL.Query()
	q = explain.Query{From: v.Get("from"), To: v.Get("to"), Address: v.Get("address"), Method: v.Get("method"), Path: v.Get("path"), Host: v.Get("host")}
	if text := v.Get("port"); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return q, fmt.Errorf("invalid port %s: want 1–65535", printable.Quote(text, 100))
		}
		q.Port = uint32(port)
	}
	if text := v.Get("tcp"); text != "" {
		if q.TCP, err = strconv.ParseBool(text); err != nil {
			return q, fmt.Errorf("invalid tcp %s: want true or false", printable.Quote(text, 100))
		}
	}
	for _, h := range v["header"] {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			return q, fmt.Errorf("invalid header %s: want NAME=VALUE", printable.Quote(h, 100))
		}
		if q.Headers == nil {
			q.Headers = map[string][]string{}
		}
		q.Headers[name] = append(q.Headers[name], value)
	}
	if text := v.Get("claims"); text != "" {
		if err := json.Unmarshal([]byte(text), &q.Claims); err != nil {
			return q, fmt.Errorf("invalid claims: %w", err)
		}
	}
	return q, nil
}

// explainer has what questions are answered from, at one moment.
type explainer struct {
	s           *Server
	now         time.Time
	services    []inventory
	views       *viewsSnapshot
	trustDomain string
	pods        map[string]podFacts // by "name.namespace"
	names       map[string]string   // of pods, by "namespace/address"
	proxies     map[string]xds.Connection
	made        map[madeOf]*made
}

// podFacts is what is known of a Pod or WorkloadEntry, whether its proxy is connected or not.
type podFacts struct {
	name      string
	addresses []netip.Addr
	identity  string
	// mutual is set if it is labelled to accept the mesh's mutual TLS.
	mutual bool
}

// madeOf and made are the listener of a class for a port, and the objects that it is made from.
type madeOf struct {
	class mesh.Class
	port  uint32
}

type made struct {
	*explain.Listener
	err error
}

func (s *Server) newExplainer() (*explainer, bool) {
	e := &explainer{s: s, now: time.Now(), pods: map[string]podFacts{}, names: map[string]string{}, proxies: map[string]xds.Connection{}, made: map[madeOf]*made{}}
	var ok bool
	if e.services, ok = s.loop.allServices(); !ok {
		return nil, false
	}
	if e.views, ok = s.loop.viewsSnapshot(); !ok {
		return nil, false
	}
	if ok = s.loop.ask(func() {
		e.trustDomain = s.loop.store.CurrentMesh().GetTrustDomain()
		for key := range s.loop.workloads.rows {
			if o, ok := s.loop.store.Get(key); ok {
				e.addPod(&o)
			}
		}
	}); !ok {
		return nil, false
	}
	for _, c := range s.xds.Connections() {
		if last, again := e.proxies[c.Node.ID]; c.Only == "" && (!again || newer(c, last)) {
			e.proxies[c.Node.ID] = c
		}
	}
	return e, true
}

func (e *explainer) addPod(o *object.Object) {
	p := podFacts{name: o.Name + "." + o.Namespace, mutual: o.Meta.Labels[mesh.TLSModeLabel] == "istio"}
	account := ""
	switch spec := o.Spec.(type) {
	case *object.PodSpec:
		if spec.Done {
			return
		}
		p.addresses, account = spec.IPs, spec.ServiceAccount
	case *networking.WorkloadEntry:
		if a, err := netip.ParseAddr(spec.Address); err == nil {
			p.addresses = []netip.Addr{a}
		}
		account = spec.ServiceAccount
		p.mutual = p.mutual || spec.Labels[mesh.TLSModeLabel] == "istio"
	}
	if account != "" {
		p.identity = mesh.Identity{TrustDomain: e.trustDomain, Namespace: o.Namespace, ServiceAccount: account}.SPIFFE()
	}
	e.pods[p.name] = p
	for _, a := range p.addresses {
		e.names[o.Namespace+"/"+a.Unmap().String()] = p.name
	}
}

// pod returns what is known of a name; false if there is no such Pod and no such proxy.
func (e *explainer) pod(name string) (podFacts, bool) {
	p, known := e.pods[name]
	c, connected := e.proxies[name]
	if !connected {
		return p, known
	}
	p.name, p.mutual = name, true
	if len(p.addresses) == 0 {
		p.addresses = c.Node.IPs()
	}
	if c.Identity.Namespace != "" {
		p.identity = c.Identity.SPIFFE()
	}
	return p, true
}

// asker is the client of a question.
type asker struct {
	explain.Client
	address netip.Addr
	// mutual is set if it has a proxy, and view is that proxy's; nil if it is not connected here.
	mutual bool
	view   *xds.View
	// pod is set if it is one, and not a bare identity, and namespace is its own; empty if it has none.
	pod       bool
	namespace string
}

// slashed returns the name of a Pod or a proxy that is written NAMESPACE/NAME; empty if there is none.
func (e *explainer) slashed(text string) string {
	namespace, name, ok := strings.Cut(text, "/")
	if _, known := e.pod(name + "." + namespace); ok && known {
		return name + "." + namespace
	}
	return ""
}

func (e *explainer) client(q explain.Query) (asker, error) {
	if name := e.slashed(q.From); name != "" {
		q.From = name
	}
	c := asker{Client: explain.Client{Name: q.From}}
	id, is, err := q.Identity(e.trustDomain)
	switch {
	case err != nil:
		return c, err
	case is:
		c.Identity, c.mutual, c.namespace = id.SPIFFE(), true, id.Namespace
	case q.From != explain.None:
		p, ok := e.pod(q.From)
		if !ok {
			return c, fmt.Errorf("no Pod and no connected proxy %s: want POD.NAMESPACE, NAMESPACE/ACCOUNT, a SPIFFE identity, or none", printable.Quote(q.From, 300))
		}
		c.pod = true
		if i := strings.LastIndexByte(q.From, '.'); i >= 0 {
			c.namespace = q.From[i+1:] // the names of Pods may have dots, those of namespaces not
		}
		if len(p.addresses) > 0 {
			c.address = p.addresses[0]
		}
		if p.mutual {
			c.mutual, c.Identity = true, p.identity
		}
		if at, ok := e.proxies[q.From]; ok && at.Node.Role == mesh.Sidecar {
			c.view = e.views.proxies[at.ID].view
		}
	}
	if q.Address != "" {
		c.address, _ = netip.ParseAddr(q.Address) // Validate has parsed it
	}
	c.address = c.address.Unmap()
	if c.address.IsValid() {
		c.Client.Address = c.address.String()
	}
	return c, nil
}

// target is a workload that a client may reach.
type target struct {
	pod      podFacts
	port     uint32 // of the Pod
	ways     []way
	external bool
	// cluster is the only one of the client's to consider; empty for all.
	cluster string
}

// way is a port of a service that leads to a target.
type way struct {
	host string
	port uint32
}

// maxElsewhere is how many services elsewhere names.
const maxElsewhere = 5

// elsewhere names the services that have the name which somebody asks for in other namespaces; empty if there are none.
func (e *explainer) elsewhere(asked string) string {
	name, _, _ := strings.Cut(strings.ToLower(asked), ".")
	var hosts []string
	for _, i := range e.services {
		host, ours := strings.CutSuffix(i.service.Host, ".svc."+e.s.opts.Names.Domain)
		if first, _, ok := strings.Cut(host, "."); ours && ok && first == name {
			hosts = append(hosts, host)
		}
	}
	if len(hosts) == 0 {
		return ""
	}
	slices.Sort(hosts)
	return "; there is " + strings.Join(hosts[:min(len(hosts), maxElsewhere)], ", ")
}

// asked returns the service that a question is about, and its port.
func (e *explainer) asked(q explain.Query, c asker) (*inventory, uint32, error) {
	i := e.service(q.To)
	if i == nil && c.namespace != "" && !strings.Contains(q.To, ".") {
		i = e.service(q.To + "." + c.namespace)
	}
	if i == nil {
		return nil, 0, fmt.Errorf("no Pod, no connected proxy and no service %s: want POD.NAMESPACE, or a service by its host or as NAME.NAMESPACE%s", printable.Quote(q.To, 300), e.elsewhere(q.To))
	}
	port := q.Port
	if port == 0 {
		if len(i.service.Ports) != 1 {
			return nil, 0, fmt.Errorf("service %s has the ports %s: want one of them as port", i.service.Host, portsOf(i.service))
		}
		port = i.service.Ports[0].Number
	}
	if !slices.ContainsFunc(i.service.Ports, func(p model.Port) bool { return p.Number == port }) {
		return nil, 0, fmt.Errorf("service %s has no port %d: want one of %s", i.service.Host, port, portsOf(i.service))
	}
	return i, port, nil
}

// ofService are the workloads of a service for a port of it.
func (e *explainer) ofService(i *inventory, port uint32) (list []target, err error) {
	host := i.service.Host
	for _, in := range i.instances {
		number, ok := in.Ports[port]
		if !ok {
			number, ok = in.Ports[model.UDPKey(port)]
		}
		if !ok {
			continue
		}
		p := podFacts{name: in.Address, identity: in.Identity, mutual: in.TLS}
		if name, ok := e.names[in.Namespace+"/"+in.Address]; ok {
			p, _ = e.pod(name)
		}
		p.mutual = in.TLS
		p.addresses = nil
		for _, text := range append([]string{in.Address}, in.Others...) {
			if a, err := netip.ParseAddr(text); err == nil {
				p.addresses = append(p.addresses, a)
			}
		}
		list = append(list, target{pod: p, port: number, ways: []way{{host, port}}, external: i.service.External})
	}
	switch {
	case len(list) == 0 && i.service.External:
		list = []target{{pod: podFacts{name: host}, port: port, ways: []way{{host, port}}, external: true}}
	case len(list) == 0:
		return nil, fmt.Errorf("service %s has no ready workload for port %d", host, port)
	case len(list) > maxExplained:
		return nil, fmt.Errorf("service %s has %d workloads, more than %d: want one of them by its name, POD.NAMESPACE", host, len(list), maxExplained)
	}
	return list, nil
}

func portsOf(s *model.Service) string {
	var out []string
	for _, p := range s.Ports {
		out = append(out, strconv.FormatUint(uint64(p.Number), 10))
	}
	return strings.Join(out, ", ")
}

// service finds a service by its host, or as NAME.NAMESPACE; nil if there is none.
func (e *explainer) service(name string) *inventory {
	if namespace, short, ok := strings.Cut(name, "/"); ok {
		name = short + "." + namespace
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	for _, host := range []string{name, name + ".svc." + e.s.opts.Names.Domain, name + "." + e.s.opts.Names.Domain} {
		if i := slices.IndexFunc(e.services, func(i inventory) bool { return i.service.Host == host }); i >= 0 {
			return &e.services[i]
		}
	}
	return nil
}

// ofPod is a Pod as a target: at a port, or, if that is 0, at the only one that services have of it.
func (e *explainer) ofPod(p podFacts, port uint32) (target, error) {
	t := target{pod: p}
	ways := map[uint32][]way{}
	var ports []string
	for _, i := range e.services {
		for _, in := range i.instances {
			a, err := netip.ParseAddr(in.Address)
			if err != nil || !slices.Contains(p.addresses, a) || e.names[in.Namespace+"/"+in.Address] != "" && e.names[in.Namespace+"/"+in.Address] != p.name {
				continue
			}
			for from, number := range in.Ports {
				if ways[number] == nil {
					ports = append(ports, strconv.FormatUint(uint64(number), 10))
				}
				ways[number] = append(ways[number], way{i.service.Host, from})
			}
		}
	}
	slices.Sort(ports)
	if t.port = port; port == 0 {
		if len(ports) != 1 {
			return t, fmt.Errorf("services have %d ports of %s (%s): want one as port", len(ports), p.name, cmp.Or(strings.Join(ports, ", "), "none"))
		}
		for number := range ways {
			t.port = number
		}
	}
	t.ways = ways[t.port]
	slices.SortFunc(t.ways, func(a, b way) int { return cmp.Or(strings.Compare(a.host, b.host), cmp.Compare(a.port, b.port)) })
	return t, nil
}

// answer answers a question.
func (e *explainer) answer(q explain.Query) (explain.Answer, error) {
	c, err := e.client(q)
	if err != nil {
		return explain.Answer{}, err
	}
	if name := e.slashed(q.To); name != "" {
		q.To = name
	}
	out := explain.Answer{From: c.Client, To: q.To, Workloads: []explain.Workload{}}
	var list []target
	var r *simulate.Request
	if p, ok := e.pod(q.To); ok {
		t, err := e.ofPod(p, q.Port)
		if err != nil {
			return explain.Answer{}, err
		}
		host := q.To
		if len(t.ways) > 0 {
			host = t.ways[0].host
		}
		list, r = []target{t}, q.Request(host)
	} else {
		i, port, err := e.asked(q, c)
		if err != nil {
			return explain.Answer{}, err
		}
		out.To, out.Port, r = i.service.Host, port, q.Request(i.service.Host)
		if c.view != nil {
			err = e.routed(&out, c, i, port, r)
		} else {
			list, err = e.ofService(i, port)
		}
		if err != nil {
			return explain.Answer{}, err
		}
	}
	if r != nil {
		out.Request = &explain.Asked{Method: r.Method, Host: r.Authority, Path: r.Path}
	}
	for _, t := range list {
		out.Workloads = append(out.Workloads, e.workloads(c, t, r)...)
	}
	out.Decision = explain.Of(out.Workloads)
	return out, nil
}

// connecting is how a client connects, by which clusters.
type connecting struct {
	how  string
	tls  *simulate.TLS
	by   []string
	note string
	err  error
}

// connections returns how a client connects to a target: once for each way that differs.
func (e *explainer) connections(c asker, t target, http bool) (out []connecting) {
	assumed := connecting{how: explain.Plaintext}
	if c.mutual && t.pod.mutual {
		assumed = connecting{how: explain.MutualTLS, tls: explain.Mesh(c.Identity, http)}
	}
	switch {
	case !c.mutual:
		return []connecting{assumed}
	case c.view == nil:
		if c.pod {
			assumed.note = explain.ClientElsewhere
		} else {
			assumed.note = "the client is an identity: DestinationRules for how it connects, and routes, are not considered"
		}
		return []connecting{assumed}
	}
	endpoints := c.view.Of(xds.EDS)
	for r := range c.view.Of(xds.CDS).All() {
		k, ok := clusters.ParseName(r.Name)
		if !ok || k.Direction != clusters.Outbound || !slices.Contains(t.ways, way{k.Host, k.Port}) || t.cluster != "" && t.cluster != r.Name {
			continue
		}
		var list []byte
		if l := endpoints.Get(r.Name); l != nil {
			list = l.Body
		}
		for _, a := range t.pod.addresses {
			how, tls, found, err := explain.Connects(r.Body, list, netip.AddrPortFrom(a.Unmap(), uint16(t.port)), c.Identity, http)
			if !found && err == nil {
				continue
			}
			by := strings.TrimSpace(fmt.Sprintf("%s:%d %s", k.Host, k.Port, k.Subset))
			i := slices.IndexFunc(out, func(o connecting) bool { return o.how == how && o.err == nil && err == nil })
			if i < 0 {
				out = append(out, connecting{how: how, tls: tls, err: err})
				i = len(out) - 1
			}
			out[i].by = append(out[i].by, by)
			break
		}
	}
	if len(out) == 0 && t.cluster != "" && t.external {
		return []connecting{{by: []string{t.ways[0].host + ":" + strconv.FormatUint(uint64(t.ways[0].port), 10)}}}
	}
	if len(out) == 0 && t.cluster == "" {
		assumed.note = "no cluster of the client has this endpoint: it is reached by a gateway of its network, past the client's proxy, or not at all"
		return []connecting{assumed}
	}
	return out
}

// workloads returns the verdicts of a target, one for each way in which the client connects to it.
func (e *explainer) workloads(c asker, t target, r *simulate.Request) (out []explain.Workload) {
	for _, from := range e.connections(c, t, r != nil) {
		w := explain.Workload{Name: t.pod.name, Port: t.port, By: from.by, Connects: from.how}
		w.Verdict = e.verdict(c, t, from, r, &w)
		if from.note != "" {
			w.Notes = append(w.Notes, from.note)
		}
		out = append(out, w)
	}
	return out
}

func (e *explainer) verdict(c asker, t target, from connecting, r *simulate.Request, w *explain.Workload) explain.Verdict {
	proxy, connected := e.proxies[t.pod.name]
	switch {
	case from.err != nil:
		return explain.Verdict{Decision: explain.Unknown, Reason: from.err.Error()}
	case t.external:
		return explain.Verdict{Decision: explain.Allowed, Reason: "it is outside of the mesh: no proxy of the mesh decides"}
	case !connected && t.pod.mutual:
		w.Elsewhere = true
		return explain.Verdict{Decision: explain.Unknown, Reason: "its proxy is not connected: pilotctl check says since when"}
	case !connected && from.tls != nil:
		return explain.Verdict{Decision: explain.Denied, Reason: "a DestinationRule of the client demands TLS, and the workload has no proxy that ends it"}
	case !connected:
		return explain.Verdict{Decision: explain.Allowed, Reason: "it has no proxy: nobody enforces policies"}
	case len(t.pod.addresses) == 0:
		return explain.Verdict{Decision: explain.Unknown, Reason: "its address is not known"}
	}
	m := e.listener(proxy, t.port)
	if m.err != nil {
		return explain.Verdict{Decision: explain.Unknown, Reason: m.err.Error()}
	}
	connection := simulate.Connection{Destination: netip.AddrPortFrom(t.pod.addresses[0].Unmap(), uint16(t.port)), TLS: from.tls}
	if c.address.IsValid() {
		connection.Source = netip.AddrPortFrom(c.address, 0)
	}
	if r != nil && from.tls == nil {
		connection.Protocol = "http/1.1"
	}
	v := m.Decide(connection, r, e.now)
	if p := e.views.proxies[proxy.ID]; p.latest != nil && p.progress().Missing != 0 {
		v.Notes = append(v.Notes, fmt.Sprintf("its proxy has not applied generation %d yet, and may decide by what was before", p.progress().Missing))
	}
	return v
}

// listener returns the listener of a proxy that takes what is sent to a port of its Pod.
func (e *explainer) listener(c xds.Connection, port uint32) *made {
	p, ok := e.views.proxies[c.ID]
	if !ok {
		return &made{err: fmt.Errorf("the proxy %s has no configuration yet", c.Node.ID)}
	}
	key := madeOf{p.class, port}
	if m := e.made[key]; m != nil {
		return m
	}
	m := e.find(p, c, port)
	e.made[key] = m
	return m
}

func (e *explainer) find(p proxySnapshot, c xds.Connection, port uint32) *made {
	m, name := &made{}, ""
	for r := range p.view.Of(xds.LDS).All() {
		if r.Name != mesh.VirtualInbound && !strings.HasSuffix(r.Name, "_"+strconv.FormatUint(uint64(port), 10)) {
			continue
		}
		l, err := explain.NewListener(r.Body)
		if err != nil {
			return &made{err: err}
		}
		own := l.Port() == port && (l.Inbound() || c.Node.Role == mesh.Router)
		if own || r.Name == mesh.VirtualInbound && name == "" {
			m.Listener, name = l, r.Name
		}
	}
	if m.Listener == nil {
		return &made{err: fmt.Errorf("the proxy %s has no listener for port %d that is known to the simulation", c.Node.ID, port)}
	}
	e.s.loop.ask(func() {
		views := e.s.loop.views
		now := views.proxies[c.ID]
		if now == nil {
			return
		}
		k, found := views.keyOf(views.classes[now.class], resourceID{xds.LDS, name})
		if !found {
			return
		}
		for _, key := range views.compiler.Why(k, maxWhy) {
			if o, ok := e.s.loop.store.Get(key); ok && restricts(&o) {
				m.Objects = append(m.Objects, &o)
			}
		}
	})
	slices.SortStableFunc(m.Objects, func(a, b *object.Object) int {
		return cmp.Or(cmp.Compare(level(a, p.class.Workload), level(b, p.class.Workload)), a.Meta.Created.Compare(b.Meta.Created))
	})
	return m
}

// level orders PeerAuthentications: those with a selector before that of the namespace, and that before the mesh's.
func level(o *object.Object, w mesh.Workload) int {
	spec, ok := o.Spec.(*security.PeerAuthentication)
	switch {
	case !ok || len(spec.GetSelector().GetMatchLabels()) > 0:
		return 0
	case o.Namespace == w.Namespace:
		return 1
	}
	return 2
}

// restricts reports whether an object that the listener of a workload was made from says who may do what there.
func restricts(o *object.Object) bool {
	switch o.Spec.(type) {
	case *security.AuthorizationPolicy, *security.RequestAuthentication, *security.PeerAuthentication:
		return true
	}
	return false
}
