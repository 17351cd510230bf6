package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// act is one thing that the demo shows.
type act struct {
	name, title string
	play        func(*demo, context.Context) error
}

var acts = []act{
	{"calls", "Act 1. The shopper asks the productpage, which asks reviews, which ask ratings.", (*demo).calls},
	{"canary", "Act 2. Requests with the header x-canary: true are for reviews v2 only.", (*demo).canary},
	{"weights", "Act 3. While requests run, the YAML's weights go from 90/10 to 50/50.", (*demo).weights},
	{"strict", "Act 4. PeerAuthentication becomes STRICT: who comes in plaintext is refused.", (*demo).strict},
	{"discovery", "Act 5. pilot-discovery is killed, and comes back.", (*demo).discovery},
	{"envoy", "Act 6. The Envoy of ratings is killed with -9.", (*demo).envoy},
}

const (
	routing  = "40-routing.yaml"
	security = "50-security.yaml"
	// many requests make a share of 10 or 50 % certain to 5 or 8 points: five standard deviations.
	many = 1000
)

var canaryHeader = http.Header{"X-Canary": {"true"}}

func (d *demo) calls(ctx context.Context) error {
	return d.counted(ctx, func() error {
		d.load.drive(ctx, many, nil)
		t := d.load.snapshot()
		d.hold("no request failed", noFailure(t))
		d.hold("the versions share the traffic 90/10", nearShare(t, 0.10, 0.05))
		d.hold("each call was made with the caller's identity", identities(t))
		d.hold("the database answers over TCP", d.askDatabase(ctx))
		return nil
	})
}

func (d *demo) canary(ctx context.Context) error {
	return d.counted(ctx, func() error {
		d.load.drive(ctx, 100, canaryHeader)
		t := d.load.snapshot()
		d.hold("no request failed", noFailure(t))
		d.hold("every one was answered by v2", nearShare(t, 1, 0))
		return nil
	})
}

func (d *demo) weights(ctx context.Context) error {
	return d.counted(ctx, func() error {
		err := d.load.during(ctx, func() error {
			if err := d.awaitSent(ctx, 50); err != nil {
				return err
			}
			took, err := d.reweight(ctx, split{50, 50})
			d.hold(fmt.Sprintf("the edit was in productpage's Envoy after %d ms", took.Milliseconds()), err)
			return d.awaitSent(ctx, 50)
		})
		if err != nil {
			return err
		}
		t := d.load.snapshot()
		d.hold(fmt.Sprintf("none of the %d requests meanwhile failed", t.Sent), noFailure(t))
		d.load.reset()
		d.load.drive(ctx, many, nil)
		t = d.load.snapshot()
		d.hold("no request after it failed", noFailure(t))
		d.hold("the versions share the traffic 50/50", nearShare(t, 0.50, 0.08))
		return nil
	})
}

// split is the weights of the versions of reviews.
type split struct{ v1, v2 int }

// other is the split that the demo turns this one into.
func (s split) other() split {
	if s.v1 == s.v2 {
		return split{90, 10}
	}
	return split{50, 50}
}

// yaml is how the sample writes it.
func (s split) yaml() string {
	return fmt.Sprintf("subset: v1\n          weight: %d\n        - destination:\n            host: reviews\n            subset: v2\n          weight: %d\n", s.v1, s.v2)
}

// reweight edits the weights and waits until productpage's Envoy has them.
func (d *demo) reweight(ctx context.Context, to split) (time.Duration, error) {
	began := time.Now()
	if err := edit(filepath.Join(d.config, routing), d.split.yaml(), to.yaml()); err != nil {
		return 0, err
	}
	d.split = to
	caller := d.mesh.Pod("productpage-1.bookshop")
	err := meshup.Await(ctx, 10*time.Second, "productpage's Envoy has the new weights", func(ctx context.Context) error {
		dump, err := caller.Admin(ctx, "/config_dump?resource=dynamic_route_configs")
		if err != nil {
			return err
		}
		have, err := weights(dump)
		if err == nil && have != to {
			err = fmt.Errorf("it has %d/%d, not %d/%d", have.v1, have.v2, to.v1, to.v2)
		}
		return err
	})
	return time.Since(began), err
}

// weights are those that an Envoy's routes give the versions of reviews.
func weights(dump []byte) (split, error) {
	var all any
	if err := json.Unmarshal(dump, &all); err != nil {
		return split{}, fmt.Errorf("read Envoy's routes: %w", err)
	}
	var s split
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			name, _ := v["name"].(string)
			// outbound|PORT|SUBSET|HOST
			parts := strings.Split(name, "|")
			if n, ok := v["weight"].(float64); ok && len(parts) == 4 && parts[3] == "reviews.bookshop.svc."+meshup.Domain {
				switch parts[2] {
				case "v1":
					s.v1 = int(n)
				case "v2":
					s.v2 = int(n)
				}
			}
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(all)
	if s == (split{}) {
		return s, errors.New("the routes give the versions of reviews no weights")
	}
	return s, nil
}

func (d *demo) strict(ctx context.Context) error {
	legacy := d.mesh.Pod("legacy-1.bookshop")
	// Every attempt is a connection of its own, straight to a Pod of reviews.
	client := meshup.Client(legacy.Net, 0)
	ask := func(ctx context.Context) (meshup.Answer, error) {
		return meshup.Post(ctx, client, "http://reviews:9080/", nil)
	}

	a, err := ask(ctx)
	if err == nil && (a.Status != http.StatusOK || a.Peer != "") {
		err = fmt.Errorf("status %d, identity %q", a.Status, a.Peer)
	}
	d.hold("the legacy caller is answered while PERMISSIVE, as nobody", err)
	file := filepath.Join(d.config, security)
	served := func() (int64, error) { return d.mesh.Pod("reviews-v1-1.bookshop").Served(ctx) }
	err = d.untroubled(ctx, func() error {
		return d.load.during(ctx, func() error { return d.refuse(ctx, file, ask) })
	})
	if err != nil {
		return err
	}
	d.hold("no request inside the mesh failed meanwhile", noFailure(d.load.snapshot()))
	before, err := served()
	if err != nil {
		return err
	}
	_, askErr := ask(ctx)
	after, err := served()
	if err == nil && (askErr == nil || before != after) {
		err = fmt.Errorf("answered (%v), app served %d more", askErr == nil, after-before)
	}
	d.hold("what is refused never reaches the app", err)
	if err := edit(file, "mode: STRICT", "mode: PERMISSIVE"); err != nil {
		return err
	}
	err = meshup.Await(ctx, 10*time.Second, "the legacy caller is answered again", func(ctx context.Context) error {
		_, err := ask(ctx)
		return err
	})
	d.hold("PERMISSIVE again, it is answered again", err)
	return nil
}

// refuse turns the policy to STRICT, waits until the legacy caller is refused, and lets
// more requests run.
func (d *demo) refuse(ctx context.Context, file string, ask func(context.Context) (meshup.Answer, error)) error {
	if err := edit(file, "mode: PERMISSIVE", "mode: STRICT"); err != nil {
		return err
	}
	began := time.Now()
	err := meshup.Await(ctx, 10*time.Second, "the legacy caller is refused", func(ctx context.Context) error {
		_, err := ask(ctx)
		switch {
		case err == nil:
			return errors.New("it is answered")
		case ctx.Err() != nil:
			return ctx.Err() // it is the wait that ended, not the caller that was refused
		}
		return nil
	})
	d.hold(fmt.Sprintf("the legacy caller is refused, %d ms after the edit", time.Since(began).Milliseconds()), err)
	return d.awaitSent(ctx, 200)
}

func (d *demo) discovery(ctx context.Context) error {
	return d.counted(ctx, func() error {
		var took time.Duration
		var again, edited error
		err := d.load.during(ctx, func() (err error) {
			had, err := d.updates(ctx)
			if err != nil {
				return err
			}
			if err := d.mesh.KillDiscovery(); err != nil {
				return err
			}
			if err := d.awaitSent(ctx, 300); err != nil {
				return err
			}
			d.hold("traffic goes on without it", noFailure(d.load.snapshot()))
			if err := d.mesh.StartDiscovery(ctx); err != nil {
				return err
			}
			if err := d.awaitAllSettled(ctx); err != nil {
				return err
			}
			have, err := d.updates(ctx)
			if err != nil {
				return err
			}
			if have != had {
				again = fmt.Errorf("the Envoys took %d updates", have-had)
			}
			took, edited = d.reweight(ctx, d.split.other())
			return d.awaitSent(ctx, 100)
		})
		if err != nil {
			return err
		}
		t := d.load.snapshot()
		d.hold("it is back, every proxy is in sync, and no request failed", noFailure(t))
		d.hold("it sent nothing again that the Envoys had", again)
		d.hold(fmt.Sprintf("it is in charge: an edit was applied after %d ms", took.Milliseconds()), edited)
		return nil
	})
}

func (d *demo) envoy(ctx context.Context) error {
	ratings := d.mesh.Pod("ratings-1.bookshop")
	began := time.Now()
	old, err := ratings.KillEnvoy()
	if err != nil {
		return err
	}
	err = meshup.Await(ctx, 30*time.Second, "ratings is served by a new Envoy", func(ctx context.Context) error {
		pid, err := ratings.EnvoyPID()
		if err == nil && pid == old {
			err = errors.New("the old one is still there")
		}
		if err != nil {
			return err
		}
		a, err := meshup.Post(ctx, d.load.client, d.load.url, nil)
		if bad := a.FirstFailure(); err == nil && bad != "" {
			err = errors.New(bad)
		}
		return err
	})
	d.hold(fmt.Sprintf("a new one serves after %d ms", time.Since(began).Milliseconds()), err)
	return d.counted(ctx, func() error {
		d.load.drive(ctx, 200, nil)
		d.hold("no request after that failed", noFailure(d.load.snapshot()))
		return nil
	})
}

// askDatabase sends a line through the shopper's Envoy to the database's.
func (d *demo) askDatabase(ctx context.Context) error {
	line, err := meshup.Line(ctx, d.mesh.Pod("shopper-1.bookshop").Net, "db:5432", "hello")
	if err == nil && line != "db-1 v1 hello" {
		err = fmt.Errorf("it answers %q", line)
	}
	return err
}

// awaitSent waits until n more requests have been made.
func (d *demo) awaitSent(ctx context.Context, n int) error {
	goal := d.load.sent() + n
	return meshup.Await(ctx, time.Minute, fmt.Sprintf("%d more requests are made", n), func(context.Context) error {
		if have := d.load.sent(); have < goal {
			return fmt.Errorf("%d are missing", goal-have)
		}
		return nil
	})
}

// noFailure says which requests failed.
func noFailure(t *tally) error {
	switch {
	case t.Sent == 0:
		return errors.New("none was made")
	case t.failed() > 0:
		return fmt.Errorf("%d of %d failed: %s", t.failed(), t.Sent, t.worst())
	}
	return nil
}

// nearShare compares v2's share of reviews with what it should be.
func nearShare(t *tally, want, within float64) error {
	if have := t.share("reviews", "v2"); math.Abs(have-want) > within {
		return fmt.Errorf("v2 has %.1f %%, want %.0f %% give or take %.0f", 100*have, 100*want, 100*within)
	}
	return nil
}

// identities checks that every callee saw its caller's service account.
func identities(t *tally) error {
	if len(t.Edges) == 0 {
		return errors.New("nobody called anybody")
	}
	for e := range t.Edges {
		if want := "spiffe://" + meshup.Domain + "/ns/bookshop/sa/" + e.From; e.As != want {
			return fmt.Errorf("%s was called as %q, want %s", e.To, e.As, want)
		}
	}
	return nil
}
