// Package supervise decides when Envoy's epochs are started, drained and killed.
//
// It is a machine: Step takes one event and returns the effects to perform, in order.
// It holds no clock, goroutine, process or file. Times are durations since whatever
// moment the caller calls zero; the caller says Now before other events, performs Wake by
// saying Now again at that time, and hands in the randomness of delays. A Machine is used by one
// goroutine at a time. An event of an epoch that does not run is ignored.
//
// What it keeps, whatever the order of events (the property test and the fuzzer hold it to this,
// against a referee that knows nothing of its insides):
//
//  1. Numbers. Epochs start at 0. A new one is exactly one above the highest that runs; where none
//     runs, the next is 0 again.
//  2. One at a time, the newest wins. At most one epoch is starting (runs and is not live). A
//     configuration that becomes desired meanwhile waits, and only the newest of those that
//     wait is started. The same configuration again is a no-op: it neither restarts, nor
//     cancels a waiting restart, nor renews the budget.
//  3. The next epoch is started when the previous one is live or has ended, and when the
//     one before that has exited (Epochs.Max of them at most). The wait is bounded by Epochs.LiveWithin:
//     past it the epoch that starts is given up, never its parent, and only if it does not serve (GiveUp): an
//     Envoy that took over is the only one that accepts connections, whether its admin interface can be
//     reached or not. While the configuration of a
//     new epoch is not to be had (Upstream), nothing that serves is replaced; the
//     newest wish waits and View says so.
//  4. A child that fails does no harm. Before it is live it is ended by SIGKILL and nothing else
//     (SIGTERM would end its parent with it); when it is reaped, Unlock makes the shared memory takeable again, and
//     the same number is tried again, with the budget of its configuration: Policy.Budget
//     times, after Backoff, doubling, with the jitter that Now brought. A spent budget is told by Panic, once, and View
//     says that the configuration is given up. A parent that lost its admin interface to the
//     failed child is then taken over by a child with the configuration that the parent runs, so that it can be
//     drained and watched again. Where nothing runs any more, the desired and the last good
//     configuration are tried in turn, the one with the fewest failures first; when neither has
//     budget left the machine is done, with Envoy's own status (128 + signal, as a shell says it; 1 for status 0).
//  5. The budget belongs to the desired configuration and is renewed when that changes, and by
//     a sole epoch that was live for Policy.HealthyFor. Older epochs are ended by Envoy's own parent
//     shutdown: the machine sends a live epoch a signal only at the end, or for a plain restart.
//  6. A sole epoch that ends without having been asked is restarted in place after the
//     backoff, also where it ended with status 0. Nothing is started before a first
//     configuration is known or after the end was asked for.
//  7. The end: Drain, a wait that is bounded by one deadline and ends early with the last
//     connection, SIGTERM, SIGKILL after Policy.Grace; when everything is reaped, Remove and Done, last and once. Asked
//     again, it waits no longer; asked a third time, it kills. A child that is starting
//     gets a quarter of the deadline to be live, and is then drained like any other; otherwise it is
//     ended by SIGKILL, and its parent, which then has no admin interface (Drain.Blind), at the deadline or as soon as
//     no inbound connection is left. Done's code is 0 exactly when the end was asked for.
//
// Whenever the machine waits for time to pass, a Wake for that time has been given.
//
// Policy tells how patient to be, and selects by value: one Envoy that is replaced in place (DefaultPolicy), hot
// restarts (HotPolicy), and each of the agents that this one descends from, which broke some of the
// promises above (Policy2017 and its successors). The field comments of Old say which.
//
// # Performing the effects
//
// Start: Epoch 0 makes new shared memory; a higher one takes over from Epoch-1. Checks that need
// a process (validation, version of the hot restart) belong to it: an epoch that did not
// pass them is answered by Exited with Why Refused or Incompatible, and a Kill that comes
// meanwhile ends them. Unlock: clear the initialising
// flag, then answer Unlocked. Kill of a starting child is always SIGKILL. GiveUp: look once more whether the
// epoch serves, in another way than by its admin interface; answer Live or end it by SIGKILL. Remove: remove the
// shared memory; nothing runs any more. Keep the configuration of every hash that View
// lists (Goal.Desired, Epochs, Good): each of them may be started again.
package supervise
