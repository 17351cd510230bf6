package podstate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func metaTime(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

// Status is the status of the Pod; conditions of others, which were in the Pod as it was last given, stay.
func (s *State) Status(now time.Time) corev1.PodStatus {
	st := *s.pod.Status.DeepCopy()
	st.Phase, st.StartTime = s.phase(), new(metaTime(s.begun))
	st.Reason, st.Message = s.ending.reason, s.ending.message
	st.ObservedGeneration = s.pod.Generation
	if s.sandbox.ready {
		st.HostIP, st.HostIPs = s.host.IP, []corev1.HostIP{{IP: s.host.IP}}
		st.PodIP, st.PodIPs = "", nil
		for i, ip := range s.host.PodIPs {
			if i == 0 {
				st.PodIP = ip
			}
			st.PodIPs = append(st.PodIPs, corev1.PodIP{IP: ip})
		}
	}
	st.InitContainerStatuses, st.ContainerStatuses = nil, nil
	for i := range s.pod.Spec.InitContainers {
		st.InitContainerStatuses = append(st.InitContainerStatuses, s.containerStatus(&s.pod.Spec.InitContainers[i], true))
	}
	for i := range s.pod.Spec.Containers {
		st.ContainerStatuses = append(st.ContainerStatuses, s.containerStatus(&s.pod.Spec.Containers[i], false))
	}
	s.setConditions(&st, now)
	return st
}

func (s *State) phase() corev1.PodPhase {
	switch {
	case s.ending.reason != "":
		return corev1.PodFailed
	case s.initFailed():
		return corev1.PodFailed
	case !s.initialized && !s.sandbox.removed:
		return corev1.PodPending
	}
	pending, failed := false, !s.initialized
	for i := range s.pod.Spec.Containers {
		spec := &s.pod.Spec.Containers[i]
		c := s.containers[spec.Name]
		switch {
		case c.phase == running:
			return corev1.PodRunning
		case c.phase == terminated && (s.isOver(spec) || s.sandbox.removed):
			failed = failed || c.ended.ExitCode != 0
		case c.phase == terminated, c.last != nil:
			return corev1.PodRunning
		case s.sandbox.removed:
			failed = true
		default:
			pending = true
		}
	}
	switch {
	case pending:
		return corev1.PodPending
	case failed:
		return corev1.PodFailed
	case !s.sandbox.removed && s.sidecarRuns():
		return corev1.PodRunning
	}
	return corev1.PodSucceeded
}

// initFailed says that an init container has failed for good.
func (s *State) initFailed() bool {
	return s.pod.Spec.RestartPolicy == corev1.RestartPolicyNever && slices.ContainsFunc(s.pod.Spec.InitContainers, func(c corev1.Container) bool {
		state := s.containers[c.Name]
		return !isSidecar(&c) && state.phase == terminated && state.ended.ExitCode != 0
	})
}

func (s *State) sidecarRuns() bool {
	return slices.ContainsFunc(s.pod.Spec.InitContainers, func(c corev1.Container) bool {
		return isSidecar(&c) && s.containers[c.Name].phase == running
	})
}

func (s *State) containerStatus(spec *corev1.Container, initial bool) corev1.ContainerStatus {
	c := s.containers[spec.Name]
	out := corev1.ContainerStatus{
		Name: spec.Name, Image: spec.Image, ImageID: spec.Image, ContainerID: c.id, RestartCount: c.attempt,
		Ready: s.isReady(spec, initial), Started: new(c.isStarted()),
	}
	if c.last != nil {
		out.LastTerminationState.Terminated = c.last
	}
	switch c.phase {
	case running:
		out.State.Running = &corev1.ContainerStateRunning{StartedAt: metaTime(c.started)}
	case terminated:
		again := !s.ending.begun && !s.isOver(spec) && (!initial || c.ended.ExitCode != 0 || isSidecar(spec)) && !s.initFailed()
		if again && c.reason == "CrashLoopBackOff" {
			out.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.reason, Message: c.message}
			out.LastTerminationState.Terminated = c.ended
			break
		}
		out.State.Terminated = c.ended
	default:
		w := &corev1.ContainerStateWaiting{Reason: c.reason, Message: c.message}
		if !s.sandbox.ready {
			w.Reason = "ContainerCreating"
			if s.sandbox.reason != "" {
				w.Reason, w.Message = s.sandbox.reason, s.sandbox.message
			}
		}
		out.State.Waiting = w
	}
	return out
}

// isReady is what status.ready says of a container.
func (s *State) isReady(spec *corev1.Container, initial bool) bool {
	c := s.containers[spec.Name]
	if initial && !isSidecar(spec) {
		return c.phase == terminated && c.ended.ExitCode == 0
	}
	return c.isStarted() && c.ready
}

func (s *State) setConditions(st *corev1.PodStatus, now time.Time) {
	done := st.Phase == corev1.PodSucceeded || st.Phase == corev1.PodFailed
	var incomplete, unready []string
	for i := range s.pod.Spec.InitContainers {
		c := &s.pod.Spec.InitContainers[i]
		if !s.initialized && (isSidecar(c) && !s.containers[c.Name].isStarted() || !isSidecar(c) && !s.isReady(c, true)) {
			incomplete = append(incomplete, c.Name)
		}
		if isSidecar(c) && !s.isReady(c, true) {
			unready = append(unready, c.Name)
		}
	}
	for i := range s.pod.Spec.Containers {
		if c := &s.pod.Spec.Containers[i]; !s.isReady(c, false) {
			unready = append(unready, c.Name)
		}
	}
	sandbox := condition{typ: corev1.PodReadyToStartContainers, ok: s.sandbox.ready && !s.sandbox.removed}
	initialized := condition{typ: corev1.PodInitialized, ok: len(incomplete) == 0 && (s.initialized || st.Phase == corev1.PodSucceeded || len(s.pod.Spec.InitContainers) == 0)}
	if !initialized.ok {
		initialized.reason, initialized.message = "ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: [%s]", strings.Join(incomplete, " "))
	}
	containers := condition{typ: corev1.ContainersReady, ok: len(unready) == 0 && !done}
	switch {
	case st.Phase == corev1.PodSucceeded:
		containers.reason = "PodCompleted"
	case st.Phase == corev1.PodFailed:
		containers.reason = "PodFailed"
	case !containers.ok:
		containers.reason, containers.message = "ContainersNotReady", fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " "))
	}
	ready := condition{typ: corev1.PodReady, ok: containers.ok, reason: containers.reason, message: containers.message}
	if gates := s.closedGates(); ready.ok && len(gates) > 0 {
		ready.ok, ready.reason = false, "ReadinessGatesNotReady"
		ready.message = "conditions of readiness gates that are not True: " + strings.Join(gates, " ")
	}
	for _, c := range []condition{sandbox, initialized, containers, ready} {
		c.set(st, s.pod.Generation, now)
	}
}

// closedGates are the readiness gates whose condition is not True.
func (s *State) closedGates() []string {
	var out []string
	for _, g := range s.pod.Spec.ReadinessGates {
		if !slices.ContainsFunc(s.pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == g.ConditionType && c.Status == corev1.ConditionTrue
		}) {
			out = append(out, string(g.ConditionType))
		}
	}
	return out
}

type condition struct {
	typ             corev1.PodConditionType
	ok              bool
	reason, message string
}

// set writes the condition; its time changes with its status only.
func (c condition) set(st *corev1.PodStatus, generation int64, now time.Time) {
	value := corev1.PodCondition{
		Type: c.typ, Status: corev1.ConditionFalse, Reason: c.reason, Message: c.message,
		LastTransitionTime: metaTime(now), ObservedGeneration: generation,
	}
	if c.ok {
		value.Status = corev1.ConditionTrue
	}
	i := slices.IndexFunc(st.Conditions, func(old corev1.PodCondition) bool { return old.Type == c.typ })
	if i < 0 {
		st.Conditions = append(st.Conditions, value)
		return
	}
	if st.Conditions[i].Status == value.Status {
		value.LastTransitionTime = st.Conditions[i].LastTransitionTime
	}
	st.Conditions[i] = value
}
