package faults_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/test/kube"
)

// newLeader is the longest time until another replica leads after one that ended without a word: its Lease lasts for 10 s,
// others look every 1.5 to 3.3 s, and a request may take 3 s. It is 14 s where the machine has time.
const newLeader = 30 * time.Second

// The replica that leads is killed again and again. The other one serves meanwhile: every proxy gets a change, and nothing
// fails. When the Lease has ended the other one leads, and does what only the leader does.
func TestKilledLeader(t *testing.T) {
	s := start(t)
	l := s.load(t)
	identity, leads, follows := s.leader(t)
	stop := keepDead(t, leads)
	began := time.Now()
	s.arrives(t)
	until(t, "every proxy is connected to the other replica", follows.servesAll)
	followed(t, s, identity, follows.name, began)
	stop()
	s.settled(t)
	took := until(t, "both replicas have streams", func(ctx context.Context) error { return s.connected(ctx, 1) })
	t.Logf("after both were ready, proxies had spread after %v; the longest age of connections is %v", took, maxAge)
	l.stop(t)
}

// keepDead kills each process of a replica as soon as it is there, until the function that it returns is called. That returns the
// last one, which may not have ended yet.
func keepDead(t *testing.T, p pod) (stop func() (last int)) {
	t.Helper()
	last := p.pid()
	p.kill(t)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		n := 1
		for {
			select {
			case <-ctx.Done():
				t.Logf("%s was killed %d times", p.name, n)
				return
			case <-tick.C:
			}
			if pid, err := p.Node.PID(p.namespace, p.name, "discovery"); err == nil && pid != last {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
				last = pid
				n++
			}
		}
	})
	ended := sync.OnceFunc(func() { cancel(); group.Wait() })
	t.Cleanup(ended)
	return func() int {
		ended()
		return last
	}
}

// followed waits until another replica than the one that was killed leads, and works: namespaces get the root. If name is
// not empty, it must be that one's Pod.
func followed(t *testing.T, s site, killed, name string, at time.Time) {
	t.Helper()
	var now string
	until(t, "another replica has the Lease", func(ctx context.Context) (err error) {
		if now, err = s.holder(ctx); err == nil && now == killed {
			err = errors.New("it is still the one that was killed")
		}
		return err
	})
	took := time.Since(at)
	t.Logf("%s followed %s after %v", now, killed, took.Round(time.Millisecond))
	if took > newLeader || name != "" && podOf(now) != name {
		t.Errorf("%s followed after %v: want Pod %q within %v", now, took, name, newLeader)
	}
	led := pod{s, system, podOf(now)}
	until(t, "its metric says so", func(ctx context.Context) error {
		if n, err := led.metric(ctx, "pilothouse_leader"); err != nil || n != 1 {
			return errors.Join(err, fmt.Errorf("pilothouse_leader is %v", n))
		}
		return nil
	})
	namespace := s.Namespace(t, nil)
	until(t, "a new namespace has the roots", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().ConfigMaps(namespace).Get(ctx, "istio-ca-root-cert", metav1.GetOptions{})
		return err
	})
}

// The replica that leads hangs, and its Pod is removed from the API server at once, as that of a machine that has lost its
// power: it says nothing to anybody. Another replica leads when the Lease has ended; proxies whose connections have no other end
// any more notice it, and connect to the others.
func TestLeaderThatVanishes(t *testing.T) {
	s := start(t)
	l := s.load(t)
	until(t, "both replicas have streams", func(ctx context.Context) error { return s.connected(ctx, 1) })
	identity, leads, _ := s.leader(t)
	pid, err := s.Node.PID(system, leads.name, "discovery")
	if err != nil {
		t.Fatal(err)
	}
	kubetest.Pause(t, pid)
	began := time.Now()
	if err := s.Client.CoreV1().Pods(system).Delete(t.Context(), leads.name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	until(t, "the Pod is gone, for the Node too", func(ctx context.Context) error {
		if _, err := s.Client.CoreV1().Pods(system).Get(ctx, leads.name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the API server has it, error %w", err)
		}
		if s.Node.Pod(system, leads.name) != nil {
			return errors.New("the Node has it")
		}
		return nil
	})
	s.arrives(t)
	followed(t, s, identity, "", began)
	s.settled(t)
	l.stop(t)
}
