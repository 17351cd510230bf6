package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// cost is what one server did in a step. Times are in seconds, sizes in bytes.
type cost struct {
	P50       float64 `json:"p50"`     // until half of the streams were done
	P99       float64 `json:"p99"`     // until 99 of 100 were
	Last      float64 `json:"last"`    // until all were
	CPU       float64 `json:"cpu"`     // of the server
	Clients   float64 `json:"clients"` // CPU of this program
	Sent      int64   `json:"sent"`
	Asked     int64   `json:"asked"`
	Responses int64   `json:"responses"`
	Resources int64   `json:"resources"`
	PeakRSS   int64   `json:"peakRSS"`
}

// mean is the mean of several runs; of the peaks, the greatest counts.
func mean(runs []cost) cost {
	var sum cost
	for _, c := range runs {
		sum.P50 += c.P50
		sum.P99 += c.P99
		sum.Last += c.Last
		sum.CPU += c.CPU
		sum.Clients += c.Clients
		sum.Sent += c.Sent
		sum.Asked += c.Asked
		sum.Responses += c.Responses
		sum.Resources += c.Resources
		sum.PeakRSS = max(sum.PeakRSS, c.PeakRSS)
	}
	n := len(runs)
	for _, x := range []*float64{&sum.P50, &sum.P99, &sum.Last, &sum.CPU, &sum.Clients} {
		*x /= float64(n)
	}
	for _, x := range []*int64{&sum.Sent, &sum.Asked, &sum.Responses, &sum.Resources} {
		*x /= int64(n)
	}
	return sum
}

// at is a percentile of sorted times, in seconds.
func at(times []time.Duration, percent int) float64 {
	if len(times) == 0 {
		return 0
	}
	return times[(len(times)*percent+99)/100-1].Seconds()
}

// row is a step, done by pilot-discovery and by the wire server.
type row struct {
	Step      string `json:"step"`
	Runs      int    `json:"runs"` // of which figures are means
	Discovery cost   `json:"discovery"`
	Wire      cost   `json:"wire"`
}

// memoryCost is what a server holds, in bytes of heap and stacks in use.
type memoryCost struct {
	Empty int64 `json:"empty"` // without a stream
	All   int64 `json:"all"`   // for each stream of the first, with what is compiled for them
	More  int64 `json:"more"`  // for each further stream of a proxy that has one
	Slow  int64 `json:"slow"`  // for each stream that reads nothing, after the changes; 0 without such
}

// report is the result of a run.
type report struct {
	Options options `json:"options"`
	Rows    []*row  `json:"rows"`
	// Resources are how many resources of all types together streams have, at least and at most.
	Resources [2]int     `json:"resources"`
	Discovery memoryCost `json:"memory"`
	Wire      memoryCost `json:"wireMemory"`
	// Restarts is how often streams to pilot-discovery had to begin anew, since their connections were closed before
	// they were answered.
	Restarts int64 `json:"restarts,omitempty"`
	// Client is what one stream costs this program, in bytes of heap and stacks in use.
	Client int64 `json:"clientMemory"`
}

// count sets how many resources streams have, if it is not set.
func (r *report) count(f *fleet) {
	if r.Resources[1] > 0 {
		return
	}
	for i, s := range f.streams {
		n := 0
		for typ := range numTypes {
			n += s.count(typ)
		}
		if i == 0 {
			r.Resources = [2]int{n, n}
		}
		r.Resources = [2]int{min(n, r.Resources[0]), max(n, r.Resources[1])}
	}
}

func (r *report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// table writes two lines for each step: pilot-discovery's, and the wire's limit.
func (r *report) table(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s\n\n", r.title()); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(columns ...string) { fmt.Fprintln(t, strings.Join(columns, "\t")+"\t") } // the error is Flush's
	line("", "p50", "p99", "last", "server CPU", "× wire", "sent", "responses", "resources", "received", "peak RSS", "clients' CPU")
	figures := func(name string, c cost, times string) {
		line(name, seconds(c.P50), seconds(c.P99), seconds(c.Last), seconds(c.CPU), times, megabytes(c.Sent),
			fmt.Sprint(c.Responses), fmt.Sprint(c.Resources), megabytes(c.Asked), megabytes(c.PeakRSS), seconds(c.Clients))
	}
	for _, row := range r.Rows {
		if row.Step == stepCertificates {
			figures(row.Step, row.Discovery, "")
			continue
		}
		figures(row.Step, row.Discovery, ratio(row.Discovery.CPU, row.Wire.CPU))
		figures("the wire's limit", row.Wire, "")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", r.memory())
	return err
}

// title describes the run.
func (r *report) title() string {
	o, protocol, transport := r.Options, "state of the world", "plaintext"
	if o.Delta {
		protocol = "delta"
	}
	if o.TLS {
		transport = "mutual TLS"
	}
	atATime := ""
	if o.AtATime > 0 && o.AtATime < o.Streams {
		atATime = fmt.Sprintf(", %d opening at a time", o.AtATime)
	}
	return fmt.Sprintf("%d streams (%s, %s%s); %d services × %d endpoints in %d namespaces; %d–%d resources for each stream; changes are means of %d",
		o.Streams, protocol, transport, atATime, o.Mesh.Services, o.Mesh.Endpoints, o.Mesh.Namespaces, r.Resources[0], r.Resources[1], o.Repeat)
}

func (r *report) memory() string {
	text := fmt.Sprintf("heap and stacks in use: %s without streams; %s for each stream with what is compiled for it (the wire's limit: %s); %s for each further stream of a proxy that has one (%s); %s for each stream in the clients",
		megabytes(r.Discovery.Empty), kilobytes(r.Discovery.All), kilobytes(r.Wire.All), kilobytes(r.Discovery.More), kilobytes(r.Wire.More), kilobytes(r.Client))
	if r.Options.SlowReaders > 0 {
		text += fmt.Sprintf("; %s for each stream that reads nothing (%s)", kilobytes(r.Discovery.Slow), kilobytes(r.Wire.Slow))
	}
	if r.Restarts > 0 {
		text += fmt.Sprintf("; streams began anew %d times, since their connections were closed before they were answered", r.Restarts)
	}
	return text
}

// markdown writes the report as a table for docs/performance.md: a line for each step, with the wire's limit.
func (r *report) markdown(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "%s; %s.\n\n", r.title(), r.memory())
	out.WriteString("| | processor time | the wire's | × wire | p50, p99, last stream | the wire's last | sent | requests | peak RSS | the wire's | clients' processor time |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.Rows {
		d, limit := row.Discovery, row.Wire
		if row.Step == stepCertificates {
			fmt.Fprintf(&out, "| %s | %s | | | %.2f, %.2f, %s | | | | %s | | %s |\n", row.Step, seconds(d.CPU), d.P50, d.P99, seconds(d.Last), megabytes(d.PeakRSS), seconds(d.Clients))
			continue
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %.2f, %.2f, %s | %s | %s | %s | %s | %s | %s |\n", row.Step, seconds(d.CPU), seconds(limit.CPU), ratio(d.CPU, limit.CPU),
			d.P50, d.P99, seconds(d.Last), seconds(limit.Last), megabytes(d.Sent), megabytes(d.Asked), megabytes(d.PeakRSS), megabytes(limit.PeakRSS), seconds(d.Clients))
	}
	out.WriteString("\n")
	_, err := io.WriteString(w, out.String())
	return err
}

func seconds(s float64) string { return fmt.Sprintf("%.3f s", s) }

func megabytes(n int64) string { return fmt.Sprintf("%.2f MB", float64(n)/1e6) }

func kilobytes(n int64) string { return fmt.Sprintf("%.0f kB", float64(n)/1e3) }

// ratio is how many times the second the first is; there is none of what is too little to compare with.
func ratio(a, b float64) string {
	if b < 0.0005 {
		return "-"
	}
	return fmt.Sprintf("%.1f", a/b)
}
