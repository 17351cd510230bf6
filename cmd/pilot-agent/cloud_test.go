package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/pilothouse/pilothouse/test/agenttest"
)

// metadataAddress is where clouds answer.
const metadataAddress = "169.254.169.254"

// inNamespace runs a test again in a network namespace of its own that has the address of the clouds' metadata servers; true in there.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const marker = "PILOTHOUSE_TEST_NAMESPACE"
	if os.Getenv(marker) != "" {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(metadataAddress), Mask: net.CIDRMask(32, 32)}}); err != nil && !errors.Is(err, syscall.EEXIST) {
			t.Fatal(err)
		}
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v") // #nosec G204 -- this test
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in its own namespace (which needs root): %v\n%s", err, out)
	}
	return false
}

// fakeClouds answers as the metadata servers of the three clouds do. It answers the first request of a cloud after ready.
func fakeClouds(t *testing.T, ready func() bool) (asked *atomic.Int32) {
	asked = &atomic.Int32{}
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }
	}
	google := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Metadata-Flavor") != "Google" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			w.Header().Set("Metadata-Flavor", "Google")
			fmt.Fprint(w, body)
		}
	}
	amazon := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Aws-Ec2-Metadata-Token") != "secret-token" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			fmt.Fprint(w, body)
		}
	}
	mux := http.NewServeMux()
	for path, h := range map[string]http.HandlerFunc{
		"GET /computeMetadata/v1/instance/zone":                        google("projects/7/zones/europe-west3-b"),
		"GET /computeMetadata/v1/project/project-id":                   google("shop"),
		"GET /computeMetadata/v1/project/numeric-project-id":           google("7"),
		"GET /computeMetadata/v1/instance/id":                          google("12345"),
		"GET /computeMetadata/v1/instance/attributes/cluster-name":     google("c1"),
		"GET /computeMetadata/v1/instance/attributes/cluster-location": google("europe-west3"),
		"PUT /latest/api/token":                                        text("secret-token"),
		"GET /latest/meta-data/placement/region":                       amazon("eu-central-1"),
		"GET /latest/meta-data/placement/availability-zone":            amazon("eu-central-1a"),
		"GET /latest/meta-data/instance-id":                            amazon("i-1"),
		"GET /metadata/instance/compute": func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Metadata") != "true" || r.URL.Query().Get("api-version") == "" {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, `{"name": "vm", "location": "westeurope", "zone": "2", "vmId": "v-1", "resourceGroupName": "rg", "subscriptionId": "s", "tags": "password:1"}`)
		},
	} {
		mux.HandleFunc(path, h)
	}
	l, err := net.Listen("tcp", metadataAddress+":80")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if !ready() { // the agent asks again
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return asked
}

// Discovery gets to know where the machine is, at the clouds' own address, beside the start: Envoy is ready before the cloud answers.
func TestTheCloudIsAskedWhereTheMachineIs(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for _, tt := range []struct {
		platform, labels, want string
		metadata               map[string]string
	}{
		{"gcp", "", "europe-west3/europe-west3-b", map[string]string{
			"gcp_project": "shop", "gcp_project_number": "7", "gcp_location": "europe-west3", "gcp_gce_instance_id": "12345", "gcp_gke_cluster_name": "c1",
			"gcp_gke_cluster_url": "https://container.googleapis.com/v1/projects/shop/locations/europe-west3/clusters/c1",
		}},
		{"AWS", "", "eu-central-1/eu-central-1a", map[string]string{"aws_region": "eu-central-1", "aws_availability_zone": "eu-central-1a", "aws_instance_id": "i-1"}},
		{"azure", `{"topology.istio.io/locality": "mine.here"}`, "mine/here", map[string]string{
			"azure_name": "vm", "azure_location": "westeurope", "azure_zone": "2", "azure_vm_id": "v-1", "azure_resource_group": "rg", "azure_subscription_id": "s",
		}},
		{"none", "", "/", nil},
		{"", "", "/", nil},
	} {
		t.Run("platform "+tt.platform, func(t *testing.T) {
			plane := agenttest.NewPlane(t)
			plane.Start()
			var ready atomic.Bool
			asked := fakeClouds(t, ready.Load)
			a := agenttest.New(t, plane, "", "CLOUD_PLATFORM="+tt.platform, "ISTIO_METAJSON_LABELS="+tt.labels, "HTTP_PROXY=http://127.0.0.1:1")
			a.Start()
			agenttest.Until(t, "the proxy is ready", a.Ready)
			ready.Store(true)
			agenttest.Until(t, "discovery knows where the machine is", func() error {
				n := plane.Node()
				got := map[string]string{}
				for k, v := range n.GetMetadata().GetFields()["PLATFORM_METADATA"].GetStructValue().GetFields() {
					got[k] = v.GetStringValue()
				}
				place := n.GetLocality().GetRegion() + "/" + n.GetLocality().GetZone()
				if place != tt.want || fmt.Sprint(got) != fmt.Sprint(tt.metadata) || n.GetMetadata().GetFields()["NAME"].GetStringValue() != "a" {
					return fmt.Errorf("%s %v, want %s %v", place, got, tt.want, tt.metadata)
				}
				return nil
			})
			agenttest.Until(t, "the proxy is ready after it", a.Ready)
			if n := asked.Load(); (n > 0) != (tt.metadata != nil) {
				t.Errorf("the cloud was asked %d times", n)
			}
			if strings.Contains(a.Output(), "secret-token") {
				t.Error("the log has a token")
			}
		})
	}
}
