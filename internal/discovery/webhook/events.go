package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/printable"
)

const (
	// maxEvents is how many events wait to be written; more are dropped, since Pods must not wait for them.
	maxEvents = 256
	// repeatAfter is after which time the same event is written again.
	repeatAfter = 10 * time.Minute
	// maxRemembered is how many events are remembered for this.
	maxRemembered = 4096
	// eventTimeout bounds the writing of one event.
	eventTimeout = 10 * time.Second
)

// Events records Pods without a proxy as Events of the cluster: of what controls the Pod, such as its ReplicaSet,
// else of the Pod. Equal events are written once in 10 minutes. What the Pod's own label or annotation asks for is
// not recorded. It needs create of Events.
type Events struct {
	client client.CoreV1Interface
	log    *slog.Logger
	queue  chan *corev1.Event
}

// NewEvents returns a recorder, whose Run writes the events.
func NewEvents(config *rest.Config, log *slog.Logger) (*Events, error) {
	c, err := client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for events: %w", err)
	}
	return &Events{client: c, log: log, queue: make(chan *corev1.Event, maxEvents)}, nil
}

// Skipped implements Recorder.
func (e *Events) Skipped(pod *corev1.Pod, namespace, reason, message string) {
	switch inject.Reason(reason) {
	case inject.Label, inject.Annotation, inject.ControlPlane:
		return
	}
	e.record(pod, namespace, corev1.EventTypeNormal, "ProxyNotInjected", reason+": "+message)
}

// Failed implements Recorder.
func (e *Events) Failed(pod *corev1.Pod, namespace string, err error) {
	e.record(pod, namespace, corev1.EventTypeWarning, "ProxyInjectionFailed", err.Error())
}

func (e *Events) record(pod *corev1.Pod, namespace, kind, reason, message string) {
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: podName(pod)}
	if c := metav1.GetControllerOf(pod); c != nil {
		about = corev1.ObjectReference{APIVersion: c.APIVersion, Kind: c.Kind, Namespace: namespace, Name: c.Name, UID: c.UID}
	}
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pilothouse-injection-", Namespace: namespace}, InvolvedObject: about,
		Type: kind, Reason: reason, Message: printable.Clip(printable.Escape(message), 900), // the API server takes 1024 bytes
		Source: corev1.EventSource{Component: "pilot-discovery"}, Count: 1,
	}
	select {
	case e.queue <- event:
	default:
	}
}

// told is what makes two events equal.
type told struct {
	about           corev1.ObjectReference
	reason, message string
}

// Run writes events until ctx ends, and then returns nil. Those that cannot be written are logged.
func (e *Events) Run(ctx context.Context) error {
	written := map[told]time.Time{}
	for {
		select {
		case event := <-e.queue:
			now := time.Now()
			key := told{event.InvolvedObject, event.Reason, event.Message}
			if at, seen := written[key]; seen && now.Sub(at) < repeatAfter {
				continue
			}
			if len(written) >= maxRemembered {
				clear(written)
			}
			written[key] = now
			event.FirstTimestamp, event.LastTimestamp = metav1.NewTime(now), metav1.NewTime(now)
			e.write(ctx, event)
		case <-ctx.Done():
			return nil
		}
	}
}

func (e *Events) write(ctx context.Context, event *corev1.Event) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	if _, err := e.client.Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
		e.log.Warn("event not written", "about", event.InvolvedObject.Kind+" "+event.Namespace+"/"+event.InvolvedObject.Name, "event", event.Message, "error", err)
	}
}
