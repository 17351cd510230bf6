package node

import (
	"context"
	"errors"
	"os"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/pilothouse/pilothouse/test/kube/node/podstate"
)

// worker runs one Pod. Its goroutine owns the state; everything else sends it events.
type worker struct {
	node      *Node
	uid       types.UID
	namespace string
	events    chan func(now time.Time)
	state     *podstate.State
	status    *statusWriter
	// done is closed when the Pod has ended and its object is gone, or the node stops.
	done chan struct{}

	mu sync.Mutex // guards the rest, which the kubelet's API reads
	// pod is the Pod as it was last given.
	pod      *corev1.Pod
	sandbox  *sandbox
	closed   bool
	attempts map[string]*attempt
	// logs are the logs of each container, the previous one first.
	logs map[string][]*containerLog
}

func (n *Node) newWorker(pod *corev1.Pod) *worker {
	now := time.Now()
	w := &worker{
		node: n, uid: pod.UID, namespace: pod.Namespace, events: make(chan func(time.Time)), done: make(chan struct{}),
		state: podstate.New(pod, n.o.Backoff, now), pod: pod,
		attempts: map[string]*attempt{}, logs: map[string][]*containerLog{},
	}
	w.status = newStatusWriter(n, pod)
	if why := podstate.Unsupported(pod); why != "" {
		w.state.Fail("UnsupportedByNode", why, now)
	}
	w.state.Update(pod, now)
	return w
}

// send gives the worker an event; it is lost once the worker has ended.
func (w *worker) send(ctx context.Context, event func(now time.Time)) {
	select {
	case w.events <- event:
	case <-w.done:
	case <-ctx.Done():
	}
}

// run runs the Pod until it is gone.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	w.node.group.Go(func() { w.status.run(ctx, w.done) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		actions, wake := w.state.Next(time.Now())
		for _, a := range actions {
			if a.Type == podstate.Remove {
				w.remove()
				continue
			}
			w.perform(ctx, a)
		}
		if s := w.sandboxNow(); s != nil {
			if at := s.nextRefresh(); !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
				wake = at
			}
		}
		w.status.set(w.state.Status(time.Now()))
		if w.state.Removed() && w.state.Deleted() {
			w.status.finish(ctx)
			if err := os.RemoveAll(w.node.podDir(w.uid)); err != nil {
				w.node.o.Log.Debug("remove the files of a Pod", "pod", w.state.Pod().Name, "error", err)
			}
			return
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(max(0, time.Until(wake)))
		}
		select {
		case event := <-w.events:
			event(time.Now())
		case <-timer.C:
			w.refresh(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// updated takes a newer version of the Pod.
func (w *worker) updated(ctx context.Context, pod *corev1.Pod) {
	w.send(ctx, func(now time.Time) {
		w.state.Update(pod, now)
		w.mu.Lock()
		w.pod = pod
		w.mu.Unlock()
		w.refresh(ctx)
	})
}

// refresh writes the volumes again, whose sources may have changed.
func (w *worker) refresh(ctx context.Context) {
	s, pod := w.sandboxNow(), w.state.Pod()
	if s == nil {
		return
	}
	w.node.group.Go(func() {
		if err := s.writeVolumes(ctx, pod); err != nil && ctx.Err() == nil {
			w.node.o.Log.Debug("write volumes", "pod", pod.Name, "error", err)
		}
	})
}

func (w *worker) sandboxNow() *sandbox {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sandbox
}

// perform begins an action; what comes of it is an event.
func (w *worker) perform(ctx context.Context, a podstate.Action) {
	pod := w.state.Pod()
	switch a.Type {
	case podstate.MakeSandbox:
		w.node.group.Go(func() { w.makeSandbox(ctx, pod) })
	case podstate.Start:
		w.node.group.Go(func() { w.runContainer(ctx, pod, a) })
	case podstate.Stop:
		w.stop(a, "")
	}
}

func (w *worker) makeSandbox(ctx context.Context, pod *corev1.Pod) {
	s, err := w.node.makeSandbox(ctx, pod)
	if err == nil {
		w.mu.Lock()
		late := w.closed
		w.sandbox = s
		w.mu.Unlock()
		if late {
			w.remove()
		}
	}
	w.send(ctx, func(now time.Time) {
		if err != nil {
			w.state.SandboxFailed("ContainerCreating", err.Error(), now)
			return
		}
		w.state.SandboxReady(s.host)
	})
}

// stop stops a container.
func (w *worker) stop(a podstate.Action, reason string) {
	w.mu.Lock()
	at := w.attempts[a.Container]
	w.mu.Unlock()
	if at != nil && at.number == a.Attempt {
		at.stop(a.Grace, reason)
	}
}

// close ends the Pod's processes and namespaces without a word to the API.
func (w *worker) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.remove()
}

// remove takes the sandbox away.
func (w *worker) remove() {
	w.mu.Lock()
	s := w.sandbox
	w.sandbox = nil
	w.mu.Unlock()
	if s == nil {
		return
	}
	if err := s.close(); err != nil {
		w.node.o.Log.Debug("remove a Pod", "pod", w.state.Pod().Name, "error", err)
	}
}

// runContainer starts a container and waits for its end.
func (w *worker) runContainer(ctx context.Context, pod *corev1.Pod, a podstate.Action) {
	s := w.sandboxNow()
	if s == nil {
		return // the node is being closed
	}
	at, err := s.startContainer(ctx, pod, specOf(pod, a.Container), a.Attempt)
	if err != nil {
		reason := "RunContainerError"
		if why := (startError{}); errors.As(err, &why) {
			reason = why.reason
		}
		w.send(ctx, func(now time.Time) { w.state.CannotStart(a.Container, a.Attempt, reason, err.Error(), now) })
		return
	}
	w.mu.Lock()
	w.attempts[a.Container] = at
	logs := append(w.logs[a.Container], at.log)
	w.logs[a.Container] = logs[max(0, len(logs)-2):]
	w.mu.Unlock()
	w.send(ctx, func(now time.Time) { w.state.Started(a.Container, at.id, a.Attempt, now) })
	w.node.group.Go(func() { w.watch(at) })
	code, signal, reason, message := at.wait()
	w.mu.Lock()
	delete(w.attempts, a.Container)
	w.mu.Unlock()
	w.send(ctx, func(now time.Time) {
		w.state.Exited(a.Container, a.Attempt, code, signal, reason, message, now)
	})
}

func specOf(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// watch runs the postStart hook and the probes of a container until it ends.
func (w *worker) watch(a *attempt) {
	p := prober{a, a.spec}
	if l := a.spec.Lifecycle; l != nil && l.PostStart != nil {
		if err := p.handle(a.ctx, *l.PostStart); err != nil {
			w.fail(a, "FailedPostStartHook", err)
			return
		}
		w.send(a.ctx, func(time.Time) { w.state.PostStarted(a.spec.Name, a.number) })
	}
	if a.spec.StartupProbe != nil && !w.probe(p, podstate.Startup, a.spec.StartupProbe) {
		return
	}
	var both sync.WaitGroup
	if a.spec.ReadinessProbe != nil {
		both.Go(func() { w.probe(p, podstate.Readiness, a.spec.ReadinessProbe) })
	}
	if a.spec.LivenessProbe != nil {
		both.Go(func() { w.probe(p, podstate.Liveness, a.spec.LivenessProbe) })
	}
	both.Wait()
}

// fail stops a container for a failed hook or probe.
func (w *worker) fail(a *attempt, reason string, err error) {
	w.node.o.Log.Debug("stop a container", "container", a.spec.Name, "reason", reason, "error", err)
	w.send(a.ctx, func(time.Time) {
		if w.state.Runs(a.spec.Name, a.number) {
			w.stop(w.state.Failing(a.spec.Name), reason)
		}
	})
}

// probe runs a probe at its interval until the container ends. A startup probe ends with its first verdict, which it
// returns.
func (w *worker) probe(p prober, kind podstate.Kind, probe *corev1.Probe) bool {
	a := p.attempt
	timer := time.NewTimer(time.Duration(probe.InitialDelaySeconds) * time.Second)
	defer timer.Stop()
	var count podstate.Threshold
	for {
		select {
		case <-timer.C:
		case <-a.ctx.Done():
			return false
		}
		err := p.try(a.ctx, probe)
		if a.ctx.Err() != nil {
			return false
		}
		timer.Reset(time.Duration(max(probe.PeriodSeconds, 1)) * time.Second)
		if err != nil {
			w.node.o.Log.Debug("probe", "container", a.spec.Name, "kind", kind, "error", err)
		}
		if !count.Add(probe, err == nil) {
			continue
		}
		w.send(a.ctx, func(time.Time) {
			if w.state.Probed(a.spec.Name, a.number, kind, err == nil) {
				action := w.state.Failing(a.spec.Name)
				if g := probe.TerminationGracePeriodSeconds; g != nil {
					action.Grace = time.Duration(*g) * time.Second
				}
				w.stop(action, "")
			}
		})
		if kind == podstate.Startup {
			return err == nil
		}
	}
}

// statusWriter writes the status of a Pod to the API, the newest only, and repeats what fails.
type statusWriter struct {
	node            *Node
	namespace, name string
	uid             types.UID
	wake            chan struct{}
	finished        chan struct{}

	mu      sync.Mutex
	want    *corev1.PodStatus
	last    bool
	written *corev1.PodStatus
}

func newStatusWriter(n *Node, pod *corev1.Pod) *statusWriter {
	return &statusWriter{
		node: n, namespace: pod.Namespace, name: pod.Name, uid: pod.UID,
		wake: make(chan struct{}, 1), finished: make(chan struct{}),
	}
}

// set gives the status that is to be written.
func (s *statusWriter) set(status corev1.PodStatus) {
	s.mu.Lock()
	s.want = &status
	s.mu.Unlock()
	s.signal()
}

func (s *statusWriter) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// finish writes the last status, deletes the object and waits for that.
func (s *statusWriter) finish(ctx context.Context) {
	s.mu.Lock()
	s.last = true
	s.mu.Unlock()
	s.signal()
	select {
	case <-s.finished:
	case <-ctx.Done():
	}
}

// run writes until the Pod is gone or done is closed.
func (s *statusWriter) run(ctx context.Context, done <-chan struct{}) {
	defer close(s.finished)
	const least, most = 100 * time.Millisecond, 5 * time.Second
	pause := least
	for {
		select {
		case <-s.wake:
		case <-done:
			return
		case <-ctx.Done():
			return
		}
		gone, err := s.write(ctx)
		if gone {
			return
		}
		if err == nil {
			pause = least
			continue
		}
		s.node.o.Log.Debug("write the status of a Pod", "pod", s.name, "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		pause = min(2*pause, most)
		s.signal()
	}
}

// write writes what is wanted. It returns whether the Pod's object is gone.
func (s *statusWriter) write(ctx context.Context) (bool, error) {
	s.mu.Lock()
	want, last := s.want, s.last
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	api := s.node.net.client.CoreV1().Pods(s.namespace)
	if s.written == nil || !reflect.DeepEqual(want, s.written) {
		patch, err := s.patch(want)
		if err != nil {
			return false, err
		}
		_, err = api.Patch(ctx, s.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err) && last:
			// Another Pod of the name has another UID.
			return last, nil
		case err != nil:
			return false, err
		}
		s.written = want
	}
	if !last {
		return false, nil
	}
	err := api.Delete(ctx, s.name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &s.uid}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		err = nil
	}
	return err == nil, err
}

// podNow is the Pod as it was last given.
func (w *worker) podNow() *corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

// logOf is a container's log, or that of the start before; nil if there is none.
func (w *worker) logOf(container string, previous bool) *containerLog {
	w.mu.Lock()
	defer w.mu.Unlock()
	logs := w.logs[container]
	i := len(logs) - 1
	if previous {
		i--
	}
	if i < 0 {
		return nil
	}
	return logs[i]
}

// attemptOf is the start of a container that runs, or nil.
func (w *worker) attemptOf(container string) *attempt {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.attempts[container]
}

// patch is the patch that makes the Pod's status the wanted one. What is empty is removed by null: the API server keeps
// what a patch does not mention.
func (s *statusWriter) patch(want *corev1.PodStatus) ([]byte, error) {
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
	if err != nil {
		return nil, err
	}
	clear := func(m map[string]any, names ...string) {
		for _, name := range names {
			if _, ok := m[name]; !ok {
				m[name] = nil
			}
		}
	}
	clear(status, "reason", "message")
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok {
			clear(m, "reason", "message")
		}
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": s.uid}, "status": status})
}
