package ui

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// State is what the page shows at one moment. The hub makes rows of it, which say what has changed.
type State struct {
	Status   Status
	Proxies  []Proxy
	Problems []Problem
	Edits    []Edit
	Services []Service
	Traffic  Traffic
}

// Status is about the control plane itself.
type Status struct {
	Version    string    `json:"version"`
	Instance   string    `json:"instance,omitempty"`
	Started    time.Time `json:"started"`
	Generation uint64    `json:"generation"`
	// NotServed is why no proxy is served; empty if proxies are served. Notes are further lines of readiness.
	NotServed string   `json:"notServed,omitempty"`
	Notes     []string `json:"notes,omitempty"`
	// Metrics is set if requests are known from metrics.
	Metrics bool `json:"metrics,omitempty"`
	// Left is how many rows of a section are not sent, because it has more than its bound.
	Left map[string]int `json:"left,omitempty"`
}

// Proxy is one connected proxy.
type Proxy struct {
	// Connection is unique in the process.
	Connection string `json:"-"`
	Name       string `json:"name"`
	Role       string `json:"role"`
	Envoy      string `json:"envoy,omitempty"`
	Identity   string `json:"identity,omitempty"`
	// Epoch is the restart epoch of its Envoy; empty if it is not known.
	Epoch string `json:"epoch,omitempty"`
	// Connected is since when. CertificateEnds is the end of the newest certificate that is known of it: the one that it connected with, or
	// one that this replica has issued to it since; nil for none.
	Connected       time.Time  `json:"connected"`
	CertificateEnds *time.Time `json:"certificateEnds,omitempty"`
	Types           []Type     `json:"types,omitempty"`
	// Behind is what the proxy has not applied; nil if it has applied everything.
	Behind *Behind `json:"behind,omitempty"`
	// Refusal is the last refusal, one that still holds if there is one; nil if there is none. Refusals counts all of the connection.
	Refusal  *Refusal `json:"refusal,omitempty"`
	Refusals int      `json:"refusals,omitempty"`
	// Older is set if the proxy has connected again since: the stream is that of an Envoy that is being drained.
	Older bool `json:"older,omitempty"`
	// Quarantined are resources of which it gets the last accepted version, as in "RDS 80".
	Quarantined []string `json:"quarantined,omitempty"`
	// NotApplied are the fields of its ProxyConfig that it does not get.
	NotApplied []string `json:"notApplied,omitempty"`
}

// Type is the state of one type of resources of a proxy; State is as pilotctl has it: synced, waiting, sent, stuck, refused
// or not asked.
type Type struct {
	Name      string `json:"name"`
	State     string `json:"state"`
	Resources int    `json:"resources"`
}

// Behind is the first generation that a proxy has not applied, and since when it was to have it.
type Behind struct {
	Generation uint64    `json:"generation"`
	Since      time.Time `json:"since"`
}

// Refusal is what a proxy has refused. Holds is unset if it has accepted a later version.
type Refusal struct {
	At        time.Time `json:"at"`
	Type      string    `json:"type"`
	Holds     bool      `json:"holds,omitempty"`
	Resources []string  `json:"resources,omitempty"`
	Message   string    `json:"message"`
}

// Problem is something wrong with the configuration.
type Problem struct {
	Severity string `json:"severity"`
	Object   string `json:"object,omitempty"`
	// Origin is file:line.
	Origin string `json:"origin,omitempty"`
	Field  string `json:"field,omitempty"`
	Text   string `json:"text"`
	// Meanwhile is what is in force instead.
	Meanwhile string `json:"meanwhile,omitempty"`
}

// Edit is one change of the configuration: a generation.
type Edit struct {
	Generation uint64    `json:"generation"`
	At         time.Time `json:"at"`
	// Objects are the first objects that have changed, Count is how many there are. None may have: a proxy's refusal, or the end
	// of the first read, changes what is served, too.
	Objects []EditObject `json:"objects,omitempty"`
	Count   int          `json:"count"`
	// Milliseconds is how long the control plane took, Runs how many rules it ran.
	Milliseconds float64 `json:"milliseconds"`
	Runs         uint64  `json:"runs"`
	// Resources is how many resources have changed, each counted once, whoever has it; Bytes is the size of their new versions.
	Resources int `json:"resources"`
	Bytes     int `json:"bytes"`
	// Classes is how many classes of proxies, and Proxies how many proxies the change is for. Applied is how many of these have
	// it, or a later version in its place, and AppliedMilliseconds when the last of them had, from At. Gone have left before.
	Classes             int     `json:"classes"`
	Proxies             int     `json:"proxies"`
	Applied             int     `json:"applied"`
	AppliedMilliseconds float64 `json:"appliedMilliseconds"`
	Gone                int     `json:"gone,omitempty"`
}

// EditObject is an object of an Edit. Origin is file:line; empty if the object was removed.
type EditObject struct {
	Object  string `json:"object"`
	Origin  string `json:"origin,omitempty"`
	Removed bool   `json:"removed,omitempty"`
}

// The sections of the page: the names of the parts of an update.
const (
	sectionStatus   = "status"
	sectionProxies  = "proxies"
	sectionProblems = "problems"
	sectionChanges  = "changes"
	sectionServices = "services"
	sectionTraffic  = "traffic"
)

// maxRows bounds what a section has.
var maxRows = map[string]int{sectionStatus: 1, sectionProxies: 10000, sectionProblems: 2000, sectionChanges: 1000, sectionServices: 10000, sectionTraffic: 10000}

// Bounds of a text and of a list in a row.
const (
	maxText = 2000 // bytes
	maxList = 50
)

// Rows are the encoded rows of each section, by key. They are immutable once they are made.
type Rows map[string]map[string]string

// RowsOf encodes a state. What has too many rows, or too long a text, is cut, and the status says how much is left out.
func RowsOf(s State) Rows {
	out := Rows{}
	s.Status.Left = map[string]int{}
	same := map[string]int{} // how many rows a section has with a key, by both
	add := func(section, key string, row any) {
		rows := out[section]
		if rows == nil {
			rows = map[string]string{}
			out[section] = rows
		}
		if len(rows) >= maxRows[section] {
			s.Status.Left[section]++
			return
		}
		if same[section+key]++; same[section+key] > 1 {
			key = fmt.Sprintf("%s#%d", key, same[section+key])
		}
		rows[key] = encode(row)
	}
	for _, p := range s.Proxies {
		p.Quarantined, p.NotApplied = clipList(p.Quarantined), clipList(p.NotApplied)
		p.Name, p.Identity, p.Envoy = clip(p.Name), clip(p.Identity), clip(p.Envoy)
		if p.Refusal != nil {
			r := *p.Refusal
			r.Message, r.Resources = clip(r.Message), clipList(r.Resources)
			p.Refusal = &r
		}
		add(sectionProxies, p.Connection, p)
	}
	for _, p := range s.Problems {
		p.Object, p.Origin, p.Field, p.Text, p.Meanwhile = clip(p.Object), clip(p.Origin), clip(p.Field), clip(p.Text), clip(p.Meanwhile)
		add(sectionProblems, p.Severity+" "+p.Object+" "+p.Origin+" "+p.Field+" "+printable.Clip(p.Text, 100), p)
	}
	for _, e := range s.Edits {
		e.Objects = slices.Clone(e.Objects)
		for i, o := range e.Objects {
			e.Objects[i].Object, e.Objects[i].Origin = clip(o.Object), clip(o.Origin)
		}
		add(sectionChanges, strconv.FormatUint(e.Generation, 10), e)
	}
	received := s.Traffic.received()
	for _, x := range s.Services {
		x.Access, x.Policies = access(x.Groups)
		x.Access, x.Policies, x.Ports, x.Host = clipList(x.Access), clipList(x.Policies), clipList(x.Ports), clip(x.Host)
		x.Versions, x.Routes = slices.Clone(x.Versions[:min(len(x.Versions), maxList)]), slices.Clone(x.Routes[:min(len(x.Routes), maxList)])
		for i := range x.Versions {
			x.Versions[i].Name = clip(x.Versions[i].Name)
		}
		for i, r := range x.Routes {
			r.Name, r.To = clip(r.Name), slices.Clone(r.To[:min(len(r.To), maxList)])
			for j := range r.To {
				r.To[j].Name = clip(r.To[j].Name)
			}
			x.Routes[i] = r
		}
		add(sectionServices, x.Key, x)
		if r := received[x.Host]; r.Requests > 0 {
			add(sectionTraffic, x.Key, r.rounded())
		}
	}
	s.Status.Metrics = s.Traffic.Known
	if s.Traffic.Problem != "" {
		s.Status.Notes = append(slices.Clone(s.Status.Notes), "requests are not known: "+s.Traffic.Problem)
	}
	s.Status.Notes = clipList(s.Status.Notes)
	add(sectionStatus, sectionStatus, s.Status)
	return out
}

// clip bounds a text, and shows what is not printable by its escape: a mark that reverses the direction of writing would
// make a name look like another one.
func clip(s string) string { return printable.EscapeLines(printable.Clip(s, maxText), "") }

func clipList(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	out := make([]string, min(len(list), maxList))
	for i := range out {
		out[i] = clip(list[i])
	}
	if more := len(list) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out
}

// encode is the JSON of a row or an update. It panics if there is none, which their types rule out.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("ui: encode: " + err.Error())
	}
	return string(text)
}

// Update is the difference between two states.
type Update map[string]*Change

// Change is the difference between the rows of a section: those that are new or different, and the keys of those that are gone.
type Change struct {
	Set  map[string]json.RawMessage `json:"set,omitempty"`
	Gone []string                   `json:"gone,omitempty"`
}

// Diff returns what a client that has the rows of before, nil for none, lacks of now; it is empty if that is nothing.
func Diff(before, now Rows) Update {
	out := Update{}
	of := func(section string) *Change {
		if out[section] == nil {
			out[section] = &Change{Set: map[string]json.RawMessage{}}
		}
		return out[section]
	}
	for section, rows := range now {
		for key, row := range rows {
			if before[section][key] != row {
				of(section).Set[key] = json.RawMessage(row)
			}
		}
	}
	for section, rows := range before {
		for key := range rows {
			if _, still := now[section][key]; !still {
				c := of(section)
				c.Gone = append(c.Gone, key)
			}
		}
	}
	return out
}
