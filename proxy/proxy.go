// Package proxy keeps a proxy running in the newest configuration, as a library.
//
// An Agent runs a Proxy in epochs. Each configuration that is handed to it starts the next
// epoch beside the one that runs, which is how Envoy's hot restart wants it; the older
// epochs hand over and end by themselves:
//
//   - Epochs start at 0. The next one is exactly one above the highest that runs, and 0
//     again where none runs. The agent never ends an older epoch because a newer one runs.
//   - A configuration that equals the desired one (reflect.DeepEqual) is a no-op. Of those that have to
//     wait, only the newest is run.
//   - An epoch that fails is tried again after Retry.InitialInterval, doubling, Retry.MaxRetries
//     times; then Panic is called. The budget belongs to the desired configuration and is renewed with it. An
//     epoch whose Run returns nil ended because it was done: it is not run again until
//     another configuration comes.
//   - All of it is decided in one goroutine, that of Agent.Run. Proxy.Run is called in a
//     goroutine of its own for every epoch; Cleanup and Panic are called from the
//     control loop.
//
// A failed epoch leaves the others alone, and its number is used again: one that serves goes on serving,
// whatever becomes of its successor (see WithAbortAll for the agents that did otherwise). Where the Proxy has
// no Live method an epoch counts as live once it is started, and any number of epochs may run. Where it has one (see
// Liver), two epochs run at most, the next one waits until the one before is live, and an epoch that is not live in
// time is given up.
//
// The package also holds what an agent says about itself (Role), an Environment of the
// sources that configuration is made from, and helpers to find addresses.
package proxy

import (
	"context"
	"errors"
	"time"
)

// MaxAborts is how many aborts an epoch's channel has room for, so that none ever waits for its
// reader.
const MaxAborts = 10

// ErrAbort is what an epoch's abort channel brings. Run should return it (or an error that wraps it).
var ErrAbort = errors.New("epoch aborted")

// DrainConfig is the configuration of the one more epoch that WithDrain starts at the end: a proxy that has no
// listeners, or says that it is unhealthy. It makes the one that served a parent that drains.
type DrainConfig struct{}

// Retry says how often and how soon a failed epoch is tried again.
type Retry struct {
	// MaxRetries is how often, for one desired configuration.
	MaxRetries int
	// InitialInterval is the delay before the first of them; it doubles with each one.
	InitialInterval time.Duration
}

// DefaultRetry is 10 retries from 200 ms: the last one comes after about 102 s, 205 s in all.
var DefaultRetry = Retry{MaxRetries: 10, InitialInterval: 200 * time.Millisecond}

// Proxy is what an agent runs.
type Proxy interface {
	// Run runs one epoch with a configuration and returns when it has ended: nil for an end that is
	// meant, ErrAbort after an abort, another error for a failure. It must end soon after abort brings something. It is
	// called in a goroutine of its own, for several epochs at once.
	Run(config any, epoch int, abort <-chan error) error
	// Cleanup is called right after an epoch has ended, before its number may be used
	// again. It is called from the control loop and must not block it, nor call the Agent.
	Cleanup(epoch int)
	// Panic is called with a configuration whose retries are spent. If nothing is left running, Agent.Run returns
	// after it. It is called from the control loop and must not block it, nor call the Agent.
	Panic(config any)
}

// Liver is a Proxy that can tell when an epoch is live.
type Liver interface {
	// Live waits until the epoch serves and returns nil, or an error when that cannot be told; ctx
	// ends with the epoch, and Live must return soon after it. It is called once for every epoch, in a goroutine of its own.
	Live(ctx context.Context, epoch int) error
}

// ProxyFuncs makes a Proxy of functions. Only RunFunc is needed.
type ProxyFuncs struct {
	RunFunc     func(config any, epoch int, abort <-chan error) error
	CleanupFunc func(epoch int)
	PanicFunc   func(config any)
}

// Run calls RunFunc.
func (p ProxyFuncs) Run(config any, epoch int, abort <-chan error) error {
	return p.RunFunc(config, epoch, abort)
}

// Cleanup calls CleanupFunc, if there is one.
func (p ProxyFuncs) Cleanup(epoch int) {
	if p.CleanupFunc != nil {
		p.CleanupFunc(epoch)
	}
}

// Panic calls PanicFunc, if there is one.
func (p ProxyFuncs) Panic(config any) {
	if p.PanicFunc != nil {
		p.PanicFunc(config)
	}
}
