package podstate

import corev1 "k8s.io/api/core/v1"

// Kind is a kind of probe.
type Kind int

// The kinds of probes.
const (
	Startup Kind = iota
	Readiness
	Liveness
)

// Threshold turns results of a probe into verdicts: a result counts once it has come as often in a row as the probe's
// thresholds say. The zero value has seen nothing. For one goroutine.
type Threshold struct {
	last bool
	row  int32
}

// Add counts a result. It returns whether a verdict is reached, which is then the result itself.
func (t *Threshold) Add(p *corev1.Probe, ok bool) bool {
	if t.row == 0 || t.last != ok {
		t.last, t.row = ok, 0
	}
	t.row++
	limit := p.FailureThreshold
	if ok {
		limit = p.SuccessThreshold
	}
	return t.row >= max(limit, 1)
}
