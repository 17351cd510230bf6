package podstate

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Backoff says how long a container that ended waits before it is started again: not at all the first time, then
// Initial, doubled with each further end up to Max. A container that ran for twice Max begins anew.
type Backoff struct{ Initial, Max time.Duration }

// minGrace is what a program gets at least to end on SIGTERM, as from the kubelet.
const minGrace = 2 * time.Second

// Action is what the node does next for a Pod.
type Action struct {
	Type ActionType
	// Container is the name for Start and Stop.
	Container string
	// Attempt is the number of the start, from 0; what the node reports later names it.
	Attempt int32
	// Grace is how long Stop waits before it kills, the preStop hook included.
	Grace time.Duration
}

// ActionType is a type of actions.
type ActionType int

// The types of actions.
const (
	// MakeSandbox makes the Pod's namespaces and volumes; [State.SandboxReady] or [State.SandboxFailed] reports the result.
	MakeSandbox ActionType = iota
	// Start starts a container; [State.Started] or [State.CannotStart] reports the result.
	Start
	// Stop ends a container; [State.Exited] reports the end. A second Stop shortens the grace of the first.
	Stop
	// Remove takes the sandbox away; it is the last action.
	Remove
)

// phase is where a container is.
type phase int

const (
	waiting phase = iota
	starting
	running
	terminated
)

// container is the state of one container.
type container struct {
	phase           phase
	reason, message string // of waiting
	id              string
	attempt         int32
	started         time.Time
	ended           *corev1.ContainerStateTerminated
	last            *corev1.ContainerStateTerminated
	failures        int
	notBefore       time.Time
	postStarted     bool
	startupOK       bool
	ready           bool
	stopping        bool
}

// isStarted is what status.started says: the startup probe and the postStart hook have passed.
func (c *container) isStarted() bool { return c.phase == running && c.postStarted && c.startupOK }

// State is what a node knows of a Pod. For one goroutine.
type State struct {
	pod        *corev1.Pod
	backoff    Backoff
	containers map[string]*container

	sandbox struct {
		asked, ready, removed bool
		reason, message       string
		notBefore             time.Time
		failures              int
	}
	host        Host
	begun       time.Time
	initialized bool
	// ending is set when all containers are to end: the Pod is deleted, or failed as a whole.
	ending struct {
		begun           bool
		deadline        time.Time
		reason, message string // of a Pod that failed as a whole
	}
	deleted bool
}

// New is the state of a Pod that was just bound to the node.
func New(pod *corev1.Pod, backoff Backoff, now time.Time) *State {
	s := &State{pod: pod, backoff: backoff, containers: map[string]*container{}, begun: now}
	for i := range pod.Spec.InitContainers {
		s.containers[pod.Spec.InitContainers[i].Name] = &container{reason: "PodInitializing"}
	}
	for i := range pod.Spec.Containers {
		s.containers[pod.Spec.Containers[i].Name] = &container{reason: "PodInitializing"}
	}
	return s
}

// Pod is the Pod as it was last given.
func (s *State) Pod() *corev1.Pod { return s.pod }

// Removed says whether the Pod has ended: the last action was Remove.
func (s *State) Removed() bool { return s.sandbox.removed }

// Deleted says whether the Pod's object in the API is to be deleted once it has ended.
func (s *State) Deleted() bool { return s.deleted }

// Update takes a newer version of the Pod: labels, annotations and readiness gates may have changed, and it may have
// been deleted, which begins its end.
func (s *State) Update(pod *corev1.Pod, now time.Time) {
	s.pod = pod
	if pod.DeletionTimestamp == nil {
		return
	}
	s.deleted = true
	grace := time.Duration(0)
	if pod.DeletionGracePeriodSeconds != nil {
		grace = time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	}
	s.end(now.Add(grace))
}

// Gone says that the Pod no longer exists in the API: it ends at once.
func (s *State) Gone(now time.Time) {
	s.deleted = true
	s.end(now)
}

// Fail ends the Pod as failed, such as one that the node cannot run.
func (s *State) Fail(reason, message string, now time.Time) {
	if s.ending.reason == "" {
		s.ending.reason, s.ending.message = reason, message
	}
	s.end(now)
}

// end begins the end, or brings it forward.
func (s *State) end(deadline time.Time) {
	if s.ending.begun && !deadline.Before(s.ending.deadline) {
		return
	}
	s.ending.begun, s.ending.deadline = true, deadline
	for _, c := range s.containers {
		c.stopping = false
	}
}

// SandboxReady says that the Pod has its namespaces, volumes and addresses.
func (s *State) SandboxReady(host Host) {
	s.sandbox.ready, s.sandbox.reason, s.sandbox.message, s.host = true, "", "", host
}

// SandboxFailed says why the sandbox could not be made; it is tried again.
func (s *State) SandboxFailed(reason, message string, now time.Time) {
	s.sandbox.asked, s.sandbox.reason, s.sandbox.message = false, reason, message
	s.sandbox.notBefore = now.Add(s.delay(s.sandbox.failures + 1))
	s.sandbox.failures++
}

// Started says that a container's process runs. A container without a startup probe or a postStart hook has passed
// them.
func (s *State) Started(name, id string, attempt int32, now time.Time) {
	c := s.containers[name]
	if c.phase != starting || c.attempt != attempt {
		return
	}
	spec := containerOf(s.pod, name)
	c.phase, c.id, c.started, c.stopping = running, id, now, false
	c.startupOK = spec.StartupProbe == nil
	c.postStarted = spec.Lifecycle == nil || spec.Lifecycle.PostStart == nil
	c.ready = spec.ReadinessProbe == nil
}

// CannotStart says why a container could not be started, such as CreateContainerConfigError; it is tried again.
func (s *State) CannotStart(name string, attempt int32, reason, message string, now time.Time) {
	c := s.containers[name]
	if c.phase != starting || c.attempt != attempt {
		return
	}
	c.failures++
	c.phase, c.reason, c.message = waiting, reason, message
	c.notBefore = now.Add(s.delay(c.failures))
}

// Exited says that a container has ended, with the time of its end. Reason is empty for Completed or Error.
func (s *State) Exited(name string, attempt, code, signal int32, reason, message string, now time.Time) {
	c := s.containers[name]
	if c.phase != running || c.attempt != attempt {
		return
	}
	if reason == "" {
		reason = "Completed"
		if code != 0 {
			reason = "Error"
		}
	}
	c.phase, c.ready, c.stopping = terminated, false, false
	c.ended = &corev1.ContainerStateTerminated{
		ExitCode: code, Signal: signal, Reason: reason, Message: message, ContainerID: c.id,
		StartedAt: metaTime(c.started), FinishedAt: metaTime(now),
	}
	if now.Sub(c.started) > 2*s.backoff.Max {
		c.failures = 0
	}
	c.notBefore = now.Add(s.delay(c.failures))
	c.failures++
}

// delay is the time to wait after n failures.
func (s *State) delay(n int) time.Duration {
	if n == 0 {
		return 0
	}
	d := s.backoff.Initial
	for range n - 1 {
		if d = min(2*d, s.backoff.Max); d == s.backoff.Max {
			break
		}
	}
	return d
}

// PostStarted says that the postStart hook has ended without an error.
func (s *State) PostStarted(name string, attempt int32) {
	if c := s.containers[name]; c.phase == running && c.attempt == attempt {
		c.postStarted = true
	}
}

// Probed reports the verdict of a probe. It returns whether the container must be stopped for it.
func (s *State) Probed(name string, attempt int32, kind Kind, ok bool) bool {
	c := s.containers[name]
	if c.phase != running || c.attempt != attempt {
		return false
	}
	switch kind {
	case Startup:
		c.startupOK = c.startupOK || ok
		return !ok && !c.stopping
	case Readiness:
		c.ready = ok
		return false
	default:
		return !ok && !c.stopping
	}
}

// IsStarted says whether the container's other probes run: its startup probe and postStart hook have passed.
func (s *State) IsStarted(name string, attempt int32) bool {
	c := s.containers[name]
	return c.attempt == attempt && c.isStarted()
}

// Failing is the action that stops a running container for a failed probe or hook.
func (s *State) Failing(name string) Action {
	c := s.containers[name]
	c.stopping = true
	return Action{Type: Stop, Container: name, Attempt: c.attempt, Grace: s.grace()}
}

// grace is the Pod's terminationGracePeriodSeconds.
func (s *State) grace() time.Duration {
	if g := s.pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return max(time.Duration(*g)*time.Second, minGrace)
	}
	return 30 * time.Second
}

// isSidecar says whether an init container goes on running.
func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// Next says what to do now, and when to ask again at the latest; a zero time says that only an event changes
// anything. What it returns counts as begun.
func (s *State) Next(now time.Time) ([]Action, time.Time) {
	n := &next{State: s, now: now}
	n.decide()
	return n.actions, n.wake
}

// next collects what Next returns.
type next struct {
	*State
	now     time.Time
	actions []Action
	wake    time.Time
}

// due says whether a time has come, and otherwise asks to be woken then.
func (n *next) due(at time.Time) bool {
	if !at.After(n.now) {
		return true
	}
	if n.wake.IsZero() || at.Before(n.wake) {
		n.wake = at
	}
	return false
}

func (n *next) decide() {
	if n.sandbox.removed {
		return
	}
	if d := n.pod.Spec.ActiveDeadlineSeconds; d != nil && !n.ending.begun {
		if n.due(n.begun.Add(time.Duration(*d) * time.Second)) {
			n.Fail("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", n.now)
		}
	}
	if n.ending.begun {
		n.endAll()
		return
	}
	if !n.sandbox.ready {
		if !n.sandbox.asked && n.due(n.sandbox.notBefore) {
			n.sandbox.asked = true
			n.actions = append(n.actions, Action{Type: MakeSandbox})
		}
		return
	}
	if !n.initialize() {
		return
	}
	n.initialized = true
	if n.mainOver() {
		if n.stopSidecars(n.now.Add(n.grace())) {
			n.remove()
		}
		return
	}
	for i := range n.pod.Spec.Containers {
		spec := &n.pod.Spec.Containers[i]
		if n.isOver(spec) {
			continue
		}
		n.start(spec.Name)
		// The next container waits for the postStart hook, as in the kubelet: proxies that hold applications rely on it.
		if c := n.containers[spec.Name]; c.phase == starting || c.phase == running && !c.postStarted {
			return
		}
	}
}

// remove takes the sandbox away.
func (n *next) remove() {
	n.sandbox.removed = true
	n.actions = append(n.actions, Action{Type: Remove})
}

// initialize starts init containers, one after the other. It returns whether the Pod's containers may run.
func (n *next) initialize() bool {
	for i := range n.pod.Spec.InitContainers {
		spec := &n.pod.Spec.InitContainers[i]
		c := n.containers[spec.Name]
		switch {
		case isSidecar(spec):
			if n.mainOver() {
				continue
			}
			n.start(spec.Name)
			if !n.initialized && !c.isStarted() {
				return false
			}
		case n.initialized || c.phase == terminated && c.ended.ExitCode == 0:
		case c.phase == terminated && n.pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
			n.Fail("", "", n.now)
			n.endAll()
			return false
		default:
			n.start(spec.Name)
			return false
		}
	}
	return true
}

// mainOver says whether the Pod's containers have all ended for good.
func (s *State) mainOver() bool {
	return !slices.ContainsFunc(s.pod.Spec.Containers, func(c corev1.Container) bool { return !s.isOver(&c) })
}

// isOver says whether a container has ended and is not started again.
func (s *State) isOver(spec *corev1.Container) bool {
	c := s.containers[spec.Name]
	if c.phase != terminated {
		return false
	}
	switch s.pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return true
	case corev1.RestartPolicyOnFailure:
		return c.ended.ExitCode == 0
	}
	return false
}

// start starts a container that does not run, once its back-off is over.
func (n *next) start(name string) {
	c := n.containers[name]
	if c.phase == starting || c.phase == running {
		return
	}
	if !n.due(c.notBefore) {
		if c.phase == terminated {
			c.reason, c.message = "CrashLoopBackOff", "back-off restarting failed container "+name
		}
		return
	}
	if c.phase == terminated {
		c.last, c.ended = c.ended, nil
		c.attempt++
	}
	c.phase, c.reason, c.message = starting, "ContainerCreating", ""
	n.actions = append(n.actions, Action{Type: Start, Container: name, Attempt: c.attempt})
}

// endAll stops the containers, then the sidecars, the last first, and then removes the sandbox.
func (n *next) endAll() {
	ended := true
	for i := range n.pod.Spec.Containers {
		ended = n.stop(n.pod.Spec.Containers[i].Name, n.ending.deadline) && ended
	}
	for i := range n.pod.Spec.InitContainers {
		if c := &n.pod.Spec.InitContainers[i]; !isSidecar(c) {
			ended = n.stop(c.Name, n.ending.deadline) && ended
		}
	}
	if !ended || !n.stopSidecars(n.ending.deadline) {
		return
	}
	// What is being made is waited for; it is removed whole.
	if n.sandbox.asked && !n.sandbox.ready {
		return
	}
	n.remove()
}

// stopSidecars stops the last sidecar that runs, or all when the time is over. It returns whether all have ended.
func (n *next) stopSidecars(deadline time.Time) bool {
	ended := true
	for i := range slices.Backward(n.pod.Spec.InitContainers) {
		c := &n.pod.Spec.InitContainers[i]
		if !isSidecar(c) {
			continue
		}
		if !n.stop(c.Name, deadline) {
			ended = false
			if deadline.After(n.now) {
				n.due(deadline)
				return false
			}
		}
	}
	return ended
}

// stop stops a container if it runs. It returns whether it has ended, or never ran.
func (n *next) stop(name string, deadline time.Time) bool {
	c := n.containers[name]
	switch {
	case c.phase == waiting || c.phase == terminated:
		return true
	case c.phase == running && !c.stopping:
		c.stopping = true
		n.actions = append(n.actions, Action{
			Type: Stop, Container: name, Attempt: c.attempt, Grace: max(deadline.Sub(n.now), minGrace),
		})
	}
	return false
}

// Runs says whether this start of a container runs and is not being stopped.
func (s *State) Runs(name string, attempt int32) bool {
	c := s.containers[name]
	return c.phase == running && c.attempt == attempt && !c.stopping
}
