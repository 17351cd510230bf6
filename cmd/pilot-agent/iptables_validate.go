package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/pilothouse/pilothouse/internal/agent/capture"
)

// validationError says that rules are not in force as planned. A controller that repairs Pods
// looks for its exit code. [agent I46, I47]
type validationError struct{ error }

func (e validationError) Unwrap() error { return e.error }

// validate sends connections through the rules.
func (r *iptables) validate(ctx context.Context, out io.Writer, facts capture.Facts) error {
	probes, err := capture.Probes(r.options, facts, r.probePort)
	if err != nil {
		return err
	}
	good, skipped, err := capture.Validation{Probes: probes, Timeout: r.probeTimeout}.Run(ctx)
	for _, reason := range skipped {
		fmt.Fprintln(out, "Not validated:", reason)
	}
	if err == nil && good == 0 && len(probes) > 0 {
		err = errors.New("none of the connections could be made")
	}
	if err != nil {
		return validationError{fmt.Errorf(`validate the capture of traffic: %w
The rules in this network namespace do not do what the options say. If a CNI plugin was to apply
them, it did not, or did it before another plugin replaced them: delete the Pod, or let the
plugin's repair controller do so, which looks for exit code 126`, err)}
	}
	if len(probes) == 0 {
		fmt.Fprintln(out, "There is nothing to validate: the options capture no connection that can be tried")
		return nil
	}
	fmt.Fprintf(out, "%d of %d connections arrived where they should\n", good, len(probes))
	return nil
}
