package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/agent/bootstrap"
	"github.com/pilothouse/pilothouse/internal/agent/dynamic"
	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/launch"
	"github.com/pilothouse/pilothouse/internal/agent/reload"
	"github.com/pilothouse/pilothouse/internal/agent/sds"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/run"
)

// Times of the dynamic bootstrap.
const (
	// bootstrapSpread is the longest delay of the new Envoy that a changed bootstrap needs: one EnvoyFilter may change those of all Pods of a
	// machine at once.
	bootstrapSpread = 5 * time.Second
	// bootstrapPoll is how often the first Envoy with what discovery changes is looked at until it is live.
	bootstrapPoll = 100 * time.Millisecond
)

// dynamicBootstrap merges what discovery changes in Envoy's bootstrap into the one that the agent builds (decision 69).
type dynamicBootstrap struct {
	store  *dynamic.Store
	spec   *spec.Spec
	node   []byte // that of Envoy, encoded
	pushed *sds.Pushed
	log    *slog.Logger
	// begun is closed when it is decided what Envoy is started with first.
	begun chan struct{}
	// first is what that Envoy has of discovery, and live is set once it is or was live.
	first dynamic.Differences
	live  atomic.Bool

	// running is what the last desired Envoy has of discovery. It is of begin, then of the reloader's goroutine.
	running []byte

	xds        *xdsproxy.Proxy
	envoys     *envoy.Runner
	bootstraps *launch.Folder
	reloader   *reload.Reloader
}

// newDynamic prepares the dynamic bootstrap; nil if it is not asked for.
func newDynamic(s *spec.Spec, pushed *sds.Pushed, log *slog.Logger) (*dynamicBootstrap, error) {
	if !s.Upstream.Bootstrap {
		return nil, nil
	}
	built, err := bootstrap.Build(s)
	if err != nil {
		return nil, err
	}
	node, err := proto.Marshal(built.Message.GetNode())
	if err != nil {
		return nil, fmt.Errorf("encode the node: %w", err)
	}
	log = log.With("scope", "bootstrap")
	return &dynamicBootstrap{
		spec: s, node: node, pushed: pushed, log: log, begun: make(chan struct{}),
		store: dynamic.New(dynamic.Options{
			Dir: copyDir(s.Upstream.Copy), Check: bootstrap.CheckDifferences, Log: log,
			Binding: dynamic.Binding{Node: s.Node.ID.String(), Cluster: s.Node.Cluster, Identity: s.Node.Identity.SPIFFE(), Discovery: s.Upstream.Discovery},
		}),
	}, nil
}

// tasks are those that run beside Envoy.
func (d *dynamicBootstrap) tasks() []run.Task {
	if d == nil {
		return nil
	}
	return []run.Task{{Name: "bootstrap", Run: d.follow}}
}

// await waits until it is decided what Envoy is started with first; false if ctx has ended.
func (d *dynamicBootstrap) await(ctx context.Context) bool {
	if d == nil {
		return true
	}
	select {
	case <-d.begun:
		return true
	case <-ctx.Done():
		return false
	}
}

// begin asks discovery, for a moment, and decides what Envoy is started with first. Nothing that goes wrong prevents the start.
func (d *dynamicBootstrap) begin(ctx context.Context) {
	if d == nil {
		return
	}
	defer close(d.begun)
	asking, cancel := context.WithTimeout(ctx, d.spec.Upstream.BootstrapWait)
	unanswered := d.xds.AskBootstrap(asking, d.node)
	cancel()
	select {
	case <-d.store.Changed(): // it is looked at now
	default:
	}
	now, heard, refused := d.store.Current()
	source := "discovery"
	if !heard {
		source = "the kept copy"
	}
	if unanswered != nil {
		unanswered = fmt.Errorf("discovery did not answer within %s: %s", d.spec.Upstream.BootstrapWait, status.Convert(unanswered).Message())
	}
	switch {
	case refused != "":
		d.log.Warn("Envoy's bootstrap is the agent's alone, since Envoy does not start with what discovery changes in it", "version", now.Version, "reason", refused)
		return
	case len(now.Text) == 0 && unanswered != nil:
		d.log.Warn("Envoy's bootstrap is the agent's alone", "reason", unanswered)
		return
	case len(now.Text) == 0:
		d.log.Info("Envoy's bootstrap is the agent's alone", "reason", "discovery changes nothing in it")
		return
	}
	next := d.spec.WithDifferences(now.Text)
	l, err := d.bootstraps.Validated(ctx, next, launch.Differs)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		d.store.Refuse(now, err.Error(), false)
		d.log.Error("Envoy's bootstrap is the agent's alone, since Envoy refuses what discovery changes in it", "source", source, "version", now.Version, "error", err)
		return
	}
	d.use(now)
	d.first, d.running = now, now.Text
	d.envoys.Begin(l)
	d.reloader.Begin(next, launch.Differs)
	args := []any{"source", source, "version", now.Version}
	if unanswered != nil {
		args = append(args, "reason", unanswered)
	}
	d.log.Info("Envoy's bootstrap has what discovery changes in it", args...)
}

// use says that Envoy has found differences valid, and has it get the secrets in files that they name.
func (d *dynamicBootstrap) use(now dynamic.Differences) {
	d.store.Accept(now)
	if d.pushed != nil {
		d.pushed.Observe(mem.BufferSlice{mem.SliceBuffer(asResponse(now.Text))}, false)
	}
}

// asResponse encodes a state-of-the-world response with one bootstrap.
func asResponse(text []byte) []byte {
	const responseResources, responseType, anyType, anyValue = 2, 4, 1, 2
	resource := protowire.AppendString(protowire.AppendTag(nil, anyType, protowire.BytesType), mesh.BootstrapType)
	resource = protowire.AppendBytes(protowire.AppendTag(resource, anyValue, protowire.BytesType), text)
	out := protowire.AppendBytes(protowire.AppendTag(nil, responseResources, protowire.BytesType), resource)
	return protowire.AppendString(protowire.AppendTag(out, responseType, protowire.BytesType), mesh.BootstrapType)
}

// read adds what discovery changes to a Spec that has been read.
func (d *dynamicBootstrap) read(next *spec.Spec, err error) (*spec.Spec, error) {
	if d == nil || err != nil {
		return next, err
	}
	now, _, _ := d.store.Current()
	return next.WithDifferences(now.Text), nil
}

// admit returns an error if a Spec has other differences than the last one, and Envoy refuses them.
func (d *dynamicBootstrap) admit(ctx context.Context, next *spec.Spec, hash string) error {
	if d == nil || bytes.Equal(d.running, next.Envoy.Differences) {
		return nil
	}
	if now, _, _ := d.store.Current(); bytes.Equal(now.Text, next.Envoy.Differences) && len(now.Text) > 0 {
		if _, err := d.bootstraps.Validated(ctx, next, hash); err != nil {
			if ctx.Err() == nil {
				d.store.Refuse(now, err.Error(), false)
				d.reloader.Look() // for what else has changed
			}
			return fmt.Errorf("version %s of what discovery changes in the bootstrap: Envoy refuses it: %w", now.Version, err)
		}
		d.use(now)
	}
	d.running = next.Envoy.Differences
	return nil
}

// follow has a new Envoy take over when discovery changes something else, until ctx ends.
func (d *dynamicBootstrap) follow(ctx context.Context) error {
	if !d.await(ctx) {
		return nil
	}
	d.watchFirst(ctx)
	for {
		select {
		case <-d.store.Changed():
		case <-ctx.Done():
			return nil
		}
		now, _, _ := d.store.Current()
		if !d.spec.Lifecycle.HotRestart {
			d.log.Warn("discovery has changed Envoy's bootstrap: it takes effect when the Pod is restarted, since there are no hot restarts", "version", now.Version)
			continue
		}
		wait := time.Duration(rand.Int64N(int64(bootstrapSpread))) // #nosec G404 -- only spreads load
		d.log.Info("discovery has changed Envoy's bootstrap: a new Envoy takes over", "version", now.Version, "in", wait.Round(time.Millisecond))
		spread := time.NewTimer(wait)
		select {
		case <-spread.C:
			d.reloader.Look()
		case <-ctx.Done():
			spread.Stop()
			return nil
		}
	}
}

// watchFirst has Envoy started with the agent's own bootstrap if the first one ends before it is live: validation opens no ports.
func (d *dynamicBootstrap) watchFirst(ctx context.Context) {
	if len(d.first.Text) == 0 {
		return
	}
	poll := time.NewTicker(bootstrapPoll)
	defer poll.Stop()
	for {
		switch s := d.envoys.State(); {
		case s.Live:
			d.live.Store(true)
			return
		case s.Ending:
			return
		case !s.LastExitAt.IsZero():
			d.failed(errors.New(s.LastExit))
			d.reloader.Look()
			return
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return
		}
	}
}

// failed takes note of an Envoy that has ended: if it was the first one, and not live, the next agent does not start it like this either.
func (d *dynamicBootstrap) failed(why error) {
	if d == nil || len(d.first.Text) == 0 || d.live.Swap(true) {
		return
	}
	d.store.Refuse(d.first, "Envoy "+why.Error(), true)
	d.log.Error("Envoy does not start with what discovery changes in the bootstrap: it is started with the agent's alone", "version", d.first.Version, "reason", why)
}

// BootstrapReport is what discovery changes in Envoy's bootstrap.
type BootstrapReport struct {
	// Version is discovery's name of it; Bytes is 0 if nothing is changed.
	Version string `json:"version"`
	Bytes   int    `json:"bytes"`
	// Heard says that discovery has answered; else it is the kept one, if there is one.
	Heard bool `json:"heard"`
	// Refused is why Envoy did not start with the newest; empty if it did.
	Refused string `json:"refused,omitempty"`
}

func (d *dynamicBootstrap) report() *BootstrapReport {
	if d == nil {
		return nil
	}
	now, heard, refused := d.store.Current()
	return &BootstrapReport{Version: now.Version, Bytes: len(now.Text), Heard: heard, Refused: refused}
}
