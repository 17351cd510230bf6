package rootsecret

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/ca/rotation"
)

const (
	// reportEvery is the age at which a report is written again although nothing has changed. Reports count
	// for rotation.ReportTTL, which is three times as long.
	reportEvery = 15 * time.Second
	// reportKept is the age at which the report of an instance that has ended is removed.
	reportKept = 10 * time.Minute
	// maxInstances limits the reports.
	maxInstances = 256
)

// reporter keeps the reports of the instances in a ConfigMap, one key for each.
type reporter struct {
	maps     typed.ConfigMapInterface
	name     string
	instance string

	reports sync.Mutex // guards what follows
	left    bool       // this instance has ended, and does not report again
	own     rotation.Report
	written rotation.Report // what of own is in the ConfigMap
	seen    map[string]seen // reports of the others, by instance
}

// seen is the report of another instance, and when it was seen first. Clocks of nodes differ: how old a
// report is counts from when it was seen here.
type seen struct {
	text string
	at   time.Time
	rotation.Report
}

// Report implements ca.Store. A report in which nothing has changed is written each 15 s only.
func (r *reporter) Report(ctx context.Context, report rotation.Report) error {
	r.reports.Lock()
	defer r.reports.Unlock()
	if r.left {
		return nil
	}
	report.Instance = r.instance
	r.own = report
	if w := r.written; report.At.Sub(w.At) < reportEvery && report.Waiting == w.Waiting && report.Clear.Equal(w.Clear) && report.Serves == w.Serves && slices.Equal(report.Trusted, w.Trusted) {
		return nil
	}
	text, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("report to the other instances: %w", err)
	}
	if err := r.set(ctx, map[string]any{r.instance: string(text)}); err != nil {
		return fmt.Errorf("report to the other instances: %w", err)
	}
	r.written = report
	return nil
}

// set writes keys of the ConfigMap, or removes those that are nil, and leaves all others.
func (r *reporter) set(ctx context.Context, keys map[string]any) error {
	patch, err := json.Marshal(map[string]any{"data": keys})
	if err != nil {
		return err
	}
	_, err = r.maps.Patch(ctx, r.name, types.MergePatchType, patch, metav1.PatchOptions{})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = r.maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: r.name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = r.maps.Patch(ctx, r.name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Leave implements ca.Store.
func (r *reporter) Leave(ctx context.Context) error {
	r.reports.Lock()
	defer r.reports.Unlock()
	r.written, r.left = rotation.Report{}, true
	if err := r.set(ctx, map[string]any{r.instance: nil}); err != nil {
		return fmt.Errorf("report to the other instances: %w", err)
	}
	return nil
}

// Reports implements ca.Store.
func (r *reporter) Reports(ctx context.Context, now time.Time) ([]rotation.Report, error) {
	r.reports.Lock()
	defer r.reports.Unlock()
	found, err := r.maps.Get(ctx, r.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the reports of the instances: %w", err)
	}
	if len(found.Data) > maxInstances {
		return nil, fmt.Errorf("read the reports of the instances: %d in ConfigMap %s, want at most %d: remove it, and each instance reports again", len(found.Data), r.name, maxInstances)
	}
	if _, ok := found.Data[r.instance]; !ok {
		r.written = rotation.Report{} // somebody has removed it
	}
	var out []rotation.Report
	if !r.left {
		out = append(out, r.own)
	}
	ended := map[string]any{}
	for instance, text := range found.Data {
		if instance == r.instance {
			continue
		}
		last, known := r.seen[instance]
		if !known || last.text != text {
			if last, err = read(text, now); err != nil {
				return nil, fmt.Errorf("read the report of an instance, key %s of ConfigMap %s: %w", instance, r.name, err)
			}
			r.seen[instance] = last
		}
		if now.Sub(last.at) > reportKept {
			ended[instance] = nil
			continue
		}
		out = append(out, last.Report)
	}
	for instance := range r.seen {
		if _, ok := found.Data[instance]; !ok {
			delete(r.seen, instance)
		}
	}
	if len(ended) > 0 {
		if err := r.set(ctx, ended); err != nil {
			return nil, fmt.Errorf("remove the reports of instances that have ended: %w", err)
		}
	}
	return out, nil
}

// read reads a report that is seen first at the time now, by whose clock its times are.
func read(text string, now time.Time) (seen, error) {
	out := seen{text: text, at: now}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	if err := d.Decode(&out.Report); err != nil {
		return seen{}, err
	}
	if !out.Clear.IsZero() {
		out.Clear = out.Clear.Add(now.Sub(out.At))
	}
	out.At = now
	return out, nil
}
