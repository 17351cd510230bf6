package ca

import (
	"slices"
	"time"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
)

// RotationStatus is the state of the roots, for people. Times are zero if they do not apply.
type RotationStatus struct {
	Phase rotation.Phase `json:"phase"`
	Roots []RootStatus   `json:"roots"`
	// Due is when the next rotation begins by itself.
	Due time.Time `json:"due,omitzero"`
	// PluggedIn says that a CA in files signs, or is to sign.
	PluggedIn bool `json:"pluggedIn,omitempty"`
	// Why is the reason of the rotation that is in progress.
	Why string `json:"why,omitempty"`
	// Distributed is since when all instances distribute the next root, Deadline when it signs at the latest: all
	// leaves have ended then that were issued without it.
	Distributed time.Time `json:"distributed,omitzero"`
	Deadline    time.Time `json:"deadline,omitzero"`
	// Instances are the instances of the control plane that run, with who has not acknowledged the roots.
	Instances []rotation.Report `json:"instances"`
	// Problem is why the state cannot be changed now; empty if it can.
	Problem string `json:"problem,omitempty"`
}

// RootStatus is one trusted root.
type RootStatus struct {
	// SHA256 is the digest of the certificate in hexadecimal.
	SHA256 string `json:"sha256"`
	// Role is signs, next, retired, or file: trusted because the files of the plugged-in CA have it.
	Role      string    `json:"role"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
	// LastLeaf is when the last leaf ends that it has signed; for a retired root, until when it is trusted.
	LastLeaf time.Time `json:"lastLeaf,omitzero"`
	// Serving says that it issues the control plane's own certificates.
	Serving bool `json:"serving"`
}

// Status returns the state as of the last look, at most a few seconds ago.
func (r *Rotator) Status() RotationStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, now := r.state, time.Now()
	out := RotationStatus{Phase: s.Phase(), PluggedIn: r.files != nil, Problem: r.problem, Instances: []rotation.Report{}}
	if !s.Signer.Plugged {
		out.Due = r.options.Policy.Due(s.Signer)
	}
	for _, i := range r.reports {
		if now.Sub(i.At) <= rotation.ReportTTL {
			out.Instances = append(out.Instances, i)
		}
	}
	slices.SortFunc(out.Instances, func(a, b rotation.Report) int { return a.At.Compare(b.At) })
	listed := map[string]bool{}
	add := func(root rotation.Root, role string, last time.Time) {
		if listed[root.ID] {
			return
		}
		listed[root.ID] = true
		out.Roots = append(out.Roots, RootStatus{SHA256: root.ID, Role: role, NotBefore: root.NotBefore, NotAfter: root.NotAfter, LastLeaf: last, Serving: root.ID == r.serves})
	}
	add(s.Signer, "signs", s.LastLeaf)
	if n := s.Next; n != nil {
		add(n.Root, "next", time.Time{})
		out.Why, out.Distributed, out.Deadline = n.Why, n.Served, n.Deadline
		out.Due = time.Time{}
	}
	for _, t := range s.Retired {
		add(t.Root, "retired", t.Until)
	}
	for _, t := range s.Further {
		add(t.Root, "file", time.Time{})
	}
	return out
}

// Metrics returns the metrics of the rotation. It is safe for concurrent use.
func (r *Rotator) Metrics() []Metric {
	s := r.Status()
	waiting := 0
	for _, i := range s.Instances {
		waiting += i.Waiting
	}
	phases := map[rotation.Phase]float64{rotation.Stable: 0, rotation.Distributing: 1, rotation.Overlap: 2}
	failing := 0.0
	if s.Problem != "" {
		failing = 1
	}
	due := 0.0
	if !s.Due.IsZero() {
		due = float64(s.Due.Unix())
	}
	return []Metric{
		{Name: "pilothouse_ca_rotation_phase", Help: "Phase of the root's rotation: 0 stable, 1 a new root is distributed, 2 the new root signs and the old one is trusted.", Value: phases[s.Phase]},
		{Name: "pilothouse_ca_rotation_waiting_proxies", Help: "Proxies that have not acknowledged the trusted roots.", Value: float64(waiting)},
		{Name: "pilothouse_ca_rotation_failing", Help: "1 while the state of the root's rotation cannot be read or changed, else 0.", Value: failing},
		{Name: "pilothouse_ca_rotation_due_timestamp", Help: "When the root's next rotation begins by itself, in seconds since 1970; 0 while one is in progress, and for a CA that is plugged in.", Value: due},
		{Name: "pilothouse_ca_trusted_roots", Help: "Roots of the mesh's CA that are trusted.", Value: float64(len(s.Roots))},
	}
}
