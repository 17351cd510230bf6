// Package proxy is a library that keeps a proxy running with the newest configuration.
//
// An Agent runs a Proxy in epochs, for Envoy's hot restart: each new configuration starts the next
// epoch while the previous one is running, and the older epochs hand over and exit by themselves.
//
//   - Epochs start at 0. The next one is one above the highest running one, and 0 again if none
//     is running. The agent never ends an older epoch because a newer one is running.
//   - A configuration that equals the desired one (reflect.DeepEqual) is a no-op. Of several
//     configurations that wait, only the newest is started.
//   - An epoch that fails is retried after Retry.InitialInterval, doubling, Retry.MaxRetries
//     times; then Panic is called. The budget belongs to the desired configuration and is renewed
//     when that changes. An epoch whose Run returns nil is not restarted until another
//     configuration is desired.
//   - The goroutine of Agent.Run is the control loop, which calls Cleanup and Panic. Proxy.Run is
//     called in a new goroutine for every epoch.
//
// After a failure the other epochs keep running, and the number of the failed one is used again (but see
// WithAbortAll). If the Proxy has no Live method, an epoch counts as live once it is started, and any
// number of epochs may run. If it has one (see Liver), at most two epochs run, the next one is started when
// the previous one is live, and an epoch that is not live in time is aborted.
//
// The package also has the identity of a proxy (Role), the sources of its configuration (Environment),
// and helpers to find addresses.
package proxy

import (
	"context"
	"errors"
	"time"
)

// MaxAborts is the capacity of an epoch's abort channel, so that sending never blocks.
const MaxAborts = 10

// ErrAbort is sent to an epoch's abort channel. Run should return it, or an error that wraps it.
var ErrAbort = errors.New("epoch aborted")

// DrainConfig is the configuration of the epoch that WithDrain starts: a proxy without listeners, or one that
// reports that it is unhealthy. It makes the epoch that served a draining parent.
type DrainConfig struct{}

// Retry configures the retries of a failed epoch.
type Retry struct {
	// MaxRetries is the number of retries for one desired configuration; 0 for none.
	MaxRetries int
	// InitialInterval is the delay before the first retry; it doubles with each one.
	InitialInterval time.Duration
}

// DefaultRetry is 10 retries from 200 ms: the last delay is about 102 s, the sum 205 s.
var DefaultRetry = Retry{MaxRetries: 10, InitialInterval: 200 * time.Millisecond}

// Proxy is what an agent runs.
type Proxy interface {
	// Run runs one epoch with a configuration and returns when it has exited: nil if it is complete,
	// ErrAbort after an abort, another error for a failure. It must return soon after it receives from
	// abort. It is called in a new goroutine, for several epochs at once.
	Run(config any, epoch int, abort <-chan error) error
	// Cleanup is called right after Run has returned, before the epoch's number may be used again. It
	// is called from the control loop, and must not block or call the Agent.
	Cleanup(epoch int)
	// Panic is called with a configuration whose retries are exhausted. If no epoch is running,
	// Agent.Run returns after it. It is called from the control loop, and must not block or call the
	// Agent.
	Panic(config any)
}

// Liver is a Proxy that can report when an epoch is live.
type Liver interface {
	// Live waits until the epoch serves and returns nil, or an error if it cannot find out. It must
	// return soon after ctx ends, which it does when the epoch exits. It is called once for every
	// epoch, in a new goroutine.
	Live(ctx context.Context, epoch int) error
}

// ProxyFuncs implements Proxy with functions. Only RunFunc is required.
type ProxyFuncs struct {
	RunFunc     func(config any, epoch int, abort <-chan error) error
	CleanupFunc func(epoch int)
	PanicFunc   func(config any)
}

// Run calls RunFunc.
func (p ProxyFuncs) Run(config any, epoch int, abort <-chan error) error {
	return p.RunFunc(config, epoch, abort)
}

// Cleanup calls CleanupFunc unless it is nil.
func (p ProxyFuncs) Cleanup(epoch int) {
	if p.CleanupFunc != nil {
		p.CleanupFunc(epoch)
	}
}

// Panic calls PanicFunc unless it is nil.
func (p ProxyFuncs) Panic(config any) {
	if p.PanicFunc != nil {
		p.PanicFunc(config)
	}
}
