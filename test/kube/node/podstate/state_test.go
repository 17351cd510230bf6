package podstate_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/test/kube/node/podstate"
)

// script drives a State. Each step is an event and what follows from it: the actions, and the status as
// "phase ready: container state …".
type script struct {
	t     *testing.T
	state *podstate.State
	now   time.Time
	// attempts are the numbers of the last starts.
	attempts map[string]int32
}

func newScript(t *testing.T, spec string) *script {
	pod := &corev1.Pod{Spec: parse[corev1.PodSpec](t, spec)}
	now := time.Unix(1e9, 0)
	return &script{
		t: t, now: now, attempts: map[string]int32{},
		state: podstate.New(pod, podstate.Backoff{Initial: time.Second, Max: 8 * time.Second}, now),
	}
}

// event reports one event, as a word and its arguments.
func (s *script) event(text string) {
	s.t.Helper()
	f := strings.Fields(text)
	arg := func(i int) string {
		if i < len(f) {
			return f[i]
		}
		return ""
	}
	switch f[0] {
	case "begin":
	case "sandbox":
		s.state.SandboxReady(podstate.Host{IP: "10.0.0.1", PodIPs: []string{"10.0.1.1"}})
	case "no-sandbox":
		s.state.SandboxFailed("ContainerCreating", "no address", s.now)
	case "started":
		s.state.Started(f[1], "process://"+f[1], s.attempts[f[1]], s.now)
	case "cannot":
		s.state.CannotStart(f[1], s.attempts[f[1]], "ImagePullBackOff", "no image", s.now)
	case "exited":
		code, err := strconv.Atoi(f[2])
		if err != nil {
			s.t.Fatal(err)
		}
		s.state.Exited(f[1], s.attempts[f[1]], int32(code), 0, "", "", s.now)
	case "hook":
		s.state.PostStarted(f[1], s.attempts[f[1]])
	case "probe":
		kind := map[string]podstate.Kind{"startup": podstate.Startup, "ready": podstate.Readiness, "live": podstate.Liveness}[f[2]]
		if s.state.Probed(f[1], s.attempts[f[1]], kind, arg(3) == "ok") {
			a := s.state.Failing(f[1])
			s.t.Logf("stop %s %v", a.Container, a.Grace)
		}
	case "wait":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.now.Add(d)
	case "delete":
		d, err := strconv.Atoi(f[1])
		if err != nil {
			s.t.Fatal(err)
		}
		pod := s.state.Pod().DeepCopy()
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: s.now}, new(int64(d))
		s.state.Update(pod, s.now)
	default:
		s.t.Fatalf("unknown event %q", text)
	}
}

// actions is what Next says.
func (s *script) actions() string {
	actions, wake := s.state.Next(s.now)
	var out []string
	for _, a := range actions {
		switch a.Type {
		case podstate.MakeSandbox:
			out = append(out, "make")
		case podstate.Start:
			s.attempts[a.Container] = a.Attempt
			out = append(out, "start "+a.Container)
		case podstate.Stop:
			out = append(out, fmt.Sprintf("stop %s %v", a.Container, a.Grace))
		case podstate.Remove:
			out = append(out, "remove")
		}
	}
	if !wake.IsZero() {
		out = append(out, fmt.Sprintf("wake %v", wake.Sub(s.now)))
	}
	return strings.Join(out, ", ")
}

// status is the Pod's status in one line.
func (s *script) status() string {
	st := s.state.Status(s.now)
	out := []string{string(st.Phase)}
	for _, c := range st.Conditions {
		if c.Status == corev1.ConditionTrue {
			out = append(out, string(c.Type))
		}
	}
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for _, c := range list {
			state := "running"
			switch {
			case c.State.Waiting != nil:
				state = c.State.Waiting.Reason
			case c.State.Terminated != nil:
				state = c.State.Terminated.Reason
			}
			if c.Ready {
				state += "+"
			}
			if c.RestartCount > 0 {
				state += fmt.Sprint(c.RestartCount)
			}
			out = append(out, c.Name+"="+state)
		}
	}
	return strings.Join(out, " ")
}

func (s *script) run(steps string) {
	s.t.Helper()
	for n, line := range strings.Split(strings.TrimSpace(steps), "\n") {
		event, rest, _ := strings.Cut(line, " => ")
		want, status, checks := strings.Cut(rest, "| ")
		s.event(strings.TrimSpace(event))
		if got := s.actions(); got != strings.TrimSpace(want) {
			s.t.Errorf("step %d, %s: actions %q, want %q", n+1, event, got, want)
		}
		if checks && s.status() != status {
			s.t.Errorf("step %d, %s: status\ngot  %s\nwant %s", n+1, event, s.status(), status)
		}
	}
}

func TestContainersStartInOrder(t *testing.T) {
	newScript(t, `
initContainers:
- {name: first}
- {name: proxy, restartPolicy: Always, startupProbe: {}, readinessProbe: {}}
- {name: second}
containers:
- {name: app, readinessProbe: {}}
- {name: log}
`).run(`
begin => make | Pending first=ContainerCreating proxy=ContainerCreating second=ContainerCreating app=ContainerCreating log=ContainerCreating
no-sandbox => wake 1s
wait 1s => make
sandbox => start first | Pending PodReadyToStartContainers first=ContainerCreating proxy=PodInitializing second=PodInitializing app=PodInitializing log=PodInitializing
started first =>
exited first 1 => start first
started first =>
exited first 1 => wake 1s | Pending PodReadyToStartContainers first=CrashLoopBackOff1 proxy=PodInitializing second=PodInitializing app=PodInitializing log=PodInitializing
wait 1s => start first
started first =>
exited first 0 => start proxy
started proxy => | Pending PodReadyToStartContainers first=Completed+2 proxy=running second=PodInitializing app=PodInitializing log=PodInitializing
probe proxy startup ok => start second
probe proxy ready ok =>
started second =>
exited second 0 => start app | Pending PodReadyToStartContainers Initialized first=Completed+2 proxy=running+ second=Completed+ app=ContainerCreating log=PodInitializing
started app => start log
started log => | Running PodReadyToStartContainers Initialized first=Completed+2 proxy=running+ second=Completed+ app=running log=running+
probe app ready ok => | Running PodReadyToStartContainers Initialized ContainersReady Ready first=Completed+2 proxy=running+ second=Completed+ app=running+ log=running+
probe proxy ready bad => | Running PodReadyToStartContainers Initialized first=Completed+2 proxy=running second=Completed+ app=running+ log=running+
exited proxy 1 => start proxy | Running PodReadyToStartContainers Initialized first=Completed+2 proxy=ContainerCreating1 second=Completed+ app=running+ log=running+
`)
}

func TestNextContainerWaitsForPostStart(t *testing.T) {
	newScript(t, `
containers:
- {name: proxy, lifecycle: {postStart: {sleep: {seconds: 1}}}}
- {name: app}
`).run(`
begin => make
sandbox => start proxy
started proxy => | Running PodReadyToStartContainers Initialized proxy=running app=PodInitializing
hook proxy => start app
`)
}

func TestSidecarsEndLast(t *testing.T) {
	newScript(t, `
terminationGracePeriodSeconds: 30
initContainers:
- {name: one, restartPolicy: Always}
- {name: two, restartPolicy: Always}
containers: [{name: app}]
`).run(`
begin => make
sandbox => start one
started one => start two
started two => start app
started app =>
delete 30 => stop app 30s
wait 5s =>
exited app 0 => stop two 25s, wake 25s
wait 10s => wake 15s
delete 10 => stop two 10s, wake 10s
wait 10s => stop one 2s
exited two 137 =>
exited one 0 => remove | Succeeded Initialized one=Completed two=Error app=Completed
`)
}

func TestJobEndsItsSidecar(t *testing.T) {
	newScript(t, `
restartPolicy: OnFailure
terminationGracePeriodSeconds: 5
initContainers: [{name: proxy, restartPolicy: Always}]
containers: [{name: job}]
`).run(`
begin => make
sandbox => start proxy
started proxy => start job
started job =>
exited job 3 => start job
started job =>
exited job 0 => stop proxy 5s, wake 5s | Running PodReadyToStartContainers Initialized proxy=running+ job=Completed1
exited proxy 0 => remove | Succeeded Initialized proxy=Completed job=Completed1
`)
}

func TestInitContainerThatFailsForGood(t *testing.T) {
	newScript(t, `
restartPolicy: Never
initContainers: [{name: init}]
containers: [{name: app}]
`).run(`
begin => make
sandbox => start init
started init =>
exited init 2 => remove | Failed init=Error app=PodInitializing
`)
}

func TestBackoff(t *testing.T) {
	newScript(t, `containers: [{name: app}]`).run(`
begin => make
sandbox => start app
cannot app => wake 1s | Pending PodReadyToStartContainers Initialized app=ImagePullBackOff
wait 1s => start app
started app =>
exited app 0 => wake 1s | Running PodReadyToStartContainers Initialized app=CrashLoopBackOff
wait 1s => start app
started app =>
exited app 1 => wake 2s
wait 2s => start app
started app =>
exited app 1 => wake 4s
wait 4s => start app
started app =>
exited app 1 => wake 8s
wait 8s => start app
started app =>
exited app 1 => wake 8s
wait 8s => start app
started app =>
wait 17s =>
exited app 1 => start app | Running PodReadyToStartContainers Initialized app=ContainerCreating6
`)
}

func TestDeletionBeforeAnythingRuns(t *testing.T) {
	newScript(t, `containers: [{name: app}]`).run(`
begin => make
delete 30 =>
sandbox => remove
`)
	newScript(t, `containers: [{name: app}]`).run(`
begin => make
sandbox => start app
delete 30 =>
started app => stop app 30s
exited app 143 => remove | Failed Initialized app=Error
`)
}

func TestActiveDeadline(t *testing.T) {
	newScript(t, `
activeDeadlineSeconds: 60
restartPolicy: Never
containers: [{name: app}]
`).run(`
begin => make, wake 1m0s
sandbox => start app, wake 1m0s
started app => wake 1m0s
wait 60s => stop app 2s
exited app 143 => remove | Failed Initialized app=Error
`)
}

func TestReadinessGateHoldsReadyBack(t *testing.T) {
	s := newScript(t, `
readinessGates: [{conditionType: example.com/open}]
containers: [{name: app}]
`)
	s.run(`
begin => make
sandbox => start app
started app => | Running PodReadyToStartContainers Initialized ContainersReady app=running+
`)
	pod := s.state.Pod().DeepCopy()
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: "example.com/open", Status: corev1.ConditionTrue})
	s.state.Update(pod, s.now)
	if got, want := s.status(), "Running example.com/open PodReadyToStartContainers Initialized ContainersReady Ready app=running+"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestConditionTimesChangeWithTheirStatus(t *testing.T) {
	s := newScript(t, `containers: [{name: app}]`)
	pod := s.state.Pod().DeepCopy()
	pod.Status = s.state.Status(s.now)
	s.state.Update(pod, s.now)
	s.run(`
begin => make
wait 5s =>
sandbox => start app
`)
	for _, c := range s.state.Status(s.now).Conditions {
		changed := c.LastTransitionTime.Time.Equal(s.now)
		if want := c.Type == corev1.PodReadyToStartContainers; changed != want {
			t.Errorf("condition %s changed now: %v, want %v", c.Type, changed, want)
		}
	}
}
