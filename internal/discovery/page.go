package discovery

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca"
	"github.com/pilothouse/pilothouse/internal/discovery/ui"
	"github.com/pilothouse/pilothouse/internal/discovery/xds"
	"github.com/pilothouse/pilothouse/internal/object"
)

// newHub returns the hub of the page at /ui.
func (s *Server) newHub() *ui.Hub { return ui.NewHub(s.pageState, ui.Limits{}) }

// pageState is what the page shows now.
func (s *Server) pageState() ui.State {
	out := ui.State{Status: ui.Status{Version: s.opts.Version, Instance: s.opts.Names.Instance, Started: s.started.UTC(), NotServed: s.notReady(), Notes: s.readyNotes()}}
	views, ok := s.loop.viewsSnapshot()
	if !ok {
		out.Status.Notes = append(out.Status.Notes, "the control plane does not answer: what is shown may be old")
		views = &viewsSnapshot{}
	}
	out.Status.Generation = views.generation
	connections := s.xds.Connections()
	isOlder := older(connections)
	ends := certificateEnds(s.ca.Issued(time.Now()))
	for _, c := range connections {
		p, known := views.proxies[c.ID]
		if !known {
			p.view = &xds.View{}
		}
		shown := pageProxy(c, p)
		shown.Older = isOlder[c.ID]
		if at := ends[[2]string{shown.Identity, hostOf(c.Peer)}]; shown.Identity != "" && at.After(c.NotAfter) {
			shown.CertificateEnds = new(at.UTC())
		}
		out.Proxies = append(out.Proxies, shown)
	}
	out.Edits = s.loop.timeline.list()
	out.Services = s.loop.pageServices()
	out.Traffic = s.pageTraffic()
	problems, _ := s.problemEntries()
	for _, e := range problems {
		if e.Severity == object.Info.String() {
			continue // nothing is wrong
		}
		out.Problems = append(out.Problems, ui.Problem{Severity: e.Severity, Object: e.Object, Origin: e.Origin, Field: e.Field, Text: e.Text, Meanwhile: e.Meanwhile})
	}
	return out
}

// certificateEnds are the ends of certificates, by the identity and the address that they were issued to. Most proxies connect with a
// token, and all renew their certificates without connecting again.
func certificateEnds(all []ca.Issued) map[[2]string]time.Time {
	out := map[[2]string]time.Time{}
	for _, i := range all {
		out[[2]string{i.Identity, i.Address}] = i.NotAfter
	}
	return out
}

// pageTraffic is what is known of requests.
func (s *Server) pageTraffic() ui.Traffic {
	if s.traffic == nil {
		return ui.Traffic{}
	}
	latest := s.traffic.Latest()
	out := ui.Traffic{Known: true, Problem: latest.Problem}
	for _, e := range latest.Edges {
		out.Edges = append(out.Edges, ui.Edge{From: ui.Workload(e.From), Host: e.Host, Requests: e.Requests, Errors: e.Errors})
	}
	return out
}

// askForTraffic asks the source of metrics, if there is one, while pages are open.
func (s *Server) askForTraffic(ctx context.Context) error {
	if s.traffic == nil {
		<-ctx.Done()
		return nil
	}
	return s.traffic.Run(ctx)
}

// pageProxy is a connection as the page shows it; of has its view.
func pageProxy(c xds.Connection, of proxySnapshot) ui.Proxy {
	out := ui.Proxy{
		Connection: c.ID, Name: c.Node.ID, Role: string(c.Node.Role), Envoy: strings.TrimPrefix(c.Node.UserAgent, "envoy/"), Epoch: c.Node.Metadata.Epoch, Connected: c.Since.UTC(),
		Quarantined: c.Quarantined, NotApplied: c.Node.Metadata.NotApplied.Names(),
	}
	if c.Identity.Namespace != "" {
		out.Identity = c.Identity.SPIFFE()
	}
	if !c.NotAfter.IsZero() {
		ends := c.NotAfter.UTC()
		out.CertificateEnds = &ends
	}
	if of.latest != nil {
		if p := of.progress(); p.Missing != 0 {
			out.Behind = &ui.Behind{Generation: p.Missing, Since: p.Since.UTC()}
		}
	}
	for _, t := range xds.Types() {
		st, asked := c.Types[t]
		if !asked && (of.view.Of(t).Len() == 0 || c.Only != "" && c.Only != t.String()) {
			continue
		}
		out.Types = append(out.Types, ui.Type{Name: t.String(), Resources: st.Resources, State: typeState(st, asked)})
		out.Refusals += st.Rejects
		// One that holds is shown rather than a later one that does not.
		holds := st.Message != ""
		if r := out.Refusal; !st.LastRejected.IsZero() && (r == nil || holds && !r.Holds || holds == r.Holds && st.LastRejected.After(r.At)) {
			out.Refusal = &ui.Refusal{At: st.LastRejected.UTC(), Type: t.String(), Holds: holds, Resources: slices.Clone(st.Refused), Message: st.LastMessage}
		}
	}
	return out
}

// typeState is the state of one type in the terms of pilotctl.
func typeState(st xds.TypeStatus, asked bool) string {
	switch {
	case st.Message != "":
		return "refused"
	case !st.Stuck.IsZero():
		return "stuck"
	case !asked:
		return "not asked"
	case st.Synced:
		return "synced"
	case st.SentNonce == st.AckedNonce:
		return "waiting"
	}
	return "sent"
}
