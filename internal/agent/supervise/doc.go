// Package supervise decides when Envoy's epochs are started, drained and killed.
//
// It is a state machine: Step takes one event and returns the effects to perform, in order.
// It has no clock, goroutine, process or file. Times are durations since a moment that the
// caller chooses. The caller sends Now before any other event, and again at the time of the last
// Wake. A Machine is used by one goroutine at a time. An event for an epoch that is not running is
// ignored.
//
// These invariants hold for any order of events. The property test and the fuzzer check them
// against a model that knows only what this comment says:
//
//  1. Numbers. Epochs start at 0. A new epoch is one above the highest that is running; if none
//     is running, the next is 0 again.
//  2. One start at a time, the newest configuration wins. At most one epoch is starting (running
//     and not live yet). A configuration that becomes desired meanwhile waits, and only the newest
//     of those that wait is started. Desiring the same configuration again is a no-op: it does not
//     restart, cancel a waiting restart, or renew the budget.
//  3. The next epoch is started when the previous one is live or has exited, and when the one
//     before that has exited (at most Epochs.Max are running). Waiting for an epoch to be live is
//     bounded by Epochs.LiveWithin: after it, the starting epoch is ended, never its parent, and
//     only if it does not serve (KillUnlessLive): an Envoy that has taken over is the only one that
//     accepts connections, even if its admin interface cannot be reached. While a new epoch could
//     not get its configuration (Upstream), nothing that serves is replaced; the newest desired
//     configuration waits, and View says so.
//  4. A failed child does no harm. Before it is live it is ended by SIGKILL only, because its
//     parent ends when it gets SIGTERM. After it is reaped, Unlock releases the shared memory, and
//     the same number is tried again within the budget of its configuration: Policy.Budget
//     restarts, the first after Backoff, then doubling, with the jitter that Now brought. An
//     exhausted budget is reported by Panic, once, and View says that the configuration is given
//     up. A parent that lost its admin interface to the failed child is replaced by a child with
//     the parent's configuration, so that it can be drained and observed again. If nothing is
//     running any more, the desired and the last good configuration are tried in turn, the one
//     with fewer failures first; when both budgets are exhausted the machine is done, with
//     Envoy's own exit status (128 + signal, as in a shell; 1 for status 0).
//  5. The budget belongs to the desired configuration. It is renewed when that changes, and when
//     the only epoch crashes after it was live for Policy.HealthyFor. Older epochs are ended by
//     Envoy's own parent shutdown: the machine sends a live epoch a signal only on shutdown, or
//     for a plain restart.
//  6. If the only epoch exits without having been asked to, it is restarted in place after the
//     backoff, even if its exit status was 0. Nothing is started before a first configuration is
//     known or after shutdown was requested.
//  7. Shutdown: Drain, a wait that is bounded by one deadline and ends early with the last
//     connection, SIGTERM, SIGKILL after Policy.Grace; when everything is reaped, Remove and Done,
//     last and once. A second request ends the wait, a third one kills. A child that is starting
//     has a quarter of the deadline to be live, and is then drained like any other. If it is not,
//     it is ended by SIGKILL, and its parent, which then has no admin interface (Drain.NoAdmin),
//     at the deadline or as soon as it has no inbound connections. Done's code is 0 exactly when
//     shutdown was requested.
//
// Whenever the machine waits for time to pass, a Wake for that time has been returned.
//
// Policy holds the timeouts and selects, by value, one Envoy that is restarted in place
// (DefaultPolicy), hot restarts (HotPolicy), and each of the older agents, which violate some of
// the invariants above (Policy2017 and its successors). The field comments of Compat say which.
//
// # Performing the effects
//
// Start: Epoch 0 creates the shared memory; a higher one takes over from Epoch-1. Checks that need
// a process (validation, hot restart version) are part of it: an epoch that fails them is answered
// by Exited with Reason Refused or Incompatible, and a Kill that comes meanwhile ends them.
// Unlock: clear the initializing flag, then answer Unlocked. Kill of a starting child is always
// SIGKILL. KillUnlessLive: check by another way than the admin interface whether the epoch serves;
// answer Live, or end it by SIGKILL. Remove: remove the shared memory; nothing is running any
// more. Keep the configuration of every hash that View lists (Goal.Desired, Epochs, Goal.Good):
// each of them may be started again.
package supervise
