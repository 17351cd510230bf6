package status

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// prefix stands before the name of every metric of the agent.
const prefix = "istio_agent_"

// Page is a page of metrics in Prometheus' text format 0.0.4 under way. A Page belongs to
// the goroutine that fills it.
type Page struct {
	b    bytes.Buffer
	last string // the family that the last sample belongs to
}

// Counter adds a sample of a counter. Name is without the agent's prefix; all samples of one
// name follow one another and have the same help. Labels are names and values in turn.
func (p *Page) Counter(name, help string, value float64, labels ...string) {
	p.sample("counter", name, help, value, labels)
}

// Gauge adds a sample of a gauge, with the same rules as Counter.
func (p *Page) Gauge(name, help string, value float64, labels ...string) {
	p.sample("gauge", name, help, value, labels)
}

// Bytes is the page.
func (p *Page) Bytes() []byte { return p.b.Bytes() }

var (
	escapeHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func (p *Page) sample(kind, name, help string, value float64, labels []string) {
	if name != p.last {
		p.last = name
		fmt.Fprintf(&p.b, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, escapeHelp.Replace(help), prefix, name, kind)
	}
	p.b.WriteString(prefix + name)
	for i := 0; i+1 < len(labels); i += 2 {
		p.b.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(&p.b, `%s="%s"`, labels[i], escapeLabel.Replace(labels[i+1]))
	}
	if len(labels) > 1 {
		p.b.WriteByte('}')
	}
	fmt.Fprintf(&p.b, " %s\n", number(value))
}

func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "NaN"
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
