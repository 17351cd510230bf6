package xds

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
	"github.com/pilothouse/pilothouse/test/wait"
)

// maxEcho bounds a line of the log and a status that a client brings about by what it says.
const maxEcho = 2048

// Names by which a proxy is listed, logged and compared are printable and short. What a client is
// told about others, and what is logged, has a bound, and no escape codes.
func TestTextsOfANodeAreBoundedAndPrintable(t *testing.T) {
	const escape = "\x1b[2J"
	long := strings.Repeat("1.2.3.4x", 380_000)
	with := func(change func(*corev3.Node)) *corev3.Node {
		n := node(nil)
		change(n)
		return n
	}
	for name, n := range map[string]*corev3.Node{
		"escape codes in the id":           with(func(n *corev3.Node) { n.Id = "sidecar~10.1.2.3~web" + escape + ".shop~shop.svc.cluster.local" }),
		"a control character of two bytes": with(func(n *corev3.Node) { n.Id = "sidecar~10.1.2.3~web\u009b2J.shop~shop.svc.cluster.local" }),
		"an invalid id":                    with(func(n *corev3.Node) { n.Id = strings.Repeat("~", 1000) + escape }),
		"a long id":                        with(func(n *corev3.Node) { n.Id = "sidecar~10.1.2.3~" + long[:2000] + "~d" }),
		"escape codes in the user agent":   with(func(n *corev3.Node) { n.UserAgentName = "envoy" + escape }),
		"a user agent of megabytes":        with(func(n *corev3.Node) { n.UserAgentName = long }),
		"escape codes in its version": with(func(n *corev3.Node) {
			n.UserAgentVersionType = &corev3.Node_UserAgentVersion{UserAgentVersion: "1" + escape}
		}),
		"escape codes in the region":            with(func(n *corev3.Node) { n.Locality = &corev3.Locality{Region: escape} }),
		"escape codes in the cluster's id":      node(map[string]any{"CLUSTER_ID": escape}),
		"escape codes in the namespace":         node(map[string]any{"NAMESPACE": "a\u202eb"}),
		"escape codes in the service account":   node(map[string]any{"SERVICE_ACCOUNT": escape}),
		"escape codes in the network":           node(map[string]any{"NETWORK": escape}),
		"escape codes in the name":              node(map[string]any{"NAME": escape}),
		"escape codes in a label":               node(map[string]any{"LABELS": map[string]any{"a": escape}}),
		"escape codes in a label's name":        node(map[string]any{"LABELS": map[string]any{escape: "a"}}),
		"addresses of megabytes":                node(map[string]any{"INSTANCE_IPS": long}),
		"an address of nearly all that is read": node(map[string]any{"INSTANCE_IPS": long[:maxMetadataValue-100]}),
	} {
		t.Run(name, func(t *testing.T) {
			var out wait.Output
			st := refusedWith(t, New(&oneClass{latest: NewLatestView(&View{})}, textLog(&out), nil), nil, first(n))
			if st.Code() != codes.InvalidArgument {
				t.Errorf("ended with %.300q, want InvalidArgument", st)
			}
			if len(st.Message()) > maxEcho || !printable.Is(st.Message()) {
				t.Errorf("status of %d bytes: %.300q", len(st.Message()), st.Message())
			}
			if text := out.String(); len(text) > 2*maxEcho || strings.Contains(text, "\x1b") {
				t.Errorf("logged %d bytes: %.300q", len(text), text)
			}
		})
	}
}

// The message of a refusal ends at a whole character wherever it is kept.
func TestMessagesOfRefusalsAreBounded(t *testing.T) {
	message := strings.Repeat("ü", 40_000)
	var out wait.Output
	s := New(&oneClass{latest: NewLatestView(&View{})}, textLog(&out), nil)
	g := open(t, dial(t, s, nil))
	for _, url := range []string{CDS.URL(), mesh.NameTableType} {
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: url})
		m, err := g.Recv()
		if err != nil {
			t.Fatal(err)
		}
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: url, ResponseNonce: m.GetNonce(), ErrorDetail: &rpcstatus.Status{Message: "x" + message}})
	}
	wait.Until(t, "both refusals are logged", func() bool { return strings.Count(out.String(), "refused") == 2 })
	for _, line := range strings.Split(out.String(), "\n") {
		if len(line) > maxMessage+maxEcho || strings.Contains(line, `\x`) {
			t.Errorf("logged %d bytes: …%q", len(line), line[max(0, len(line)-100):])
		}
	}
}
