package objectstatus

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Bounds of what a replica tells others, in bytes.
const (
	// MaxReports is the size as it is stored: five replicas fit into one ConfigMap. It is enough for some 50,000 objects.
	MaxReports = 200 << 10
	// maxDecoded is the size as JSON.
	maxDecoded = 8 << 20
)

// Reports are what one replica tells others of all objects.
type Reports struct {
	// Revision is that of the control plane: one of another revision does not know all objects.
	Revision string
	Objects  map[object.Key]Report
}

// line is one object.
type line struct {
	Kind      object.Kind `json:"k"`
	Namespace string      `json:"s"`
	Name      string      `json:"n"`
	InForce   int64       `json:"g"`
	Proxies   int         `json:"p,omitempty"`
	Applied   int         `json:"a,omitempty"`
	Refused   int         `json:"r,omitempty"`
	Refusals  []Finding   `json:"f,omitempty"`
}

type document struct {
	Revision string `json:"revision,omitempty"`
	Objects  []line `json:"objects"`
}

// Encode returns the reports as compressed JSON, the same for the same reports. It returns an error if they are
// larger than MaxReports.
func (r *Reports) Encode() ([]byte, error) {
	d := document{Revision: r.Revision}
	for k, o := range r.Objects {
		d.Objects = append(d.Objects, line{k.Kind, k.Namespace, k.Name, o.InForce, o.Proxies, o.Applied, o.Refused, o.Refusals})
	}
	slices.SortFunc(d.Objects, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if err := json.NewEncoder(z).Encode(d); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if out.Len() > MaxReports {
		return nil, fmt.Errorf("report on %d objects to the other replicas: %d bytes, want at most %d", len(d.Objects), out.Len(), MaxReports)
	}
	return out.Bytes(), nil
}

// DecodeReports decodes what Encode has encoded.
func DecodeReports(text []byte) (*Reports, error) {
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("decode the report of a replica: %w", err)
	}
	all, err := io.ReadAll(io.LimitReader(z, maxDecoded+1))
	if err != nil {
		return nil, fmt.Errorf("decode the report of a replica: %w", err)
	}
	if len(all) > maxDecoded {
		return nil, fmt.Errorf("decode the report of a replica: more than %d bytes", maxDecoded)
	}
	var d document
	if err := json.Unmarshal(all, &d); err != nil {
		return nil, fmt.Errorf("decode the report of a replica: %w", err)
	}
	out := &Reports{Revision: d.Revision, Objects: make(map[object.Key]Report, len(d.Objects))}
	for _, l := range d.Objects {
		out.Objects[object.Key{Kind: l.Kind, Namespace: l.Namespace, Name: l.Name}] = Report{
			InForce: l.InForce, Refusals: l.Refusals, Counts: Counts{Proxies: l.Proxies, Applied: l.Applied, Refused: l.Refused},
		}
	}
	return out, nil
}

// Differences are the objects of which two reports say something else; nil stands for no report.
func Differences(a, b *Reports) (out []object.Key) {
	var x, y map[object.Key]Report
	if a != nil {
		x = a.Objects
	}
	if b != nil {
		y = b.Objects
	}
	for k, r := range x {
		if other, ok := y[k]; !ok || r.InForce != other.InForce || r.Counts != other.Counts || !sameFindings(r.Refusals, other.Refusals) {
			out = append(out, k)
		}
	}
	for k := range y {
		if _, ok := x[k]; !ok {
			out = append(out, k)
		}
	}
	return out
}
