package health

// tally decides from the results of a probe whether the application is healthy: when as many in a row as the thresholds say
// agree. Nothing is known before.
type tally struct {
	// successes and failures are the thresholds, at least 1.
	successes, failures int

	succeeded, failed int // results in a row
	known, healthy    bool
}

// add takes a result, nil for a success, and returns whether the health has changed.
func (t *tally) add(problem error) (changed bool) {
	if problem == nil {
		t.succeeded, t.failed = t.succeeded+1, 0
	} else {
		t.succeeded, t.failed = 0, t.failed+1
	}
	switch {
	case t.succeeded >= t.successes && !(t.known && t.healthy):
		t.known, t.healthy = true, true
	case t.failed >= t.failures && !(t.known && !t.healthy):
		t.known, t.healthy = true, false
	default:
		return false
	}
	return true
}
