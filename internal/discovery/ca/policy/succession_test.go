package policy

import (
	"crypto/x509"
	"testing"
	"time"
)

func pluggedCA(t *testing.T, signs authority, chain, roots []authority) Plugged {
	t.Helper()
	certs := func(all []authority) (out []*x509.Certificate) {
		for _, a := range all {
			out = append(out, a.cert)
		}
		return out
	}
	issuer, err := NewIssuer(signs.key, certs(chain), noon)
	if err != nil {
		t.Fatal(err)
	}
	return Plugged{Issuer: issuer, Roots: certs(roots)}
}

func TestSuccession(t *testing.T) {
	rootA, rootB := newCA(t, "a", authority{}), newCA(t, "b", authority{})
	belowA, otherA, belowB := newCA(t, "below", rootA), newCA(t, "other", rootA), newCA(t, "below", rootB)
	a := pluggedCA(t, belowA, []authority{belowA, rootA}, []authority{rootA})
	a2 := pluggedCA(t, otherA, []authority{otherA, rootA}, []authority{rootA})
	both := Plugged{Issuer: a.Issuer, Roots: []*x509.Certificate{rootA.cert, rootB.cert}}
	b := pluggedCA(t, belowB, []authority{belowB, rootB}, []authority{rootB})
	const day = 24 * time.Hour
	type step struct {
		at    time.Duration // after noon
		plug  *Plugged
		signs authority
		roots string // "a", "b" or "ab"
		next  time.Duration
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"another intermediate of the same root signs at once", []step{
			{0, nil, belowA, "a", 0}, {1, &a2, otherA, "a", 0}, {day, nil, otherA, "a", 0},
		}},
		{"the same files again", []step{{0, &a, belowA, "a", 0}, {1, &a, belowA, "a", 0}}},
		{"a new root is distributed for a lifetime, and the old one is trusted for another", []step{
			{0, &b, belowA, "ab", day}, {day - 1, nil, belowA, "ab", day}, {day, nil, belowB, "ab", 2 * day},
			{2*day - 1, nil, belowB, "ab", 2 * day}, {2 * day, nil, belowB, "b", 0},
		}},
		{"a root that was added a lifetime before signs at once", []step{
			{0, &both, belowA, "ab", 0}, {day, &b, belowB, "ab", 2 * day}, {2 * day, nil, belowB, "b", 0},
		}},
		{"a root that was added recently waits for the rest", []step{
			{0, &both, belowA, "ab", 0}, {day / 2, &b, belowA, "ab", day}, {day, nil, belowB, "ab", 2 * day},
		}},
		{"back before the new root signs", []step{
			{0, &b, belowA, "ab", day}, {1, &a, belowA, "a", 0}, {2 * day, nil, belowA, "a", 0},
		}},
		{"back after the new root signs", []step{
			{0, &b, belowA, "ab", day}, {day, nil, belowB, "ab", 2 * day}, {day + 1, &a, belowA, "ab", 2 * day}, {2*day + 1, nil, belowA, "a", 0},
		}},
	} {
		s := NewSuccession(a.Issuer, a.Roots)
		for i, st := range tt.steps {
			if st.plug != nil {
				s = s.Plug(*st.plug)
			}
			var next Next
			s, next = s.Step(day, noon.Add(st.at))
			roots := ""
			for _, r := range []authority{rootA, rootB} {
				for _, c := range next.Roots {
					if c.Equal(r.cert) {
						roots += r.cert.Subject.Organization[0]
					}
				}
			}
			at := time.Duration(0)
			if !next.At.IsZero() {
				at = next.At.Sub(noon)
			}
			if !next.Issuer.Certificate().Equal(st.signs.cert) || roots != st.roots || at != st.next {
				t.Errorf("%s: step %d: signs %s, roots %s, next %s; want %s, %s, %s", tt.name, i, next.Issuer.Certificate().Subject, roots, at, st.signs.cert.Subject, st.roots, st.next)
			}
		}
	}
}

// A new root does not wait for the lifetime of certificates when the old one ends before.
func TestSuccessionBeforeTheEnd(t *testing.T) {
	old := newCA(t, "old", authority{}, func(c *x509.Certificate) { c.NotAfter = noon.Add(2 * time.Hour) })
	fresh := newCA(t, "new", authority{})
	a, b := pluggedCA(t, old, []authority{old}, []authority{old}), pluggedCA(t, fresh, []authority{fresh}, []authority{fresh})
	s, next := NewSuccession(a.Issuer, a.Roots).Plug(b).Step(24*time.Hour, noon)
	if want := noon.Add(2*time.Hour - forcedBefore); !next.Waits || !next.At.Equal(want) {
		t.Fatalf("waits %v until %s, want %s", next.Waits, next.At, want)
	}
	if _, next = s.Step(24*time.Hour, next.At); next.Waits || next.Issuer != b.Issuer {
		t.Errorf("a minute before the end of the old root %v signs", next.Issuer)
	}
}
