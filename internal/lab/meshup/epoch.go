package meshup

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Epoch says which of the Envoys of a Pod serves.
type Epoch struct {
	Number int
	// Running is how many Envoys run.
	Running int
	// Live is the time when the Envoy that serves became live.
	Live time.Time
	// Failures counts restarts after failures.
	Failures int
	// Notes are the agent's notes on what could not be done as configured.
	Notes string
}

// Epoch reads the status page of the agent.
func (p *Pod) Epoch(ctx context.Context) (Epoch, error) {
	text, err := p.mesh.Get(ctx, p.Net, fmt.Sprintf("http://127.0.0.1:%d/debug/status", mesh.StatusPort))
	if err != nil {
		return Epoch{}, fmt.Errorf("ask the agent of %s for its Envoys: %w", p.Spec.Key(), err)
	}
	var page struct {
		Facts struct {
			Envoy struct{ Epoch, Restarts int }
		}
		Detail struct {
			Restarts struct {
				Processes []struct {
					Epoch int
					Since time.Time
				}
				Notes map[string]string
			}
		}
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return Epoch{}, fmt.Errorf("ask the agent of %s for its Envoys: %w", p.Spec.Key(), err)
	}
	e := Epoch{Number: page.Facts.Envoy.Epoch, Failures: page.Facts.Envoy.Restarts, Running: len(page.Detail.Restarts.Processes)}
	for _, run := range page.Detail.Restarts.Processes {
		if run.Epoch == e.Number {
			e.Live = run.Since
		}
	}
	var notes []string
	for subject, text := range page.Detail.Restarts.Notes {
		notes = append(notes, subject+": "+text)
	}
	e.Notes = strings.Join(notes, "; ")
	return e, nil
}
