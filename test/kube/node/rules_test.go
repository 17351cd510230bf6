package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/lab/netmesh"
	"github.com/pilothouse/pilothouse/test/kube/node/podnet"
	"github.com/pilothouse/pilothouse/test/wait"
)

// Rules that could not be written to a Pod are written again, though nothing changes any more; those of other Pods are not.
func TestRulesAreWrittenAgain(t *testing.T) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	good, bad := &netmesh.Pod{}, &netmesh.Pod{}
	var mu sync.Mutex
	written, failures := map[*netmesh.Pod][]podnet.Rule{}, 2
	writes := map[*netmesh.Pod]int{}
	n := &Network{
		o: NetworkOptions{Log: slog.New(slog.DiscardHandler)}, changed: make(chan struct{}, 1),
		factory: informers.NewSharedInformerFactory(client, 0), pods: map[*netmesh.Pod]bool{good: true, bad: true},
		write: func(p *netmesh.Pod, rules []podnet.Rule) error {
			mu.Lock()
			defer mu.Unlock()
			writes[p]++
			if p == bad && failures > 0 {
				failures--
				return errors.New("no memory")
			}
			written[p] = rules
			return nil
		},
	}
	web := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.7"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if err := n.factory.Core().V1().Services().Informer().GetStore().Add(web); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { n.keepRules(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })
	wait.NoError(t, "both Pods have the rules", func() error {
		mu.Lock()
		defer mu.Unlock()
		for p, name := range map[*netmesh.Pod]string{good: "good", bad: "bad"} {
			if !slices.EqualFunc(written[p], n.tables().Rules(), equalRules) || len(written[p]) != 1 {
				return errors.New(name + " has not")
			}
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if writes[good] != 1 || writes[bad] != 3 {
		t.Errorf("rules were written %d times to one Pod, %d times to the other: want 1 and 3", writes[good], writes[bad])
	}
}
