package sds

import "errors"

// follower follows the files that one stream names.
type follower struct {
	files   Files
	release map[string]func() // by name; it does nothing where the name cannot be followed
}

// set follows the names of files among names, and no others any more. The error, if any,
// is about names that were not there before.
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

// changed is closed when a file's secret changes; nil where no file is followed.
func (f *follower) changed() <-chan struct{} {
	if len(f.release) == 0 {
		return nil
	}
	return f.files.Changed()
}
