package xds

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the expected effects in testdata")

// TestScripts plays the scripts of testdata/sub. A script's first line is the flavour;
// then come events, each with the effects that it must have, marked "<":
//
//	view GENERATION TYPE NAME=CONTENT[:EDS NAME][>CLUSTER,…] … TYPE …   everything there is; after >
//	                                                  are the clusters that a resource names, if known;
//	                                                  a route configuration NAME=CONTENT:vhds has virtual hosts
//	req TYPE [ack N | nack N "message" | nonce N] [init NAME=CONTENT …] [sub] NAME … -NAME …
//	                                                  where "" is the empty name
//	now DURATION [behind]                                   since the start
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/sub/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(b))
			if *update {
				if err := os.WriteFile(f, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if got != string(b) {
				t.Errorf("%s: want\n%s\ngot\n%s", f, b, got)
			}
		})
	}
}

// script is a Sub with what it takes to talk of it in words.
type script struct {
	t        *testing.T
	sub      *Sub
	start    time.Time
	contents map[string]string // by version
}

func play(t *testing.T, text string) string {
	s := &script{t: t, start: time.Unix(1e9, 0), contents: map[string]string{}}
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "<") {
			continue
		}
		out.WriteString(line)
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		for _, e := range s.line(line) {
			fmt.Fprintf(&out, "< %s\n", s.describe(e))
		}
	}
	return out.String()
}

func (s *script) line(line string) []Effect {
	if s.sub == nil {
		s.sub = NewSub(line == "delta", nil)
		return s.sub.Step(Now{T: s.start})
	}
	words := strings.Fields(line)
	switch words[0] {
	case "view":
		return s.sub.Step(Moved{View: s.view(words[1:])})
	case "req":
		return s.sub.Step(s.request(line))
	case "now":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			s.t.Fatal(err)
		}
		return s.sub.Step(Now{T: s.start.Add(d), Behind: len(words) > 2 && words[2] == "behind"})
	}
	s.t.Fatalf("unknown event %q", line)
	return nil
}

func (s *script) typ(word string) (Type, bool) {
	i := slices.IndexFunc(Types(), func(t Type) bool { return t.String() == word })
	return Type(max(i, 0)), i >= 0
}

func (s *script) resource(t Type, word string) *Resource {
	name, content, _ := strings.Cut(word, "=")
	content, clusters, known := strings.Cut(content, ">")
	content, needs, _ := strings.Cut(content, ":")
	r := NewResource(t, name, []byte(content))
	if t == RDS && needs == "vhds" {
		r = separateResource(name, content)
	} else {
		r.Needs, r.slow = needs, content == "dns"
	}
	if known {
		naming(r, strings.FieldsFunc(clusters, func(c rune) bool { return c == ',' })...)
	}
	s.contents[r.Version] = content
	return r
}

func (s *script) view(words []string) *View {
	v := &View{}
	if _, err := fmt.Sscan(words[0], &v.Generation); err != nil {
		s.t.Fatal(err)
	}
	var typ Type
	for _, w := range words[1:] {
		if t, ok := s.typ(w); ok {
			typ = t
		} else {
			v = v.With(typ, []*Resource{s.resource(typ, w)}, nil)
		}
	}
	return v
}

func (s *script) request(line string) *Request {
	line, message, _ := strings.Cut(strings.ReplaceAll(line, `""`, emptyName), `"`)
	if message != "" {
		quoted, rest, _ := strings.Cut(message, `"`)
		message, line = strings.ReplaceAll(quoted, `\n`, "\n"), line+rest
	}
	words := strings.Fields(line)[1:]
	r := &Request{Message: message}
	r.Type, _ = s.typ(words[0])
	initial := false
	var names, unsubscribe []string
	for i := 1; i < len(words); i++ {
		switch w := words[i]; {
		case w == emptyName:
			names = append(names, "")
		case w == "ack" || w == "nack" || w == "nonce":
			i++
			r.Nonce, r.Refused = words[i], w == "nack"
		case w == "init":
			initial = true
		case w == "sub":
			initial = false
		case initial:
			res := s.resource(r.Type, w)
			r.Initial.add(res.Name, res.Version)
		case w[0] == '-':
			unsubscribe = append(unsubscribe, w[1:])
		default:
			names = append(names, w)
		}
	}
	r.Names, r.Unsubscribe = namesOf(names...), namesOf(unsubscribe...)
	return r
}

// emptyName stands for the name "" in the words of a request.
const emptyName = "\x00"

func (s *script) describe(e Effect) string {
	switch e := e.(type) {
	case Send:
		out := fmt.Sprintf("send %s %s g%d:", e.Type, e.Nonce, e.Generation)
		for _, r := range e.Upserts {
			out += " " + cmp.Or(r.Name, `""`) + "=" + s.contents[r.Version]
		}
		for _, n := range e.Removed {
			out += " -" + n
		}
		for _, n := range e.Absent {
			out += " ?" + n
		}
		return out
	case Acked:
		if e.Refused > 0 {
			return fmt.Sprintf("acked %s %s, %d refused", e.Type, e.Nonce, e.Refused)
		}
		return fmt.Sprintf("acked %s %s", e.Type, e.Nonce)
	case Nacked:
		again := map[bool]string{true: " again"}[e.Again]
		return fmt.Sprintf("nacked%s %s %s %q: %s", again, e.Type, e.Nonce, e.Names, strings.ReplaceAll(e.Message, "\n", `\n`))
	case Stuck:
		return fmt.Sprintf("stuck %s %s since %s", e.Type, e.Nonce, e.Since.Sub(s.start))
	case Unrefused:
		return fmt.Sprintf("unrefused %s", e.Type)
	case Applied:
		return fmt.Sprintf("applied %d", e.Generation)
	case Stale:
		return fmt.Sprintf("stale %s", e.Type)
	case Wake:
		return fmt.Sprintf("wake %s", e.At.Sub(s.start))
	case NeedsWholeRoutes:
		return "needs whole routes"
	case Refuse:
		return "refuse " + e.Reason
	}
	return fmt.Sprintf("%T", e)
}
