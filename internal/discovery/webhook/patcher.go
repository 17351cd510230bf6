package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	client "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// PatcherOptions are what a Patcher needs.
type PatcherOptions struct {
	// Config says how to reach the API server.
	Config *rest.Config
	// Target says which configurations are patched; its Bundle is replaced by that of Bundle.
	Target Target
	// Bundle returns the trusted roots in PEM, and a channel that is closed when they have changed.
	Bundle func() (pem []byte, changed <-chan struct{})
	// Metrics gets the collectors of the patches; nil: none.
	Metrics prometheus.Registerer
	Log     *slog.Logger
	// InjectionOnly leaves what validates alone, and reads none of it.
	InjectionOnly bool
}

// Patcher keeps the webhook configurations true that send requests to this control plane: caBundle contains all
// trusted roots and those below which a replica still serves, and what validates has the failure policy of the options. What others change is put right.
// It needs get, list, watch and patch of both kinds of configurations, and create of Gateways of
// networking.istio.io in its namespace, for a probe that is never stored. [control-plane 1.15.12]
type Patcher struct {
	opts   PatcherOptions
	client client.AdmissionregistrationV1Interface
	wake   chan struct{} // has an element if something may have to be done

	attempts, failures, retries *prometheus.CounterVec

	// What follows belongs to the goroutine of Run.
	pace    map[string]pace // of configurations, by kind and name
	proven  map[string]bool // client configurations by which the probe was refused
	probing pace
}

// NewPatcher returns a patcher. It panics if another one has registered its metrics with o.Metrics.
func NewPatcher(o PatcherOptions) (*Patcher, error) {
	c, err := client.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("make a client for webhook configurations: %w", err)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		if o.Metrics != nil {
			o.Metrics.MustRegister(v)
		}
		return v
	}
	return &Patcher{
		opts: o, client: c, wake: make(chan struct{}, 1), pace: map[string]pace{}, proven: map[string]bool{},
		attempts: counter("webhook_patch_attempts_total", "Patches of webhook configurations that were sent.", "name"),
		failures: counter("webhook_patch_failures_total", "Patches of webhook configurations that failed.", "name", "reason"),
		retries:  counter("webhook_patch_retries_total", "Patches of webhook configurations that were sent after one that failed.", "name"),
	}, nil
}

// Run patches until ctx ends, and then returns nil. Problems are logged, and what failed is tried again.
func (p *Patcher) Run(ctx context.Context) error {
	r := p.client.RESTClient()
	m := p.informer(cache.NewListWatchFromClient(r, "mutatingwebhookconfigurations", metav1.NamespaceAll, fields.Everything()), &admissionregistrationv1.MutatingWebhookConfiguration{})
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	watching.Go(func() { m.RunWithContext(ctx) })
	stores, synced := []cache.Store{m.GetStore()}, []cache.InformerSynced{m.HasSynced}
	if !p.opts.InjectionOnly {
		v := p.informer(cache.NewListWatchFromClient(r, "validatingwebhookconfigurations", metav1.NamespaceAll, fields.Everything()), &admissionregistrationv1.ValidatingWebhookConfiguration{})
		watching.Go(func() { v.RunWithContext(ctx) })
		stores, synced = append(stores, v.GetStore()), append(synced, v.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		pem, changed := p.opts.Bundle()
		t := p.opts.Target
		t.Bundle = pem
		next := p.reconcile(ctx, t, configurations(stores...))
		timer.Reset(next)
		select {
		case <-p.wake:
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// informer returns one that wakes Run.
func (p *Patcher) informer(lw cache.ListerWatcher, kind runtime.Object) cache.SharedIndexInformer {
	i := cache.NewSharedIndexInformer(lw, kind, 0, cache.Indexers{})
	wake := func() {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
	_, _ = i.AddEventHandler(cache.ResourceEventHandlerFuncs{ // fails only for an informer that has ended
		AddFunc: func(any) { wake() }, UpdateFunc: func(_, _ any) { wake() }, DeleteFunc: func(any) { wake() },
	})
	var last string
	_ = i.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { // fails only for one that runs
		if text := err.Error(); text != last && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			p.opts.Log.Warn("webhook configurations cannot be watched; they are not kept true until they can", "error", err)
			last = text
		}
	})
	return i
}

// configurations returns those in stores.
func configurations(stores ...cache.Store) (all []configuration) {
	for _, s := range stores {
		for _, o := range s.List() {
			switch c := o.(type) {
			case *admissionregistrationv1.ValidatingWebhookConfiguration:
				all = append(all, validatingConfiguration(c))
			case *admissionregistrationv1.MutatingWebhookConfiguration:
				all = append(all, mutatingConfiguration(c))
			}
		}
	}
	return all
}

// idle is after which time all configurations are looked at again although nothing has happened.
const idle = 5 * time.Minute

// keepLook is after which time it is looked again whether a replica still serves below a root that is not trusted any more.
const keepLook = 2 * time.Second

// reconcile does what is due for the configurations, and returns after which time something is due again.
func (p *Patcher) reconcile(ctx context.Context, t Target, all []configuration) time.Duration {
	next, unproven := idle, false
	works := func(c admissionregistrationv1.WebhookClientConfig) bool { return p.proven[clientKey(c)] }
	for _, c := range all {
		todo := t.plan(c, works)
		unproven = unproven || todo.unproven
		if todo.keeps {
			next = min(next, keepLook)
		}
		if todo.patch == nil {
			continue
		}
		key := c.kind + " " + c.name
		pc := p.pace[key]
		wait := pc.wait(time.Now())
		if wait <= 0 {
			err := p.patch(ctx, c, todo, pc.failed)
			pc.tried(time.Now(), err != nil)
			p.pace[key] = pc
			// What was done is read back from the watch.
			wait = pc.wait(time.Now())
		}
		next = min(next, max(wait, minPause))
	}
	if !unproven {
		p.probing = pace{}
		return next
	}
	wait := p.probing.wait(time.Now())
	if wait <= 0 {
		if p.probe(ctx, t, all) {
			p.probing = pace{}
			return 0
		}
		p.probing.tried(time.Now(), true)
		wait = p.probing.wait(time.Now())
	}
	return min(next, max(wait, minPause))
}

// patch sends the patch of a configuration.
func (p *Patcher) patch(ctx context.Context, c configuration, todo plan, again bool) error {
	body, err := json.Marshal(todo.patch)
	if err != nil {
		return fmt.Errorf("encode the patch: %w", err)
	}
	p.attempts.WithLabelValues(c.name).Inc()
	if again {
		p.retries.WithLabelValues(c.name).Inc()
	}
	if c.kind == validating {
		_, err = p.client.ValidatingWebhookConfigurations().Patch(ctx, c.name, types.JSONPatchType, body, metav1.PatchOptions{})
	} else {
		_, err = p.client.MutatingWebhookConfigurations().Patch(ctx, c.name, types.JSONPatchType, body, metav1.PatchOptions{})
	}
	what := strings.Join(todo.what, ", ")
	switch {
	case err == nil:
		p.opts.Log.Info("webhook configuration patched", "kind", c.kind, "name", c.name, "set", what)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsInvalid(err):
		// It has changed since it was read: the watch reports the new version.
		p.failures.WithLabelValues(c.name, string(apierrors.ReasonForError(err))).Inc()
		p.opts.Log.Debug("webhook configuration has changed since it was read", "kind", c.kind, "name", c.name, "error", err)
	case ctx.Err() == nil:
		p.failures.WithLabelValues(c.name, string(apierrors.ReasonForError(err))).Inc()
		p.opts.Log.Error("webhook configuration not patched; requests to this control plane fail until it is", "kind", c.kind, "name", c.name, "set", what, "error", err)
	}
	return err
}

// probeTimeout bounds a probe.
const probeTimeout = 15 * time.Second

// probe has the API server ask whether objects may be created that must be refused, one that names the revision and
// one that does not. It reports whether a client configuration has been proven to work.
func (p *Patcher) probe(ctx context.Context, t Target, all []configuration) (found bool) {
	for _, labels := range []map[string]string{{mesh.RevisionLabel: t.Revision}, nil} {
		err := p.createProbe(ctx, t.Namespace, labels)
		if err == nil {
			p.opts.Log.Debug("webhooks that validate are not known to work yet: the API server has admitted the probe")
			continue
		}
		name, ok := refuser(err.Error())
		if !ok {
			p.opts.Log.Debug("webhooks that validate are not known to work yet", "error", printable.Clip(err.Error(), 1024))
			continue
		}
		for _, c := range all {
			for _, h := range c.hooks {
				if k := clientKey(h.client); c.kind == validating && h.name == name && t.owns(c) && t.serves(h.client) && !p.proven[k] {
					p.proven[k] = true
					found = true
				}
			}
		}
	}
	return found
}

// createProbe sends the probe, which is not stored.
func (p *Patcher) createProbe(ctx context.Context, namespace string, labels map[string]string) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "spec": map[string]any{},
		"metadata": metav1.ObjectMeta{Name: "pilothouse-webhook-probe", Namespace: namespace, Labels: labels, Annotations: map[string]string{admit.RejectAnnotation: "true"}},
	})
	if err != nil {
		return fmt.Errorf("encode the probe: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err = p.client.RESTClient().Post().AbsPath("/apis/networking.istio.io/v1/namespaces/"+namespace+"/gateways").
		Param("dryRun", metav1.DryRunAll).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the probe has not been answered for %s: %w", probeTimeout, err)
	}
	return err
}
