package discovery

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/object"
)

// workloads are the Pods and WorkloadEntries in force, as far as pilotctl check asks for them. It belongs to the loop's goroutine.
type workloads struct {
	// revision is that of the control plane; empty stands for default.
	revision string
	rows     map[object.Key]workloadRow
}

// workloadRow is one of them.
type workloadRow struct {
	addresses []string
	// expected is set for a Pod whose proxy is to be connected to this control plane, since when this is known.
	expected bool
	since    time.Time
}

// apply takes note of a change of an object in force.
func (w *workloads) apply(c object.Change, now time.Time) {
	if c.Key.Kind != object.Pod && c.Key.Kind != object.WorkloadEntry {
		return
	}
	if c.Object == nil {
		delete(w.rows, c.Key)
		return
	}
	var row workloadRow
	switch spec := c.Object.Spec.(type) {
	case *object.PodSpec:
		if !spec.Done {
			for _, ip := range spec.IPs {
				row.addresses = append(row.addresses, ip.Unmap().String())
			}
			row.expected = c.Key.Cluster == "" && len(spec.IPs) > 0 && c.Object.Meta.Labels[mesh.TLSModeLabel] == "istio" && w.owns(c.Object.Meta.Labels[mesh.RevisionLabel])
		}
	case *networking.WorkloadEntry:
		row.addresses = []string{spec.Address}
	}
	if row.expected {
		if row.since = w.rows[c.Key].since; row.since.IsZero() {
			row.since = now
		}
	}
	if w.rows == nil {
		w.rows = map[object.Key]workloadRow{}
	}
	w.rows[c.Key] = row
}

// owns reports whether Pods with a label of a revision are those of this control plane.
func (w *workloads) owns(label string) bool {
	own := w.revision
	if own == "" {
		own = "default"
	}
	return label == "" || label == own
}

// factsPage is what pilotctl check asks besides the other pages.
type factsPage struct {
	// Expected is the number of Pods whose proxies are to be connected, Missing those that are not connected to this replica.
	Expected int          `json:"expected"`
	Missing  []missingPod `json:"missing"`
	Proxies  []placeEntry `json:"proxies"`
	// Issued are the newest certificates that this replica has issued and that have not ended.
	Issued []issuedEntry `json:"issued"`
	// Issuer is what signs certificates; nil without a CA.
	Issuer *certificateEntry `json:"issuer,omitempty"`
	// Ports are the addresses that are listened at, by what is served there; empty for what is not served.
	Ports map[string]string `json:"ports"`
}

// missingPod is a Pod without a connected proxy. Since is when its last connection to this replica ended, or, if it had none,
// since when the replica knows the Pod.
type missingPod struct {
	Pod   string `json:"pod"`
	Was   bool   `json:"was"`
	Since string `json:"since"`
}

// placeEntry is a connected proxy.
type placeEntry struct {
	Proxy    string `json:"proxy"`
	Identity string `json:"identity,omitempty"`
	// Address is where its connection comes from, Addresses are its own.
	Address   string   `json:"address"`
	Addresses []string `json:"addresses"`
	// Unknown is set if no Pod, WorkloadEntry or endpoint has one of its addresses.
	Unknown bool `json:"unknown,omitempty"`
	// Capture is what was wrong with its rules of capture.
	Capture string `json:"capture,omitempty"`
	// Certificate is the one that it connected with; nil for another credential.
	Certificate *term `json:"certificate,omitempty"`
}

// issuedEntry is a certificate of a caller from an address.
type issuedEntry struct {
	Identity string `json:"identity"`
	Address  string `json:"address"`
	term
}

// term is when a certificate is valid.
type term struct {
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// certificateEntry describes a certificate.
type certificateEntry struct {
	Subject string `json:"subject,omitempty"`
	Issuer  string `json:"issuer"`
	SHA256  string `json:"sha256,omitempty"`
	term
}

// facts serves what pilotctl check asks.
func (s *Server) facts(w http.ResponseWriter, _ *http.Request) {
	services, ok := s.loop.allServices()
	var rows map[object.Key]workloadRow
	ok = ok && s.loop.ask(func() {
		rows = make(map[object.Key]workloadRow, len(s.loop.workloads.rows))
		for k, row := range s.loop.workloads.rows {
			rows[k] = row
		}
	})
	if !ok {
		unanswered(w)
		return
	}
	known := map[string]bool{}
	for _, i := range services {
		for _, in := range i.instances {
			known[in.Address] = true
			for _, a := range in.Others {
				known[a] = true
			}
		}
	}
	connections := s.xds.Connections()
	out := factsPage{Missing: []missingPod{}, Proxies: []placeEntry{}, Issued: []issuedEntry{}}
	out.Expected, out.Missing = missingPods(rows, connections, s.xds.Left)
	for _, row := range rows {
		for _, a := range row.addresses {
			known[a] = true
		}
	}
	for _, c := range connections {
		out.Proxies = append(out.Proxies, placeOf(c, known))
	}
	for _, i := range s.ca.Issued(time.Now()) {
		out.Issued = append(out.Issued, issuedEntry{i.Identity, i.Address, term{i.NotBefore, i.NotAfter}})
	}
	if !s.opts.CA.Off {
		out.Issuer = issuerEntry(s.authority.State())
	}
	a := s.Addresses()
	out.Ports = map[string]string{"pages": a.HTTP, "xDS in plaintext": a.GRPC, "xDS": a.SecureGRPC, "metrics": a.Monitoring, "webhooks": a.HTTPS}
	writeJSON(w, out)
}

// missingPods are the Pods whose proxies are not connected, of how many that should be. left says when the last connection of a
// proxy ended.
func missingPods(rows map[object.Key]workloadRow, connections []xds.Connection, left func(id string) time.Time) (expected int, out []missingPod) {
	there := map[string]bool{}
	for _, c := range connections {
		there[c.Node.ID] = true
	}
	out = []missingPod{}
	for k, row := range rows {
		if !row.expected {
			continue
		}
		expected++
		id := k.Name + "." + k.Namespace
		if there[id] {
			continue
		}
		p := missingPod{Pod: id}
		since := row.since
		if at := left(id); at.After(since) {
			p.Was, since = true, at
		}
		p.Since = since.UTC().Format(time.RFC3339)
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b missingPod) int { return strings.Compare(a.Pod, b.Pod) })
	return expected, out
}

// placeOf is a connected proxy, of which the known addresses are those of workloads.
func placeOf(c xds.Connection, known map[string]bool) placeEntry {
	e := placeEntry{Proxy: c.Node.ID, Address: hostOf(c.Peer), Unknown: true, Addresses: []string{}, Capture: c.Capture}
	if c.Identity != (mesh.Identity{}) {
		e.Identity = c.Identity.SPIFFE()
	}
	addresses := c.Node.IPs()
	slices.SortFunc(addresses, netip.Addr.Compare)
	for _, ip := range slices.Compact(addresses) {
		text := ip.Unmap().String()
		e.Addresses = append(e.Addresses, text)
		e.Unknown = e.Unknown && !known[text]
	}
	if !c.NotAfter.IsZero() {
		e.Certificate = &term{c.NotBefore, c.NotAfter}
	}
	return e
}

// hostOf is an address without its port.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// issuerEntry describes what signs certificates.
func issuerEntry(s ca.State) *certificateEntry {
	c := describe(s.Issuer.Certificate())
	return &c
}
