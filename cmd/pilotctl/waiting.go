package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// appliedAnswer is the response of /debug/applied.
type appliedAnswer struct {
	Started      string          `json:"started"`
	Generation   uint64          `json:"generation"`
	NotServed    string          `json:"not_served,omitempty"`
	Objects      []appliedObject `json:"objects"`
	Problems     []problem       `json:"problems,omitempty"`
	Disconnected []string        `json:"disconnected,omitempty"`
}

// appliedObject is how far the newest change of an object has come.
type appliedObject struct {
	Kind       string        `json:"kind"`
	Namespace  string        `json:"namespace,omitempty"`
	Name       string        `json:"name"`
	State      string        `json:"state"`
	Origin     string        `json:"origin,omitempty"`
	Generation uint64        `json:"generation"`
	Proxies    int           `json:"proxies"`
	Applied    int           `json:"applied"`
	Behind     []behindProxy `json:"behind,omitempty"`
	Problems   []problem     `json:"problems,omitempty"`
	// Generations are those of several replicas, by their names, instead of Generation.
	Generations map[string]uint64 `json:"-"`
	// lacking are the replicas in which the object is not in force.
	lacking []string
}

// MarshalJSON implements json.Marshaler.
func (o appliedObject) MarshalJSON() ([]byte, error) {
	type plain appliedObject
	if o.Generations == nil {
		return json.Marshal(plain(o))
	}
	return json.Marshal(struct {
		plain
		Generation  *uint64           `json:"generation,omitempty"` // hides that of plain
		Generations map[string]uint64 `json:"generations"`
	}{plain: plain(o), Generations: o.Generations})
}

// generation is that of the newest change, in the given words; empty with several replicas, of which each counts its
// own.
func (o appliedObject) generation(format string) string {
	if o.Generations != nil {
		return ""
	}
	return fmt.Sprintf(format, o.Generation)
}

// String is the object's name as messages have it.
func (o appliedObject) String() string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	return o.Kind + " " + name
}

// count is how many proxies have the change.
func (o appliedObject) count() string {
	switch o.Proxies {
	case 0:
		return "no proxy is concerned"
	case 1:
		return fmt.Sprintf("%d of 1 proxy has it", o.Applied)
	}
	return fmt.Sprintf("%d of %d proxies have it", o.Applied, o.Proxies)
}

// behindProxy is a proxy that has not applied something, and what it lacks.
type behindProxy struct {
	Proxy      string       `json:"proxy"`
	Generation uint64       `json:"generation"`
	Since      string       `json:"since"`
	Types      []behindType `json:"types,omitempty"`
	Refused    bool         `json:"refused,omitempty"`
}

type behindType struct {
	Type      string   `json:"type"`
	State     string   `json:"state"`
	Resources []string `json:"resources,omitempty"`
	Message   string   `json:"message,omitempty"`
}

// reason is what the proxy lacks, in words.
func (b behindProxy) reason() string {
	var parts []string
	for _, t := range b.Types {
		part := t.Type + " " + t.State
		if len(t.Resources) > 0 {
			part += " (" + strings.Join(t.Resources, ", ") + ")"
		}
		if t.Message != "" {
			part += ": " + t.Message
		}
		if t.Type == "LDS" && strings.Contains(t.Message, cannotBind) {
			part = strings.TrimRight(part, "\n") + " (an address that cannot be bound counts as refused; the listener is sent again until it can be: free the address, then wait again)"
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "not sent yet"
	}
	return strings.Join(parts, "; ")
}

// cannotBind is what Envoy says of a listener whose address it could not bind.
const cannotBind = "cannot bind"

// The states of an object.
const (
	stateInForce  = "in force"
	stateOther    = "not in force"
	stateRejected = "rejected"
	stateRemoved  = "removed"
	stateUnknown  = "unknown"
)

// waiting decides, response by response, whether a wait is over.
type waiting struct {
	// file is that whose versions are waited for; empty for one object.
	file string
	// least is the generation in which the change must be, or in a later one.
	least   uint64
	removed bool
	// started is when the pilot-discovery that has answered so far started.
	started string
	// behind are the proxies that were behind when they were seen last.
	behind map[string]bool
	// lines are about the objects of the last response, and progress is what is missing in one line;
	// details say what each proxy lacks.
	lines    []string
	progress string
	details  []string
}

// proxies are those of which the next request asks whether they are connected.
func (w *waiting) proxies() []string {
	var out []string
	for p := range w.behind {
		out = append(out, p)
	}
	slices.Sort(out)
	return out[:min(len(out), maxAsked)]
}

// maxAsked is how many proxies a request names.
const maxAsked = 100

// step handles a response, and says whether everything has been applied. An error is final.
func (w *waiting) step(a appliedAnswer) (done bool, err error) {
	w.details = nil
	if w.started != "" && a.Started != w.started && w.least > 0 {
		return false, fmt.Errorf("pilot-discovery has restarted, and counts generations anew: wait again without --generation (the newest is %d)", a.Generation)
	}
	w.started = a.Started
	if len(a.Problems) > 0 {
		return false, fmt.Errorf("%s cannot be read:%s", printable.Escape(w.file), problemLines(a.Problems))
	}
	if len(a.Objects) == 0 {
		return false, fmt.Errorf("%s has no object of a kind that the mesh uses", printable.Escape(w.file))
	}
	if a.NotServed != "" {
		w.progress = "no proxy is served: " + printable.Escape(a.NotServed)
		return false, nil
	}
	var open []string
	w.behind, w.lines, done = map[string]bool{}, nil, true
	for _, o := range a.Objects {
		line, ready, err := w.object(o)
		if err != nil {
			return false, err
		}
		done = done && ready
		w.lines = append(w.lines, printable.Escape(line))
		if !ready {
			open = append(open, printable.Escape(line))
		}
	}
	for _, p := range a.Disconnected {
		w.behind[p] = true
		w.details = append(w.details, printable.Escape(p)+": disconnected before it acknowledged")
	}
	if len(open) == 0 {
		open = w.lines
	}
	w.progress = strings.Join(open, "; ")
	return done && len(a.Disconnected) == 0, nil
}

// unknownObject is the error of an object that pilot-discovery has not read.
type unknownObject struct {
	object appliedObject
	error
}

// nearObjects are the objects of the kind of o that one who named o most likely meant, among those in force.
func nearObjects(o appliedObject, among []appliedObject) []string {
	var names []string
	for _, other := range among {
		if other.Kind == o.Kind {
			names = append(names, strings.TrimPrefix(other.Namespace+"/"+other.Name, "/"))
		}
	}
	given := strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")
	found := near(given, names)
	for _, name := range names { // in another namespace
		if strings.HasSuffix(name, "/"+o.Name) && !slices.Contains(found, name) && len(found) < maxNear {
			found = append(found, name)
		}
	}
	return found
}

// object handles the part about one object.
func (w *waiting) object(o appliedObject) (line string, ready bool, err error) {
	name := printable.Escape(o.String())
	switch {
	case o.State == stateRejected && !w.removed:
		return "", false, fmt.Errorf("%s is rejected:%s", name, problemLines(o.Problems))
	case o.State == stateUnknown:
		return "", false, unknownObject{o, fmt.Errorf("%s is not known to pilot-discovery: pilotctl objects --all lists what is; for an object that it has not read yet, give the file with -f", name)}
	case o.State == stateRemoved && !w.removed && w.file == "":
		return "", false, fmt.Errorf("%s was removed%s: --removed waits until the removal is applied", name, o.generation(" in generation %d"))
	case w.removed && o.State != stateRemoved:
		return o.String() + " is still in force", false, nil
	case o.State == stateOther || w.file != "" && o.State == stateRemoved:
		line = o.String() + ": this version is not in force yet"
		switch {
		case len(o.lacking) > 0:
			line += " at " + strings.Join(o.lacking, ", ")
		case o.Origin != "":
			line += "; that of " + o.Origin + " is"
		}
		w.details = append(w.details, strings.TrimPrefix(problemLines(o.Problems), "\n  "))
		return line, false, nil
	case o.Generation < w.least:
		return fmt.Sprintf("%s: the newest change is in generation %d, not in %d or later", o, o.Generation, w.least), false, nil
	}
	var names []string
	refused := false
	for _, b := range o.Behind {
		w.behind[b.Proxy] = true
		names = append(names, b.Proxy)
		refused = refused || b.Refused
		w.details = append(w.details, printable.Escape(b.Proxy)+": "+printable.EscapeLines(b.reason(), "      "))
	}
	if refused {
		return "", false, fmt.Errorf("%s%s: %s, and a proxy refuses it:%s", name, o.generation(" (generation %d)"), o.count(), w.detailLines())
	}
	line = fmt.Sprintf("%s%s: %s", o, o.generation(" (generation %d)"), o.count())
	if o.Applied == o.Proxies {
		return line, true, nil
	}
	const shown = 5
	line += "; waiting for " + strings.Join(names[:min(len(names), shown)], ", ")
	if more := o.Proxies - o.Applied - shown; more > 0 {
		line += fmt.Sprintf(" and %d more", more)
	}
	return line, false, nil
}

// detailLines are the details, each on a line of its own.
func (w *waiting) detailLines() string {
	out := ""
	for _, d := range w.details {
		if d != "" {
			out += "\n  " + d
		}
	}
	return out
}

// timedOut is the error when the time is over; last is why the last request failed, if it did.
func (w *waiting) timedOut(after string, last error) error {
	if last != nil {
		return fmt.Errorf("timed out after %s: %w", after, last)
	}
	return errors.New("timed out after " + after + ": " + w.progress + w.detailLines())
}

func problemLines(problems []problem) string {
	out := ""
	for _, p := range problems {
		line := p.Text
		for _, part := range []string{p.Field, p.Object, p.Origin} {
			if part != "" {
				line = part + ": " + line
			}
		}
		out += "\n  " + printable.EscapeLines(line, "      ")
	}
	return out
}
