package discovery

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/compile"
	"github.com/pilothouse/pilothouse/internal/discovery/inject"
	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/test/wait"
)

// The injector is told of each change of ProxyConfig objects, and of nothing else; those of remote clusters are not for it.
func TestProxyConfigsForTheInjector(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	l := newLoop("cluster.local", compile.Options{}, Lenience{}, openKeeper(wait.Folder(t), "", log), log)
	var told []*inject.ProxyConfigs
	l.onProxyConfigs = func(all *inject.ProxyConfigs) { told = append(told, all) }
	change := func(cluster, name string, workers int32) object.Change {
		k := object.Key{Kind: object.ProxyConfig, Namespace: "shop", Name: name, Cluster: cluster}
		if workers == 0 {
			return object.Change{Key: k}
		}
		o := &object.Object{Key: k, Meta: object.Meta{Created: time.Unix(int64(workers), 0)}, Spec: &networkingv1beta1.ProxyConfig{Concurrency: wrapperspb.Int32(workers)}}
		return object.Change{Key: k, Object: o}
	}
	config, err := inject.New(inject.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		changes []object.Change
		told    int
		want    string
	}{
		{"nothing", nil, 0, ""},
		{"two objects", []object.Change{change("", "a", 2), change("", "b", 1)}, 1, `{"concurrency":1}`},
		{"the same again", []object.Change{change("", "a", 2)}, 1, `{"concurrency":1}`},
		{"one that is invalid", []object.Change{change("", "b", -1)}, 1, `{"concurrency":1}`},
		{"the older one is removed", []object.Change{change("", "b", 0)}, 2, `{"concurrency":2}`},
		{"of a remote cluster", []object.Change{change("west", "c", 1)}, 2, `{"concurrency":2}`},
		{"the last one is removed", []object.Change{change("", "a", 0)}, 3, `{}`},
	} {
		l.commit(object.Batch{Changes: tt.changes})
		if len(told) != tt.told {
			t.Fatalf("%s: told %d times, want %d", tt.name, len(told), tt.told)
		}
		if tt.want == "" {
			continue
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}}
		result, err := config.Inject(inject.Request{Pod: pod, ProxyConfigs: told[len(told)-1]})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range result.Pod.Spec.Containers[1].Env {
			if e.Name == "PROXY_CONFIG" && e.Value != tt.want && e.Value != tt.want+"\n" {
				t.Errorf("%s: PROXY_CONFIG %q, want %s", tt.name, e.Value, tt.want)
			}
		}
	}
}
