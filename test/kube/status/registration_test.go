package status_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/test/wait"
)

// registrationGrace is how long entries stay when their proxies have gone.
const registrationGrace = 3 * time.Second

// machines has a group of machines, their service, and an entry that is written by hand with the name that a machine with the address
// 10.99.0.78 would have.
const machines = `apiVersion: v1
kind: ServiceAccount
metadata: {name: billing}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: vms}
spec:
  metadata: {labels: {app: billing}, annotations: {note: x}}
  template: {serviceAccount: billing}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: billing}
spec:
  hosts: [billing.example.com]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: billing}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vms-10.99.0.78, labels: {mine: "1"}}
spec: {address: 10.99.0.78, serviceAccount: billing}
`

const (
	billingCluster = "outbound|9080||billing.example.com"
	edsType        = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	healthType     = "type.googleapis.com/istio.v1.HealthInformation"
)

// vm is a proxy that proves its identity by a token, and has one stream at a time but while it moves.
type vm struct {
	e       *environment
	token   string
	address string
	probes  bool

	mu  sync.Mutex // guards what follows
	end func()     // of the stream; nil without one
	// stream sends requests; sent says what was reported last.
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	// seen is set once the service had the endpoint that it looks for, lost counts the assignments without it since.
	looksFor string
	seen     bool
	lost     int
}

// connect opens a stream to a replica, waits for its first response, and ends the one before. It returns why the stream was refused.
func (v *vm) connect(p *plane) error {
	v.e.t.Helper()
	roots := x509.NewCertPool()
	wait.NoError(v.e.t, "the roots are in the namespace", func() error {
		m, err := v.e.c.Client.CoreV1().ConfigMaps(v.e.shop).Get(v.e.t.Context(), "istio-ca-root-cert", metav1.GetOptions{})
		if err == nil && !roots.AppendCertsFromPEM([]byte(m.Data["root-cert.pem"])) {
			err = errors.New("there are none")
		}
		return err
	})
	conn, err := grpc.NewClient(p.server.Addresses().SecureGRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "istiod." + v.e.system + ".svc"})))
	if err != nil {
		v.e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+v.token))
	end := func() { cancel(); _ = conn.Close() }
	fields := map[string]any{"NAMESPACE": v.e.shop, "LABELS": map[string]any{"version": "v1"}}
	if v.looksFor == "" {
		fields["AUTO_REGISTER_GROUP"] = "vms"
	}
	if v.probes {
		fields["PROXY_CONFIG"] = map[string]any{"readinessProbe": map[string]any{"tcpSocket": map[string]any{"port": 80}}}
	}
	meta, err := structpb.NewStruct(fields)
	if err != nil {
		v.e.t.Fatal(err)
	}
	var stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	for {
		stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
		if err == nil {
			node := &corev3.Node{Id: "sidecar~" + v.address + "~vm." + v.e.shop + "~" + v.e.shop + ".svc.cluster.local", Metadata: meta}
			_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster", ResourceNamesSubscribe: []string{"*"}})
			_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: edsType, ResourceNamesSubscribe: []string{billingCluster}})
			var r *discoveryv3.DeltaDiscoveryResponse
			if r, err = stream.Recv(); err == nil {
				_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce})
			}
		}
		if grpcstatus.Code(err) != codes.Unavailable || v.e.t.Context().Err() != nil {
			break
		}
	}
	if err != nil {
		end()
		return err
	}
	go v.receive(stream)
	v.mu.Lock()
	before := v.end
	v.end, v.stream = end, stream
	v.mu.Unlock()
	if before != nil {
		before()
	}
	return nil
}

func (v *vm) receive(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) {
	for {
		r, err := stream.Recv()
		if err != nil {
			return
		}
		v.mu.Lock()
		for _, x := range r.Resources {
			if r.TypeUrl == edsType && x.Name == billingCluster && v.looksFor != "" {
				has := bytes.Contains(x.Resource.GetValue(), []byte(v.looksFor))
				if v.seen && !has {
					v.lost++
				}
				v.seen = has
			}
		}
		v.mu.Unlock()
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}) // Recv returns the error
	}
}

func (v *vm) report(healthy bool, message string) {
	r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: healthType}
	if !healthy {
		r.ErrorDetail = &rpcstatus.Status{Code: int32(codes.Internal), Message: message}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	_ = v.stream.Send(r)
}

func (v *vm) disconnect() {
	v.mu.Lock()
	end := v.end
	v.end = nil
	v.mu.Unlock()
	if end != nil {
		end()
	}
}

// sees waits until the proxy has the endpoint that it looks for, or not.
func (v *vm) sees(is bool) {
	v.e.t.Helper()
	wait.Until(v.e.t, fmt.Sprintf("%s is an endpoint: %v", v.looksFor, is), func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.seen == is
	})
}

// losses returns how often the endpoint was lost since the last call.
func (v *vm) losses() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.lost
	v.lost = 0
	return n
}

// machine returns a machine with an address, as a service account.
func (e *environment) machine(account, address string) *vm {
	v := &vm{e: e, token: e.c.Token(e.t, e.shop, account, "istio-ca"), address: address, probes: true}
	e.t.Cleanup(v.disconnect)
	return v
}

// untilEntry waits for a condition of the entry of the machine with the address 10.99.0.77; nil if there is none.
func (e *environment) untilEntry(what string, cond func(*unstructured.Unstructured) error) *unstructured.Unstructured {
	e.t.Helper()
	var o *unstructured.Unstructured
	wait.NoError(e.t, what, func() error {
		var err error
		o, err = e.of("workloadentries").Get(e.t.Context(), "vms-10.99.0.77", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			o, err = nil, nil
		}
		if err != nil {
			return err
		}
		return cond(o)
	})
	return o
}

// heldBy returns a condition: a replica holds the entry, whose proxy is connected.
func heldBy(name string) func(*unstructured.Unstructured) error {
	return func(o *unstructured.Unstructured) error {
		if o == nil {
			return errors.New("there is no entry")
		}
		if a := o.GetAnnotations(); !strings.HasPrefix(a[mesh.WorkloadController], "pilothouse/"+name+"_") || a[mesh.DisconnectedAt] != "" {
			return fmt.Errorf("it has %v", a)
		}
		return nil
	}
}

func gone(o *unstructured.Unstructured) error {
	if o != nil {
		return fmt.Errorf("it has %v", o.GetAnnotations())
	}
	return nil
}

// health returns the condition Healthy of an entry: its status, and its message.
func health(o *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range list {
		if c, ok := c.(map[string]any); ok && c["type"] == "Healthy" {
			return fmt.Sprint(c["status"], " ", c["message"])
		}
	}
	return ""
}

// writtenOf returns what somebody writes of an object: not its status, nor what the API server writes.
func writtenOf(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	text, err := json.Marshal([]any{o.GetLabels(), o.GetAnnotations(), o.GetOwnerReferences(), o.Object["spec"], o.GetGeneration(), o.GetUID()})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestMachinesRegisterThemselvesInACluster follows the entry of a machine through its life: made by one replica, moved between two while
// a client looks at its endpoint, left behind by one that ends, and deleted.
func TestMachinesRegisterThemselvesInACluster(t *testing.T) {
	e := begin(t)
	first, second := e.plane, e.start("istiod-2")
	e.c.Apply(t, e.shop, machines)
	byHand, err := e.of("workloadentries").Get(t.Context(), "vms-10.99.0.78", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	group, err := e.of("workloadgroups").Get(t.Context(), "vms", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := e.of("workloadentries").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()

	client := e.machine("default", "10.99.0.50")
	client.looksFor = "10.99.0.77"
	if err := client.connect(second); err != nil {
		t.Fatal(err)
	}
	v := e.machine("billing", "10.99.0.77")
	wait.NoError(t, "the machine is admitted, once the group is known", func() error { return v.connect(first) })
	o := e.untilEntry("the entry is held by the first replica", heldBy("istiod-1"))
	address, _, _ := unstructured.NestedString(o.Object, "spec", "address")
	owners := o.GetOwnerReferences()
	if want := map[string]string{"app": "billing", "version": "v1"}; address != "10.99.0.77" || !reflect.DeepEqual(o.GetLabels(), want) ||
		o.GetAnnotations()[mesh.HealthChecksEnabled] != "true" || o.GetAnnotations()["note"] != "x" || len(owners) != 1 || owners[0].UID != group.GetUID() {
		t.Errorf("the entry is %+v", o.Object)
	}
	client.sees(false)
	v.report(false, "starting")
	e.untilEntry("it is not healthy", func(o *unstructured.Unstructured) error { return is(health(o), "False starting") })
	client.sees(false)
	v.report(true, "")
	client.sees(true)

	client.losses()
	for i := range 10 {
		to, name := second, "istiod-2"
		if i%2 == 1 {
			to, name = first, "istiod-1"
		}
		if i%3 == 0 {
			v.disconnect() // else the streams overlap
		}
		if err := v.connect(to); err != nil {
			t.Fatal(err)
		}
		o = e.untilEntry("the entry moves to "+name, heldBy(name))
	}
	if got := health(o); got != "True <nil>" {
		t.Errorf("after moving it is %q", got)
	}
	v.report(false, "no database")
	client.sees(false)
	if n := client.losses(); n != 1 {
		t.Errorf("the endpoint was lost %d times, want once, when it was not healthy", n)
	}
	v.report(true, "")
	client.sees(true)

	// The replica that holds the entry ends.
	client.losses()
	first.stop()
	if err := v.connect(second); err != nil {
		t.Fatal(err)
	}
	e.untilEntry("the entry moves to the other replica", heldBy("istiod-2"))
	if n := client.losses(); n != 0 {
		t.Errorf("the endpoint was lost %d times", n)
	}
	noDeletion(t, events)

	other := e.machine("billing", "10.99.0.78")
	if err := other.connect(second); err != nil {
		t.Fatal(err)
	}
	second.logs("a WorkloadEntry of that name was written by somebody")
	other.disconnect()
	v.disconnect()
	e.untilEntry("the entry is gone after the grace", gone)
	client.sees(false)

	now, err := e.of("workloadentries").Get(t.Context(), "vms-10.99.0.78", metav1.GetOptions{})
	if err != nil || writtenOf(t, now) != writtenOf(t, byHand) {
		t.Errorf("the entry that was written by hand was %s, and is %v, %v", writtenOf(t, byHand), now, err)
	}
}

// TestWhoMayNotRegister is refused with the reason.
func TestWhoMayNotRegister(t *testing.T) {
	e := begin(t)
	e.c.Apply(t, e.shop, machines)
	v := e.machine("billing", "10.99.0.77")
	wait.NoError(t, "the machine is admitted, once the group is known", func() error { return v.connect(e.plane) })
	err := e.machine("default", "10.99.0.79").connect(e.plane)
	if grpcstatus.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), `is for service account "billing"`) {
		t.Errorf("another account: %v", err)
	}
	e.plane.logs("a proxy may not register itself")
	if n := e.plane.metric("auto_registration_errors_total"); n == "0" || n == "" {
		t.Errorf("auto_registration_errors_total is %q", n)
	}
	wait.Until(t, "the metrics count", func() bool {
		return e.plane.metric("auto_registration_success_total") == "1" && e.plane.metric("pilothouse_registered_proxies") == "1"
	})
}

// TestEntriesOfAnEndedReplicaAreCleanedUp has a replica end together with its machine.
func TestEntriesOfAnEndedReplicaAreCleanedUp(t *testing.T) {
	e := begin(t)
	wait.Until(t, "the first replica leads", func() bool { return e.plane.metric("pilothouse_leader") == "1" })
	second := e.start("istiod-2")
	e.c.Apply(t, e.shop, machines)
	v := e.machine("billing", "10.99.0.77")
	wait.NoError(t, "the machine is admitted, once the group is known", func() error { return v.connect(second) })
	e.untilEntry("the entry", heldBy("istiod-2"))
	wait.NoError(t, "the replica shows that it is alive", func() error {
		m, err := e.c.Client.CoreV1().ConfigMaps(e.system).Get(t.Context(), "pilothouse-registration-instances", metav1.GetOptions{})
		if err == nil && len(m.Data) == 0 {
			err = errors.New("it does not")
		}
		return err
	})
	second.stop()
	v.disconnect()
	o := e.untilEntry("the entry stays at first", heldBy("istiod-2"))
	if o.GetAnnotations()[mesh.DisconnectedAt] != "" {
		t.Errorf("the replica that ended wrote %v", o.GetAnnotations())
	}
	e.untilEntry("the leader says that the machine has gone", func(o *unstructured.Unstructured) error {
		if o == nil || o.GetAnnotations()[mesh.DisconnectedAt] == "" {
			return errors.New("it does not yet")
		}
		return nil
	})
	e.untilEntry("the entry is gone", gone)
}

func is(got, want string) error {
	if got != want {
		return fmt.Errorf("it is %q, want %q", got, want)
	}
	return nil
}

// noDeletion fails for a deletion among the events so far.
func noDeletion(t *testing.T, events watch.Interface) {
	t.Helper()
	for {
		select {
		case ev := <-events.ResultChan():
			if ev.Type == watch.Deleted {
				t.Errorf("an entry was deleted: %v", ev.Object)
			}
		default:
			return
		}
	}
}
