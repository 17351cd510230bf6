package agent

import (
	"context"
	"fmt"
	"time"
)

// captureInterval is how often it is looked at whether there is something to report on capture.
const captureInterval = 5 * time.Second

// summary says what was wrong with the rules of capture; empty for nothing.
func (c CaptureReport) summary() string {
	switch {
	case c.Problem != "":
		return "the rules of capture cannot be checked: " + c.Problem
	case c.Restored > 0:
		return fmt.Sprintf("another program changed the rules of capture, which were restored %d times, last at %s: %s", c.Restored, c.Last.UTC().Format(time.RFC3339), c.Found)
	}
	return ""
}

// reportCapture calls report with the summary whenever it has changed, until ctx ends. Where nothing was ever wrong it calls nothing.
func reportCapture(ctx context.Context, every time.Duration, look func() CaptureReport, report func(string)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := ""; ; {
		if text := look().summary(); text != last {
			report(text)
			last = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
