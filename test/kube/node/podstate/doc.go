// Package podstate decides what a kubelet does with one Pod: which container starts or stops next, and what its status is.
//
// [State] is a state machine without a clock: the node tells it what has happened, and [State.Next] says what to do.
// The functions [Environment], [Expand], [Payload] and [DownwardField] compute what containers see of the API's
// objects, as the kubelet does, and [Threshold] turns results of probes into verdicts. What the node cannot do is
// refused by [Unsupported], so that no field of a Pod is accepted and then ignored silently; the package comment of
// test/kube/node lists the fields that have no effect.
package podstate
