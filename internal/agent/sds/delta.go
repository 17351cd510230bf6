package sds

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// delta is the state of one stream of the delta variant: a state machine without I/O. The zero
// value is a stream without a request.
type delta struct {
	names  map[string]told
	nonce  int
	begun  bool // a request was received
	nacked int  // nonce of the response whose NACK was reported
}

// told is what the client knows of a name.
type told struct{ version, problem string }

// request handles a request. The error ends the stream: the request is invalid.
func (d *delta) request(r *deltaRequest) (report, error) {
	if r.typeURL != "" && r.typeURL != TypeURL {
		return report{}, fmt.Errorf("invalid type %.200q: want %s", r.typeURL, TypeURL)
	}
	if d.names == nil {
		d.names = map[string]told{}
	}
	// The lists count whether or not the request answers a response. (xDS protocol, "Incremental xDS")
	for _, n := range r.unsubscribe {
		delete(d.names, n)
	}
	for _, n := range r.subscribe {
		known := told{} // a repeated subscription asks for the secret again
		if !d.begun {
			known.version = r.versions[n]
		}
		d.names[n] = known
	}
	d.begun = true
	if err := checkNames(slices.Collect(maps.Keys(d.names))); err != nil {
		return report{}, err
	}
	if r.refused && r.nonce == strconv.Itoa(d.nonce) && d.nacked != d.nonce {
		d.nacked = d.nonce
		return report{"Envoy rejected a secret and keeps the previous one", r.reason}, nil
	}
	return report{}, nil
}

// subscribed returns the names of the stream, sorted.
func (d *delta) subscribed() []string { return slices.Sorted(maps.Keys(d.names)) }

// response returns the response to send now, nil if nothing has changed: each secret whose version the client does not have, and
// for each name that is not served an error. Such a name is also listed as removed, which is how clients
// learn that a resource does not exist.
func (d *delta) response(find lookup) *response {
	r := &response{delta: true}
	var all [][]byte
	for _, n := range d.subscribed() {
		got, known := find(n), d.names[n]
		all = append(all, []byte(n), []byte(got.version))
		switch {
		case got.problem != "" && got.problem != known.problem:
			r.problems = append(r.problems, problem{n, got.problem})
			d.names[n] = told{problem: got.problem}
		case got.problem == "" && got.version != "" && got.version != known.version:
			r.resources = append(r.resources, named{n, got.version, got.encode()})
			d.names[n] = told{version: got.version}
		}
	}
	if len(r.resources)+len(r.problems) == 0 {
		return nil
	}
	d.nonce++
	r.version, r.nonce = pki.VersionOf(all...), strconv.Itoa(d.nonce)
	return r
}
