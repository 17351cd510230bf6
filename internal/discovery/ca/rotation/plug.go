package rotation

import (
	"fmt"
	"slices"
	"time"
)

// replacedFiles is the reason of a rotation that Plug begins.
const replacedFiles = "another CA is in use: its files have been replaced"

// Plug returns the state after somebody has replaced the CA: the one below root is to sign, and further are the roots to trust besides, root
// perhaps among them. It says in words what changes. A root that has signed and is still trusted signs at once, another one
// is distributed first. One that was being distributed and has not signed is dropped. It changes nothing and returns an
// error that wraps ErrTooMany if there would be too many roots.
func (s State) Plug(root Root, further []Root, now time.Time) (State, []string, error) {
	record := s.recorder(now)
	old, next := s, record(root)
	s.Further = nil
	for _, r := range further {
		s.Further = append(s.Further, record(r))
	}
	i := slices.IndexFunc(s.Retired, func(r Retired) bool { return r.ID == root.ID })
	var changes []string
	switch {
	case root.ID == s.Signer.ID:
		s.Signer, s.Next = root, nil
	case s.Next != nil && root.ID == s.Next.ID:
		replaced := *s.Next
		replaced.Root = root
		s.Next = &replaced
	case i >= 0:
		back := s.Retired[i]
		s.Retired = slices.Delete(slices.Clone(s.Retired), i, i+1)
		s = s.retire(now.Add(ReportTTL))
		s.Signer, s.LastLeaf, s.Next = root, back.Until, nil
		changes = append(changes, fmt.Sprintf("root %.16s signs again", root.ID))
	default:
		if err := s.room(); err != nil {
			return old, nil, err
		}
		next.Why = replacedFiles
		s.Next = &next
		changes = append(changes, fmt.Sprintf("root %.16s is distributed, and signs later", root.ID))
	}
	if old.Next != nil && !slices.ContainsFunc(s.Trusted(), func(r Root) bool { return r.ID == old.Next.ID }) {
		changes = append(changes, fmt.Sprintf("root %.16s is not distributed any more: it has not signed", old.Next.ID))
	}
	return s, changes, nil
}

// recorder returns a function that returns since when a root is distributed. Everybody has those that sign or have signed.
func (s State) recorder(now time.Time) func(Root) Next {
	known := map[string]Next{}
	for _, r := range s.Further {
		known[r.ID] = r
	}
	if s.Next != nil {
		known[s.Next.ID] = *s.Next
	}
	for _, r := range s.signed() {
		known[r.ID] = Next{Added: now, Served: now, Deadline: now}
	}
	return func(r Root) Next {
		n, ok := known[r.ID]
		if !ok {
			n.Added = now
		}
		n.Root, n.Why = r, ""
		return n
	}
}

// signed are the roots that sign or have signed.
func (s State) signed() []Root {
	out := []Root{s.Signer}
	for _, r := range s.Retired {
		out = append(out, r.Root)
	}
	return out
}

// HasPlugged reports whether a CA that was plugged in has a part in the state.
func (s State) HasPlugged() bool {
	return len(s.Further) > 0 || slices.ContainsFunc(s.Trusted(), func(r Root) bool { return r.Plugged })
}
