package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/pilothouse/pilothouse/internal/kube"
	"github.com/pilothouse/pilothouse/internal/kube/forward"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/internal/settings"
	"github.com/pilothouse/pilothouse/internal/settings/cli"
)

const (
	// localDiscovery is asked if there is neither an address nor a kubeconfig.
	localDiscovery = "http://127.0.0.1:8080"
	// debugPort is the port of the debug pages in a Pod that does not name another as debugPortName.
	debugPort     = 8080
	debugPortName = "http-debug"
)

// place says where pilot-discovery is.
type place struct {
	// address is a URL; empty for the cluster of kube.
	address string
	kube    kube.Options
	// namespace and revision are those of the control plane. An empty revision stands for all.
	namespace, revision string
}

// readPlace reads settings.PilotctlCluster. The address that was given, if any, counts; then a cluster, if there is a
// kubeconfig as kubectl finds it.
func readPlace(v *settings.Values, discovery, home string) place {
	p := place{
		address: discovery, namespace: v.Text("istioNamespace"), revision: v.Text("revision"),
		kube: kube.Options{Kubeconfig: v.TextOr("kubeconfig", ""), Context: v.Text("context"), QPS: -1, UserAgent: "pilotctl/" + version},
	}
	if p.address != "" {
		return p
	}
	p.kube.Kubeconfig = kubeconfigOr(p.kube.Kubeconfig, home)
	return p
}

// kubeconfigOr returns the path of a kubeconfig file if one is given, else that of the user's own, if there is one.
func kubeconfigOr(given, home string) string {
	if path := filepath.Join(home, ".kube", "config"); given == "" && home != "" {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return given
}

// place reads where pilot-discovery is from the flags of a command.
func (f *flags) place(c *cobra.Command) (place, error) {
	v := cli.Read(c.Flags(), f.env, settings.PilotctlCluster)
	given := cli.Given(c.Flags())
	address := f.discovery
	if !f.asked && slices.ContainsFunc(settings.PilotctlCluster, func(s settings.Setting) bool { _, ok := given[s.Flag]; return ok }) {
		address = "" // a flag counts more than the environment
	}
	p := readPlace(v, address, f.env["HOME"])
	if err := v.Err(); err != nil {
		return p, misuse{err}
	}
	for _, s := range settings.PilotctlCluster {
		if _, ok := given[s.Flag]; !ok {
			continue
		}
		if f.asked {
			return p, misuse{fmt.Errorf("flag --%s: want it without --discovery, which says where pilot-discovery is", s.Flag)}
		}
		if p.kube.Kubeconfig == "" {
			return p, misuse{fmt.Errorf("flag --%s: want a cluster: --kubeconfig, KUBECONFIG or ~/.kube/config", s.Flag)}
		}
	}
	if p.address == "" && p.kube.Kubeconfig == "" {
		p.address = localDiscovery
	}
	return p, nil
}

// qualified returns the namespace of names that have none: that of --namespace, or else of the kubeconfig's context.
// It is empty without either.
func (f *flags) qualified(c *cobra.Command) (string, error) {
	if name := readNamespace(cli.Read(c.Flags(), nil, settings.PilotctlNamespace)); name != "" {
		return name, nil
	}
	p, err := f.place(c)
	if err != nil || p.address != "" {
		return "", err
	}
	return kube.Namespace(p.kube)
}

// readNamespace reads settings.PilotctlNamespace.
func readNamespace(v *settings.Values) string { return v.TextOr("namespace", "") }

// replica is one pilot-discovery.
type replica struct {
	// name is that of its Pod; empty if it was named by its address.
	name string
	// base is the URL of its pages for client.
	base   string
	client *http.Client
	// dial connects to a port of it; nil if it was named by its address.
	dial  func(ctx context.Context, port uint16) (net.Conn, error)
	close func()
}

// replicas are all replicas of the control plane. They are used by one goroutine.
type replicas struct {
	place  place
	list   []*replica
	found  time.Time    // when list was true
	config *rest.Config // nil without a cluster
	client kubernetes.Interface
}

// connect finds the replicas of the control plane. The caller closes them.
func (f *flags) connect(c *cobra.Command) (*replicas, error) {
	p, err := f.place(c)
	if err != nil {
		return nil, err
	}
	r := &replicas{place: p}
	if p.address != "" {
		r.list = []*replica{{base: p.address, client: http.DefaultClient, close: func() {}}}
		return r, nil
	}
	if err := r.load(); err != nil {
		return nil, err
	}
	return r, r.find(c.Context())
}

// load makes the client of the cluster.
func (r *replicas) load() (err error) {
	if r.config, err = kube.Load(r.place.kube); err != nil {
		return err
	}
	if r.client, err = kubernetes.NewForConfig(r.config); err != nil {
		return fmt.Errorf("connect to the Kubernetes API server: %w", err)
	}
	return nil
}

// selector is that of the control plane's Pods.
func (p place) selector() string {
	s := "app=istiod"
	if p.revision != "" {
		s += ",istio.io/rev=" + p.revision
	}
	return s
}

// find lists the replicas that run, in the order of their names; those that were known stay connected.
func (r *replicas) find(ctx context.Context) error {
	r.found = time.Now()
	if r.config == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	pods, err := r.client.CoreV1().Pods(r.place.namespace).List(ctx, metav1.ListOptions{LabelSelector: r.place.selector()})
	if err != nil {
		r.found = time.Time{}
		return fmt.Errorf("find pilot-discovery in namespace %s of %s: %s (for one outside of a cluster: --discovery %s)", r.place.namespace, r.place.kube.Kubeconfig, printable.Escape(err.Error()), localDiscovery)
	}
	known := map[string]*replica{}
	for _, k := range r.list {
		known[k.name] = k
	}
	r.list = nil
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodRunning {
			continue
		}
		k := known[pod.Name]
		if k == nil {
			if k, err = newReplica(r.config, &pod); err != nil {
				return err
			}
		}
		delete(known, pod.Name)
		r.list = append(r.list, k)
	}
	for _, k := range known {
		k.close()
	}
	if len(r.list) == 0 {
		r.found = time.Time{}
		return r.nowhere(ctx)
	}
	slices.SortFunc(r.list, func(a, b *replica) int { return strings.Compare(a.name, b.name) })
	return nil
}

// nowhere is the error if no Pod runs pilot-discovery.
type nowhere struct{ error }

// nowhere makes the error, which names the namespaces that have such a Pod.
func (r *replicas) nowhere(ctx context.Context) error {
	var others []string
	if pods, err := r.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: "app=istiod"}); err == nil { // the hint needs it, nothing else
		for _, pod := range pods.Items {
			name := pod.Namespace
			if revision := pod.Labels[mesh.RevisionLabel]; revision != "" {
				name += " (revision " + revision + ")"
			}
			if !slices.Contains(others, name) {
				others = append(others, printable.Escape(name))
			}
		}
	}
	hint := "--istioNamespace names another"
	if len(others) > 0 {
		hint = "there are such Pods in " + strings.Join(others, ", ")
	}
	return nowhere{fmt.Errorf("find pilot-discovery: no Pod with the label %s runs in namespace %s of %s: %s; for one outside of a cluster: --discovery %s",
		r.place.selector(), r.place.namespace, r.place.kube.Kubeconfig, hint, localDiscovery)}
}

func newReplica(config *rest.Config, pod *corev1.Pod) (*replica, error) {
	p, err := forward.New(config, pod.Namespace, pod.Name)
	if err != nil {
		return nil, err
	}
	port := uint16(debugPort)
	for _, container := range pod.Spec.Containers {
		for _, named := range container.Ports {
			if named.Name == debugPortName {
				port = uint16(named.ContainerPort) // #nosec G115 -- the API server checks it
			}
		}
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx, port) }}
	return &replica{
		name: pod.Name, base: "http://localhost:" + strconv.Itoa(int(port)), client: &http.Client{Transport: transport}, dial: p.Dial,
		close: func() {
			transport.CloseIdleConnections()
			_ = p.Close() // it was only asked
		},
	}, nil
}

// Close ends the connections.
func (r *replicas) Close() {
	for _, k := range r.list {
		k.close()
	}
}

// several reports whether answers are joined.
func (r *replicas) several() bool { return len(r.list) > 1 }

// answer is that of one replica.
type answer struct {
	replica *replica
	text    []byte
	err     error
}

// ask asks all replicas at once for a page: with a POST of the body, unless that is nil.
func (r *replicas) ask(ctx context.Context, page string, query url.Values, body []byte) []answer {
	out := make([]answer, len(r.list))
	var group sync.WaitGroup
	for i, k := range r.list {
		group.Go(func() {
			text, err := k.fetch(ctx, page, query, body)
			out[i] = answer{k, text, err}
		})
	}
	group.Wait()
	return out
}

// missing are the replicas that have not answered, and why.
type missing []answer

// answered divides answers. If there is none, that is the error.
func answered(all []answer) (got []answer, lost missing, err error) {
	for _, a := range all {
		if a.err == nil {
			got = append(got, a)
		} else {
			lost = append(lost, a)
		}
	}
	if len(got) > 0 {
		return got, lost, nil
	}
	var errs []error
	codes := map[int]bool{}
	for _, a := range lost {
		if said := (*statusError)(nil); errors.As(a.err, &said) {
			if codes[said.code] {
				continue // as those before
			}
			codes[said.code] = true
		}
		errs = append(errs, a.err)
	}
	return nil, lost, errors.Join(errs...)
}

// report names the replicas that are missing in what was printed; that is an error.
func (m missing) report(w io.Writer) error {
	for _, a := range m {
		fmt.Fprintf(w, "pilotctl: the answer is partial, without that of %s: %v\n", a.replica.name, a.err)
	}
	if len(m) > 0 {
		return errSaid
	}
	return nil
}
