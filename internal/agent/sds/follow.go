package sds

// follower follows the files of the secrets that one stream requests.
type follower struct {
	files   Files // nil if no secrets of files are served
	allowed Names
	entries map[string]followed // by name
}

// followed is the name of a secret of files. If it has a problem, it is not followed.
type followed struct {
	release func()
	problem string
}

func newFollower(files Files, allowed Names) *follower {
	return &follower{files: files, allowed: allowed, entries: map[string]followed{}}
}

// notAllowed is the problem of a name that Envoy's configuration does not use.
const notAllowed = "the configuration that Envoy was given names no such file"

// set follows exactly the names of files among names. It returns the problems that are new. A name that cannot be
// followed is tried again at each call, because the configuration may name its files later.
func (f *follower) set(names []string) (problems []string) {
	wanted := map[string]bool{}
	for _, n := range names {
		if !isFile(n) || f.files == nil {
			continue
		}
		wanted[n] = true
		had, known := f.entries[n]
		allowed := f.allowed.Has(n)
		if had.release != nil {
			if allowed {
				continue
			}
			had.release()
		}
		e := followed{problem: notAllowed}
		if allowed {
			release, err := f.files.Follow(n)
			e = followed{release: release}
			if err != nil {
				e = followed{problem: err.Error()}
			}
		}
		if e.problem != "" && (!known || e.problem != had.problem) {
			problems = append(problems, e.problem)
		}
		f.entries[n] = e
	}
	for n, e := range f.entries {
		if !wanted[n] {
			if e.release != nil {
				e.release()
			}
			delete(f.entries, n)
		}
	}
	return problems
}

// changed is closed when a file's secret changes; nil if no file is requested.
func (f *follower) changed() <-chan struct{} {
	if len(f.entries) == 0 {
		return nil
	}
	return f.files.Changed()
}

// namesChanged is closed when the names that may be requested change; nil if no file is requested.
func (f *follower) namesChanged() <-chan struct{} {
	if len(f.entries) == 0 {
		return nil
	}
	return f.allowed.Changed()
}
