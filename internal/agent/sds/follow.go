package sds

import "errors"

// follower follows the files of the secrets that one stream requests.
type follower struct {
	files   Files
	release map[string]func() // by name; it does nothing if the name cannot be followed
}

// set follows exactly the names of files among names. The error, if any,
// is about names that are new.
func (f *follower) set(names []string) error {
	wanted := map[string]bool{}
	var errs []error
	for _, n := range names {
		if !isFile(n) {
			continue
		}
		wanted[n] = true
		if f.release[n] != nil {
			continue
		}
		release, err := f.files.Follow(n)
		if err != nil {
			errs = append(errs, err)
			release = func() {}
		}
		f.release[n] = release
	}
	for n, release := range f.release {
		if !wanted[n] {
			release()
			delete(f.release, n)
		}
	}
	return errors.Join(errs...)
}

// changed is closed when a file's secret changes; nil if no file is followed.
func (f *follower) changed() <-chan struct{} {
	if len(f.release) == 0 {
		return nil
	}
	return f.files.Changed()
}
