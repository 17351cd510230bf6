package check

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/finding"
)

// starting is how long a Pod may take until its proxy is connected.
const starting = time.Minute

// fingerprint is the beginning of a digest, as pilotctl ca status and the logs have it.
func fingerprint(sha256 string) string {
	if sha256 == "" {
		return ""
	}
	return ", sha256 " + sha256[:min(16, len(sha256))]
}

// ofMesh is the worst finding about any replica by what it knows of the mesh. One of an older version does not say it.
func (f *Facts) ofMesh(decide func(Replica, Mesh) Finding) Finding {
	return f.ofReplicas(func(r Replica) Finding {
		m, unknown := missing(r.Mesh)
		switch {
		case unknown && strings.Contains(r.Mesh.Err, "404 "):
			return warning("upgrade the control plane", "not known: this version of the control plane does not say it")
		case unknown:
			return m
		}
		return decide(r, r.Mesh.Value)
	})
}

func issuer(f *Facts) Finding {
	return f.ofMesh(func(_ Replica, m Mesh) Finding {
		c := m.Issuer
		if c == nil {
			return ok("another CA issues certificates")
		}
		const remedy = "pilotctl ca rotate, or replace the files of a CA that is plugged in; pilotctl ca status says more"
		end := c.NotAfter.UTC().Format(time.RFC3339)
		switch left := c.NotAfter.Sub(f.Now); {
		case left <= 0:
			return failed(remedy, "%s has ended at %s", c.Subject, end)
		case left < rootWarning:
			return warning(remedy, "%s ends at %s%s", c.Subject, end, fingerprint(c.SHA256))
		}
		return ok("%s ends at %s%s", c.Subject, end, fingerprint(c.SHA256))
	})
}

func ports(f *Facts) Finding {
	return f.ofMesh(func(r Replica, m Mesh) Finding {
		var open []string
		for _, name := range slices.Sorted(maps.Keys(m.Ports)) {
			if address := m.Ports[name]; address != "" {
				open = append(open, name+" at "+port(address))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(r.Reached)) {
			if why := r.Reached[name]; why != "" {
				return failed("open the port in firewalls and NetworkPolicies", "%s at %s cannot be reached from here: %s", name, port(m.Ports[name]), why)
			}
		}
		if m.Ports["xDS"] == "" {
			return warning("start pilot-discovery with --secureGRPCAddr, unless proxies connect in plaintext on this machine", "no port for proxies of other machines: %s", strings.Join(open, ", "))
		}
		return ok("%s", strings.Join(open, ", "))
	})
}

// port is that of an address, which is said to be open to this host only.
func port(address string) string {
	at, err := netip.ParseAddrPort(address)
	switch {
	case err != nil:
		return address
	case at.Addr().IsLoopback():
		return fmt.Sprintf("%d (its own host only)", at.Port())
	}
	return fmt.Sprint(at.Port())
}

func missingProxies(f *Facts) Finding {
	lacking, times := map[string]MissingPod{}, map[string]int{}
	expected := 0
	all := f.ofMesh(func(_ Replica, m Mesh) Finding {
		expected = max(expected, m.Expected)
		for _, p := range m.Missing {
			times[p.Pod]++
			if have, has := lacking[p.Pod]; !has || p.Was && !have.Was || p.Was == have.Was && p.Since.After(have.Since) {
				lacking[p.Pod] = p
			}
		}
		return ok("")
	})
	if all.Result != OK {
		return all
	}
	var gone []string
	late := false
	for _, name := range slices.Sorted(maps.Keys(lacking)) {
		if times[name] < len(f.Replicas) {
			continue // it is connected to another replica
		}
		p := lacking[name]
		since := "not connected since " + p.Since.UTC().Format(time.RFC3339)
		if !p.Was {
			since = "never connected, known since " + p.Since.UTC().Format(time.RFC3339)
		}
		late = late || f.Now.Sub(p.Since) >= starting
		gone = append(gone, name+" ("+since+")")
	}
	const remedy = "the log of the Pod's proxy says why; if it is to have none, remove its label security.istio.io/tlsMode"
	text := fmt.Sprintf("%d of %d Pods with tlsMode istio: %s", len(gone), expected, shown(gone))
	switch {
	case len(gone) == 0:
		return ok("all %d Pods with tlsMode istio have a connected proxy", expected)
	case late:
		return failed(remedy, "%s", text)
	}
	return warning(remedy, "%s", text)
}

func unknownAddresses(f *Facts) Finding {
	var names []string
	connected := 0
	all := f.ofMesh(func(_ Replica, m Mesh) Finding {
		for _, p := range m.Proxies {
			connected++
			if p.Unknown {
				names = append(names, fmt.Sprintf("%s (%s)", p.Proxy, strings.Join(p.Addresses, ", ")))
			}
		}
		return ok("")
	})
	switch {
	case all.Result != OK:
		return all
	case len(names) > 0:
		slices.Sort(names)
		return warning("end the proxy if its Pod is gone; a machine outside the cluster needs a WorkloadEntry: docs/vms.md", "no workload has the addresses of %d of %d connections: %s", len(names), connected, shown(slices.Compact(names)))
	}
	return ok("each of %d connections is of a known workload", connected)
}

func workloadCertificates(f *Facts) Finding {
	newest := map[[2]string]Term{}
	note := func(identity, address string, t Term) {
		key := [2]string{identity, address}
		if t.NotAfter.After(newest[key].NotAfter) {
			newest[key] = t
		}
	}
	proxies := map[[2]string]string{} // a name, by identity and address
	all := f.ofMesh(func(_ Replica, m Mesh) Finding {
		for _, i := range m.Issued {
			note(i.Identity, i.Address, i.Term)
		}
		for _, p := range m.Proxies {
			if p.Identity == "" {
				continue
			}
			proxies[[2]string{p.Identity, p.Address}] = p.Proxy
			if p.Certificate != nil {
				note(p.Identity, p.Address, *p.Certificate)
			}
		}
		return ok("")
	})
	if all.Result != OK {
		return all
	}
	const remedy = "the log of its agent says why it is not renewed, pilot-agent identity in the Pod what it has"
	var findings []Finding
	first, known := time.Time{}, 0
	for _, key := range slices.SortedFunc(maps.Keys(proxies), func(a, b [2]string) int { return strings.Compare(proxies[a]+a[1], proxies[b]+b[1]) }) {
		t, has := newest[key]
		if !has {
			continue // another CA's, or issued before the control plane started
		}
		known++
		if first.IsZero() || t.NotAfter.Before(first) {
			first = t.NotAfter
		}
		end := t.NotAfter.UTC().Format(time.RFC3339)
		switch {
		case f.Now.After(t.NotAfter):
			findings = append(findings, failed(remedy, "that of %s has ended at %s", proxies[key], end))
		case t.NotAfter.Sub(f.Now) < t.NotAfter.Sub(t.NotBefore)/leafShare:
			findings = append(findings, warning(remedy, "that of %s ends at %s, and is not renewed yet", proxies[key], end))
		}
	}
	switch {
	case len(findings) > 0:
		return finding.Worst(findings)
	case known == 0:
		return ok("none of a connected proxy is known")
	}
	return ok("the first of %d ends at %s", known, first.UTC().Format(time.RFC3339))
}

func captureDrift(f *Facts) Finding {
	var drifted []string
	first := ""
	all := f.ofMesh(func(_ Replica, m Mesh) Finding {
		for _, p := range m.Proxies {
			if p.Capture != "" {
				drifted, first = append(drifted, p.Proxy), p.Capture
			}
		}
		return ok("")
	})
	switch {
	case all.Result != OK:
		return all
	case len(drifted) > 0:
		slices.Sort(drifted)
		drifted = slices.Compact(drifted)
		return warning("find out which program changes them: pilot-agent status in the Pod has when and what", "changed in %s: %s", shown(drifted), first)
	}
	return ok("no agent reports changed rules")
}
