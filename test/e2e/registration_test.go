package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/load"
)

// machinePod is the Pod that stands for a virtual machine, and machineEntry the name of its WorkloadEntry.
const machinePod, machineEntry = "machine-1.vms", "billing-10.99.0.11"

// billingURL is the machine's service, by the address of its ServiceEntry.
const billingURL = "http://10.96.40.1:9080/"

// machines is a mesh with a machine that registers itself, whose application is healthy while a file exists.
func machines(t *testing.T) (m *meshup.Mesh, healthy string) {
	var config string
	m, config = startWith(t, "machines", func(o *meshup.Options) {
		healthy = filepath.Join(o.WorkDir, "healthy")
		setHealthy(t, healthy, true)
		o.ProxyConfig += fmt.Sprintf("\nreadinessProbe: {periodSeconds: 1, exec: {command: [test, -e, %q]}}", healthy)
		o.PodEnv = map[string][]string{machinePod: {"ISTIO_META_AUTO_REGISTER_GROUP=billing"}}
	})
	text, err := os.ReadFile(filepath.Join(config, "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(string(text), "---\n") {
		if strings.Contains(doc, "name: machine-1") {
			edit(t, config, doc+"---\n", "")
		}
	}
	awaitRegistration(t, m, "the machine has registered itself", func(e *registered) error {
		if e == nil {
			return errors.New("it has not")
		}
		return nil
	})
	if err := meshup.Await(t.Context(), time.Minute, "discovery has no Pod of the machine", func(ctx context.Context) error {
		text, err := m.Get(ctx, m.Net.Host(), "http://127.0.0.1:15014/metrics")
		if err == nil && !strings.Contains(string(text), `pilot_k8s_reg_events{event="delete",type="Pods"} 1`) {
			err = errors.New("it has")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return m, healthy
}

func setHealthy(t *testing.T, file string, is bool) {
	t.Helper()
	err := os.Remove(file)
	if is {
		err = os.WriteFile(file, nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// registered is the WorkloadEntry of the machine.
type registered struct {
	Kind     string
	Metadata struct {
		Name, Namespace     string
		Labels, Annotations map[string]string
	}
	Spec map[string]any
}

// awaitRegistration waits for a condition of the machine's entry, nil if there is none.
func awaitRegistration(t *testing.T, m *meshup.Mesh, what string, cond func(e *registered) error) {
	t.Helper()
	if err := meshup.Await(t.Context(), time.Minute, what, func(ctx context.Context) error {
		text, err := m.Get(ctx, m.Net.Host(), m.DiscoveryURL()+"/debug/configz")
		if err != nil {
			return err
		}
		var all []registered
		if err := json.Unmarshal(text, &all); err != nil {
			return err
		}
		for i := range all {
			if all[i].Kind == "WorkloadEntry" && all[i].Metadata.Name == machineEntry {
				return cond(&all[i])
			}
		}
		return cond(nil)
	}); err != nil {
		t.Fatal(err)
	}
}

// askBilling sends a request to the machine's service, and returns what the proxies answered.
func askBilling(ctx context.Context, m *meshup.Mesh) (meshup.Answer, error) {
	return meshup.Post(ctx, meshup.Client(m.Pod("client-1.vms").Net, 0), billingURL, nil)
}

// awaitBilling waits until requests to the machine are answered, or fail.
func awaitBilling(t *testing.T, m *meshup.Mesh, served bool) {
	t.Helper()
	if err := meshup.Await(t.Context(), time.Minute, fmt.Sprintf("requests to the machine are answered: %v", served), func(ctx context.Context) error {
		a, err := askBilling(ctx, m)
		if err == nil && a.FirstFailure() != "" {
			err = errors.New(a.FirstFailure())
		}
		if (err == nil) != served {
			return fmt.Errorf("answer %+v, error %w", a, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestMachineRegistersItself has a machine without a Pod join a mesh of STRICT mutual TLS: it is reached, not while it is not
// healthy, and its entry goes when its agent has.
func TestMachineRegistersItself(t *testing.T) {
	m, healthy := machines(t)
	awaitBilling(t, m, true)
	awaitRegistration(t, m, "the entry is made from the group", func(e *registered) error {
		a := e.Metadata.Annotations
		if e.Spec["address"] != "10.99.0.11" || e.Spec["serviceAccount"] != "billing" || e.Spec["weight"] != 3.0 || e.Metadata.Labels["app"] != "billing" ||
			a[mesh.AutoRegistrationGroup] != "billing" || a[mesh.HealthChecksEnabled] != "true" || a[mesh.ConnectedAt] == "" {
			return fmt.Errorf("got %+v", e)
		}
		return nil
	})
	setHealthy(t, healthy, false)
	awaitBilling(t, m, false)
	setHealthy(t, healthy, true)
	awaitBilling(t, m, true)

	if err := m.Pod(machinePod).StopAgent(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	awaitRegistration(t, m, "the entry stays for a while", func(e *registered) error {
		if e == nil || e.Metadata.Annotations[mesh.DisconnectedAt] == "" {
			return fmt.Errorf("got %+v", e)
		}
		return nil
	})
	awaitRegistration(t, m, "the entry is gone", func(e *registered) error {
		if e != nil {
			return fmt.Errorf("got %+v", e)
		}
		return nil
	})
	if err := m.Pod(machinePod).StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitBilling(t, m, true)
}

// TestRegistrationOutlivesDiscovery kills discovery twice under load: the machine's entry is there as soon as it is back, and no
// request fails.
func TestRegistrationOutlivesDiscovery(t *testing.T) {
	m, _ := machines(t)
	awaitBilling(t, m, true)
	l := load.New(t.Context(), m.Pod("client-1.vms").Net.Dial)
	l.KeepAlive("10.96.40.1:9080", 4, 20*time.Millisecond)
	l.Churn("10.96.40.1:9080", 2, 50*time.Millisecond)
	serve := func() {
		before, err := m.Pod(machinePod).Served(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := meshup.Await(t.Context(), time.Minute, "200 more requests are served", func(ctx context.Context) error {
			now, err := m.Pod(machinePod).Served(ctx)
			if err == nil && now < before+200 {
				err = fmt.Errorf("%d are", now-before)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	connected := ""
	for range 2 {
		serve()
		if err := m.KillDiscovery(); err != nil {
			t.Fatal(err)
		}
		serve()
		if err := m.StartDiscovery(t.Context()); err != nil {
			t.Fatal(err)
		}
		awaitRegistration(t, m, "the machine is connected again", func(e *registered) error {
			if e == nil {
				return meshup.Final(errors.New("the entry was lost"))
			}
			if at := e.Metadata.Annotations[mesh.ConnectedAt]; at == connected || e.Metadata.Annotations[mesh.DisconnectedAt] != "" {
				return fmt.Errorf("got %+v", e)
			}
			return nil
		})
		awaitRegistration(t, m, "when it connected", func(e *registered) error {
			connected = e.Metadata.Annotations[mesh.ConnectedAt]
			return nil
		})
	}
	serve()
	r := l.Stop()
	if r.Sent == 0 || len(r.Failures) > 0 {
		t.Errorf("of %d requests failed: %v", r.Sent, r.Failures)
	}
	t.Logf("%d requests, none failed", r.Sent)
}
