package up

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// problem is an entry of pilot-discovery's list of what is wrong with objects.
type problem struct {
	Object, Origin, Severity, Field, Text, Meanwhile string
}

// String is the problem on one line, with the place of its object.
func (p problem) String() string {
	var what []string
	for _, part := range []string{p.Object, p.Field, p.Text} {
		if part != "" {
			what = append(what, part)
		}
	}
	out := fmt.Sprintf("%s: %s: %s", p.Severity, p.Origin, strings.Join(what, ": "))
	if p.Meanwhile != "" {
		out += "; " + p.Meanwhile
	}
	return printable.Escape(out)
}

// toldOfObjects are lines of pilot-discovery's log that are printed as problems instead.
var toldOfObjects = []string{"\tconfiguration is not applied", "\tconfiguration has no effect"}

// problems prints what is wrong with objects, when it is new and when it is gone: also references that lead nowhere, which
// pilot-discovery finds when it is asked.
type problems struct {
	s     *session
	next  time.Time
	known map[string]bool
}

func newProblems(s *session) *problems { return &problems{s: s, known: map[string]bool{}} }

// ask is the interval at which pilot-discovery is asked.
const ask = time.Second

func (p *problems) print(ctx context.Context) {
	if now := time.Now(); now.Before(p.next) {
		return
	}
	p.next = time.Now().Add(ask)
	ctx, cancel := context.WithTimeout(ctx, ask)
	defer cancel()
	text, err := p.s.mesh.Get(ctx, p.s.mesh.Net.Host(), p.s.mesh.DiscoveryURL()+"/debug/objectz")
	if err != nil {
		return // it is asked again
	}
	var all []problem
	if err := json.Unmarshal(text, &all); err != nil {
		return
	}
	now := map[string]bool{}
	for _, one := range all {
		line := one.String()
		if one.Severity == "info" {
			continue
		}
		if now[line] = true; !p.known[line] && !(one.Object == "" && p.s.told[one.Origin]) {
			p.s.out.line("%s", line)
		}
	}
	clear(p.s.told)
	gone := 0
	for line := range p.known {
		if !now[line] {
			gone++
		}
	}
	if gone > 0 && len(now) == 0 {
		p.s.out.line("no object has a problem any more")
	}
	p.known = now
}
