package status

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// prefix is the prefix of the agent's metrics.
const prefix = "istio_agent_"

// Page builds metrics in the Prometheus text format 0.0.4. It must not be used by several goroutines
// at once.
type Page struct {
	b    bytes.Buffer
	last string // the name of the last sample
}

// Counter adds a sample of a counter. The name is without the prefix istio_agent_; all samples of one
// name must be consecutive and have the same help. Labels are alternating names and values.
func (p *Page) Counter(name, help string, value float64, labels ...string) {
	p.sample("counter", name, help, value, labels)
}

// Gauge adds a sample of a gauge; see Counter.
func (p *Page) Gauge(name, help string, value float64, labels ...string) {
	p.sample("gauge", name, help, value, labels)
}

// Histogram adds a histogram; see Counter for the name. counts has the number of values up to each bound, and not up to the bound
// before it, and after these the number above all bounds; sum is that of all values.
func (p *Page) Histogram(name, help string, bounds []float64, counts []uint64, sum float64) {
	p.header("histogram", name, help)
	var n uint64
	for i, c := range counts {
		n += c
		le := "+Inf"
		if i < len(bounds) {
			le = formatValue(bounds[i])
		}
		fmt.Fprintf(&p.b, "%s%s_bucket{le=\"%s\"} %d\n", prefix, name, le, n)
	}
	fmt.Fprintf(&p.b, "%s%s_sum %s\n%s%s_count %d\n", prefix, name, formatValue(sum), prefix, name, n)
}

// Bytes returns the text.
func (p *Page) Bytes() []byte { return p.b.Bytes() }

var (
	escapeHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func (p *Page) sample(kind, name, help string, value float64, labels []string) {
	p.header(kind, name, help)
	p.b.WriteString(prefix + name)
	for i := 0; i+1 < len(labels); i += 2 {
		p.b.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(&p.b, `%s="%s"`, labels[i], escapeLabel.Replace(labels[i+1]))
	}
	if len(labels) > 1 {
		p.b.WriteByte('}')
	}
	fmt.Fprintf(&p.b, " %s\n", formatValue(value))
}

func formatValue(v float64) string {
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

// header describes a metric before its first sample.
func (p *Page) header(kind, name, help string) {
	if name != p.last {
		p.last = name
		fmt.Fprintf(&p.b, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, escapeHelp.Replace(help), prefix, name, kind)
	}
}
