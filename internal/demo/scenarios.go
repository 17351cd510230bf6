package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// scenario is one part of the demo.
type scenario struct {
	name, title string
	run         func(*demo, context.Context) error
	// pod is a workload without whose Pod the scenario is left out; empty: none.
	pod string
}

var scenarios = []scenario{
	{"calls", "Scenario 1. The shopper calls productpage, which calls reviews, which call ratings.", (*demo).calls, ""},
	{"canary", "Scenario 2. Requests with the header x-canary: true are routed to reviews v2.", (*demo).canary, ""},
	{"weights", "Scenario 3. Under load, the weights in the YAML are changed from 90/10 to 50/50.", (*demo).weights, ""},
	{"strict", "Scenario 4. PeerAuthentication is set to STRICT, so that plaintext is refused.", (*demo).strict, ""},
	{"discovery", "Scenario 5. pilot-discovery is killed, and started again.", (*demo).discovery, ""},
	{"envoy", "Scenario 6. The Envoy of ratings is killed with SIGKILL.", (*demo).envoy, ""},
	{"ingress", "Scenario 7. A caller outside reaches productpage through a gateway, over TLS; its certificate is replaced under load.", (*demo).ingress, "ingress"},
	{"egress", "Scenario 8. Requests to a service outside leave by a gateway, which knows who asks.", (*demo).egress, "egress"},
}

const (
	routing  = "40-routing.yaml"
	security = "50-security.yaml"
	// many requests have a share of 10 or 50 % within 5 or 8 points: five standard deviations.
	many = 1000
)

var canaryHeader = http.Header{"X-Canary": {"true"}}

func (d *demo) calls(ctx context.Context) error {
	return d.counted(ctx, func() error {
		d.load.send(ctx, many, nil)
		t := d.load.snapshot()
		d.check("no request failed", noFailure(t))
		d.check("the versions share the traffic 90/10", nearShare(t, 0.10, 0.05))
		d.check("each call had the identity of its caller", identities(t))
		d.check("the database answers over TCP", d.askDatabase(ctx))
		return nil
	})
}

func (d *demo) canary(ctx context.Context) error {
	return d.counted(ctx, func() error {
		d.load.send(ctx, 100, canaryHeader)
		t := d.load.snapshot()
		d.check("no request failed", noFailure(t))
		d.check("all were answered by v2", nearShare(t, 1, 0))
		return nil
	})
}

func (d *demo) weights(ctx context.Context) error {
	return d.counted(ctx, func() error {
		err := d.load.during(ctx, func() error {
			if err := d.awaitSent(ctx, 50); err != nil {
				return err
			}
			took, err := d.setWeights(ctx, split{50, 50})
			d.check(fmt.Sprintf("the edit was in effect in the Envoy of productpage after %d ms", took.Milliseconds()), err)
			return d.awaitSent(ctx, 50)
		})
		if err != nil {
			return err
		}
		t := d.load.snapshot()
		d.check(fmt.Sprintf("none of the %d requests during the edit failed", t.Sent), noFailure(t))
		d.load.reset()
		d.load.send(ctx, many, nil)
		t = d.load.snapshot()
		d.check("no request after the edit failed", noFailure(t))
		d.check("the versions share the traffic 50/50", nearShare(t, 0.50, 0.08))
		return nil
	})
}

// split is the weights of the two versions of reviews.
type split struct{ v1, v2 int }

// other is the split that the demo changes this one to.
func (s split) other() split {
	if s.v1 == s.v2 {
		return split{90, 10}
	}
	return split{50, 50}
}

// yaml is the split as the sample has it.
func (s split) yaml() string {
	return fmt.Sprintf("subset: v1\n          weight: %d\n        - destination:\n            host: reviews\n            subset: v2\n          weight: %d\n", s.v1, s.v2)
}

// setWeights edits the weights and waits until they are in effect in the Envoy of productpage.
func (d *demo) setWeights(ctx context.Context, to split) (time.Duration, error) {
	caller, err := d.pod("productpage")
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := d.edit(ctx, routing, d.split.yaml(), to.yaml()); err != nil {
		return 0, err
	}
	d.split = to
	err = meshup.Await(ctx, d.o.EditBound, "productpage's Envoy has the new weights", func(ctx context.Context) error {
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

// weights are the weights of the versions of reviews in an Envoy's routes.
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
		return s, errors.New("the routes have no weights for reviews")
	}
	return s, nil
}

func (d *demo) strict(ctx context.Context) error {
	legacy, err := d.pod("legacy")
	if err != nil {
		return err
	}
	// Every attempt is a connection of its own, straight to a Pod of reviews.
	client := meshup.Client(legacy.From, 0)
	ask := func(ctx context.Context) (meshup.Answer, error) {
		return meshup.Post(ctx, client, "http://reviews:9080/", nil)
	}

	a, err := ask(ctx)
	if err == nil && (a.Status != http.StatusOK || a.Peer != "") {
		err = fmt.Errorf("status %d, identity %q", a.Status, a.Peer)
	}
	d.check("in PERMISSIVE mode the legacy caller is answered, without an identity", err)
	served := func() (int64, error) {
		all, err := d.served(ctx, shopHops)
		if err != nil {
			return 0, err
		}
		return all[1], nil // of reviews
	}
	err = d.withoutErrors(ctx, func() error {
		return d.load.during(ctx, func() error { return d.refuse(ctx, ask) })
	})
	if err != nil {
		return err
	}
	d.check("no request inside the mesh failed", noFailure(d.load.snapshot()))
	before, err := served()
	if err != nil {
		return err
	}
	_, askErr := ask(ctx)
	after, err := served()
	if err == nil && (askErr == nil || before != after) {
		err = fmt.Errorf("answered (%v), app served %d more", askErr == nil, after-before)
	}
	d.check("refused requests never reach the app", err)
	if err := d.edit(ctx, security, "mode: STRICT", "mode: PERMISSIVE"); err != nil {
		return err
	}
	err = meshup.Await(ctx, d.o.EditBound, "the legacy caller is answered again", func(ctx context.Context) error {
		_, err := ask(ctx)
		return err
	})
	d.check("back in PERMISSIVE mode, the legacy caller is answered", err)
	return nil
}

// refuse sets the policy to STRICT, waits until the legacy caller is refused, and then for more requests.
func (d *demo) refuse(ctx context.Context, ask func(context.Context) (meshup.Answer, error)) error {
	if err := d.edit(ctx, security, "mode: PERMISSIVE", "mode: STRICT"); err != nil {
		return err
	}
	began := time.Now()
	err := meshup.Await(ctx, d.o.EditBound, "the legacy caller is refused", func(ctx context.Context) error {
		_, err := ask(ctx)
		switch {
		case err == nil:
			return errors.New("it is answered")
		case ctx.Err() != nil:
			return ctx.Err() // the wait has ended; the caller was not refused
		}
		return nil
	})
	d.check(fmt.Sprintf("the legacy caller is refused %d ms after the edit", time.Since(began).Milliseconds()), err)
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
			if err := d.mesh.KillDiscovery(ctx); err != nil {
				return err
			}
			if err := d.awaitSent(ctx, 300); err != nil {
				return err
			}
			d.check("no request failed without pilot-discovery", noFailure(d.load.snapshot()))
			if err := d.mesh.StartDiscovery(ctx); err != nil {
				return err
			}
			if _, err := d.awaitInSync(ctx); err != nil {
				return err
			}
			have, err := d.updates(ctx)
			if err != nil {
				return err
			}
			if have != had {
				again = fmt.Errorf("the Envoys got %d updates", have-had)
			}
			took, edited = d.setWeights(ctx, d.split.other())
			return d.awaitSent(ctx, 100)
		})
		if err != nil {
			return err
		}
		t := d.load.snapshot()
		d.check("pilot-discovery is back, every proxy is in sync, and no request failed", noFailure(t))
		d.check("nothing was sent again that the Envoys already had", again)
		d.check(fmt.Sprintf("an edit was in effect after %d ms", took.Milliseconds()), edited)
		return nil
	})
}

func (d *demo) envoy(ctx context.Context) error {
	ratings, err := d.pod("ratings")
	if err != nil {
		return err
	}
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
	d.check(fmt.Sprintf("a new Envoy serves after %d ms", time.Since(began).Milliseconds()), err)
	return d.counted(ctx, func() error {
		d.load.send(ctx, 200, nil)
		d.check("no request after the restart failed", noFailure(d.load.snapshot()))
		return nil
	})
}

// askDatabase sends a line through the shopper's Envoy to the database's.
func (d *demo) askDatabase(ctx context.Context) error {
	shopper, err := d.pod("shopper")
	if err != nil {
		return err
	}
	db, err := d.pod("db")
	if err != nil {
		return err
	}
	line, err := meshup.Line(ctx, shopper.From, "db:5432", "hello")
	name, _, _ := strings.Cut(db.Name, ".")
	if err == nil && line != name+" v1 hello" {
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

// noFailure returns an error with the most frequent failures, if any request failed.
func noFailure(t *counters) error {
	switch {
	case t.Sent == 0:
		return errors.New("no request was made")
	case t.failed() > 0:
		return fmt.Errorf("%d of %d failed: %s", t.failed(), t.Sent, t.topErrors())
	}
	return nil
}

// nearShare compares v2's share of reviews with what it should be.
func nearShare(t *counters, want, within float64) error {
	if have := t.share("reviews", "v2"); math.Abs(have-want) > within {
		return fmt.Errorf("v2 has %.1f %%, want %.0f %% ± %.0f", 100*have, 100*want, 100*within)
	}
	return nil
}

// identities checks that every callee saw its caller's service account.
func identities(t *counters) error {
	if len(t.Edges) == 0 {
		return errors.New("there were no calls")
	}
	for e := range t.Edges {
		if want := "spiffe://" + meshup.Domain + "/ns/bookshop/sa/" + e.From; e.As != want {
			return fmt.Errorf("%s was called with identity %q, want %s", e.To, e.As, want)
		}
	}
	return nil
}
