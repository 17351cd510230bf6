package statuswriter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/internal/object"
)

const (
	// reportsName is the ConfigMap with what replicas report to the leader, two keys for each.
	reportsName = "pilothouse-status-instances"
	// beatSuffix ends the key with the number that shows that a replica is alive.
	beatSuffix = ".beat"
	// reportPause is the shortest time between two reports of a replica, and between two looks of the leader.
	reportPause = 2 * time.Second
	// beatEvery is how often a replica that has nothing new shows that it is alive, reportTTL for how long that counts.
	beatEvery, reportTTL = 10 * time.Second, 30 * time.Second
	// maxReplicas bounds the reports that are read.
	maxReplicas = 64
)

// Local is what this replica knows.
type Local interface {
	// Keys returns the objects of which something is known.
	Keys() []object.Key
	// Version changes with what is known; it is 0 until something is.
	Version() uint64
	// Reports are what others have to know.
	Reports() map[object.Key]objectstatus.Report
}

// ReplicasOptions configure Replicas.
type ReplicasOptions struct {
	// Config is how to connect to the API server. It is not changed.
	Config *rest.Config
	// Namespace is that of the control plane, Instance the name of this replica among the others, and Revision that of
	// this control plane.
	Namespace, Instance, Revision string
	// Reading reports whether this replica writes statuses, Leading whether also those of the objects of all revisions: the
	// numbers of this replica's proxies are then for no other one. The latter implies the former.
	Reading, Leading func() bool
	Log              *slog.Logger
}

// Replicas joins what the replicas of the control plane know of objects, of all revisions in its namespace, since a proxy is connected
// to one of them. All but the one that leads report, in a ConfigMap; those that write statuses read it. With one replica
// nothing is written. Create one with NewReplicas.
type Replicas struct {
	options ReplicasOptions
	maps    typed.ConfigMapInterface

	mu sync.Mutex // guards what follows
	// read is set while this replica writes statuses and has read the reports.
	read   bool
	others map[string]*replica
}

// replica is what another replica reports.
type replica struct {
	*objectstatus.Reports
	text []byte
	beat string
	at   time.Time // when beat was seen first
}

// NewReplicas returns Replicas. It sends no request.
func NewReplicas(o ReplicasOptions) (*Replicas, error) {
	config := rest.CopyConfig(o.Config)
	config.Timeout = requestTimeout
	client, err := typed.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return &Replicas{options: o, maps: client.ConfigMaps(o.Namespace), others: map[string]*replica{}}, nil
}

// Join joins what is known here of an object with what others report. It returns false while this replica does not
// know what others report. unknown is how many of this revision have not reported on the object. It is safe for concurrent use.
func (r *Replicas) Join(k object.Key, o objectstatus.Observation) (joined objectstatus.Observation, unknown int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.read {
		return o, 0, false
	}
	var reports []objectstatus.Report
	for _, name := range slices.Sorted(maps.Keys(r.others)) {
		x := r.others[name]
		if report, ok := x.Objects[k]; ok {
			reports = append(reports, report)
		} else if x.Revision == r.options.Revision {
			unknown++
		}
	}
	return o.Join(reports...), unknown, true
}

// reporting is the state of Run.
type reporting struct {
	*Replicas
	local   Local
	changed func([]object.Key)
	// reported is whether this replica has a report in the ConfigMap, or may have one.
	reported bool
	text     []byte // of it
	version  uint64 // of what is known, that text is made from
	beat     uint64
	beaten   time.Time
	led      time.Time // when this replica led last, or started
	failing  bool
}

// Run reports, unless this replica leads, and reads the reports while it writes statuses, until ctx ends. Then it removes its own and
// returns nil. changed is called with the objects of which others report something else.
func (r *Replicas) Run(ctx context.Context, local Local, changed func([]object.Key)) error {
	// The number differs from that of an earlier process with the same name.
	s := &reporting{Replicas: r, local: local, changed: changed, reported: true, led: time.Now(), beat: uint64(time.Now().UnixNano())}
	tick := time.NewTicker(reportPause)
	defer tick.Stop()
	for {
		err := s.step(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && !s.failing:
			r.options.Log.Warn("the replicas of the control plane cannot exchange how many proxies have applied objects: statuses are not kept", "configmap", reportsName, "error", err)
		case err == nil && s.failing:
			r.options.Log.Info("the replicas of the control plane exchange again how many proxies have applied objects")
		}
		s.failing = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
			defer cancel()
			return s.leave(bounded)
		}
	}
}

// leave removes the report of this replica. That it cannot is no error: the report ends by itself.
func (s *reporting) leave(ctx context.Context) error {
	if s.reported && s.text != nil {
		if err := s.remove(ctx); err != nil {
			s.options.Log.Debug("the report of this replica was not removed; it ends by itself", "error", err)
		}
	}
	return nil
}

func (s *reporting) step(ctx context.Context) error {
	now := time.Now()
	var told, read error
	switch {
	case s.options.Leading():
		s.led = now
		if s.reported {
			told = s.remove(ctx)
		}
	case now.Sub(s.led) >= 2*reportPause: // before, it may lead soon
		told = s.report(ctx, now)
	}
	if s.options.Reading() {
		read = s.readAll(ctx, now)
	} else {
		s.mu.Lock()
		s.read, s.others = false, map[string]*replica{}
		s.mu.Unlock()
	}
	return errors.Join(told, read)
}

// report writes what has changed, or that nothing has.
func (s *reporting) report(ctx context.Context, now time.Time) error {
	version := s.local.Version()
	if version == 0 {
		return nil
	}
	var binary map[string]any
	if text := s.text; text == nil || version != s.version {
		reports := objectstatus.Reports{Revision: s.options.Revision, Objects: s.local.Reports()}
		encoded, err := reports.Encode()
		if err != nil {
			return err
		}
		if !bytes.Equal(encoded, text) {
			binary = map[string]any{s.options.Instance: encoded}
		}
		s.text, s.version = encoded, version
	}
	if binary == nil && now.Sub(s.beaten) < beatEvery {
		return nil
	}
	s.beat++
	err := s.patch(ctx, map[string]any{"binaryData": binary, "data": map[string]any{s.options.Instance + beatSuffix: strconv.FormatUint(s.beat, 10)}})
	if err != nil {
		s.text = nil // written whole the next time
		return err
	}
	s.beaten, s.reported = now, true
	return nil
}

// remove removes the report of this replica.
func (s *reporting) remove(ctx context.Context) error {
	found, err := s.maps.Get(ctx, reportsName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		s.reported, s.text = false, nil
		return nil
	}
	if err != nil {
		return err
	}
	if _, there := found.BinaryData[s.options.Instance]; there {
		if err := s.patch(ctx, removal(s.options.Instance)); err != nil {
			return err
		}
	}
	s.reported, s.text = false, nil
	return nil
}

func removal(instance string) map[string]any {
	return map[string]any{"binaryData": map[string]any{instance: nil}, "data": map[string]any{instance + beatSuffix: nil}}
}

// patch writes keys of the ConfigMap, which it creates if there is none.
func (s *reporting) patch(ctx context.Context, keys map[string]any) error {
	patch, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	_, err = s.maps.Patch(ctx, reportsName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = s.maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: reportsName}}, metav1.CreateOptions{FieldManager: FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = s.maps.Patch(ctx, reportsName, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	return err
}

// readAll reads the reports of the others, and removes those of replicas that have ended.
func (s *reporting) readAll(ctx context.Context, now time.Time) error {
	found, err := s.maps.Get(ctx, reportsName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if n := len(found.BinaryData); n > maxReplicas {
		return fmt.Errorf("read the reports of the replicas: %d in ConfigMap %s, want at most %d: remove it, and each replica reports again", n, reportsName, maxReplicas)
	}
	keys, dead, err := s.take(found, now)
	if len(keys) > 0 {
		s.changed(keys)
	}
	for _, instance := range dead {
		if err := s.patch(ctx, removal(instance)); err != nil {
			return err
		}
	}
	return err
}

// take notes what the ConfigMap has. It returns the objects of which something else is reported, and the replicas that
// have ended.
func (s *reporting) take(found *corev1.ConfigMap, now time.Time) (keys []object.Key, dead []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	others := map[string]*replica{}
	for instance, text := range found.BinaryData {
		if instance == s.options.Instance {
			continue
		}
		before, beat := s.others[instance], found.Data[instance+beatSuffix]
		next := &replica{text: text, beat: beat, at: now}
		if before != nil && before.beat == beat {
			next.at = before.at
		}
		if now.Sub(next.at) > reportTTL {
			dead = append(dead, instance)
			continue
		}
		if before != nil && bytes.Equal(before.text, text) {
			next.Reports = before.Reports
		} else if next.Reports, err = objectstatus.DecodeReports(text); err != nil {
			return nil, nil, fmt.Errorf("key %s of ConfigMap %s: %w", strings.ToValidUTF8(instance, ""), reportsName, err)
		}
		others[instance] = next
	}
	all := !s.read
	for instance, now := range others {
		if before := s.others[instance]; before == nil {
			all = true
		} else if before.Reports != now.Reports {
			keys = append(keys, objectstatus.Differences(before.Reports, now.Reports)...)
		}
	}
	for instance := range s.others {
		all = all || others[instance] == nil
	}
	s.read, s.others = true, others
	if all {
		keys = s.local.Keys()
	}
	return keys, dead, nil
}
