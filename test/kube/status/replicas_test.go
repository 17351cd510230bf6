package status_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/objectstatus"
	"github.com/pilothouse/pilothouse/test/wait"
)

// The proxies of two replicas count together. When the leader ends while objects change, its proxies connect to the
// other replica, which writes the statuses and the root ConfigMaps: nothing is lost.
func TestStatusesCountTheProxiesOfAllReplicas(t *testing.T) {
	e := begin(t)
	// The leader may write a status before it has read the first report of the other replica. It corrects that as soon as counts may
	// be written again, which by default is after a minute.
	e.plane.stop()
	e.pace = objectstatus.Pace{Interval: time.Second, CountInterval: 2 * time.Second, Hold: time.Second, Grace: time.Second, Counts: 10 * time.Millisecond}
	e.plane = e.start("istiod-1")
	wait.Until(t, "the first replica leads", func() bool { return e.plane.metric("pilothouse_leader") == "1" })
	other := e.start("istiod-2")
	first, second := e.grpc(), other.server.Addresses().GRPC
	a := connect(t, e.shop, "a", first, second)
	b, c := connect(t, e.shop, "b", second), connect(t, e.shop, "c", second)
	e.c.Apply(t, e.shop, service)
	e.c.Apply(t, e.shop, strings.ReplaceAll(route("before"), "reviews", "before"))
	e.untilReported("istiod-2") // from now on the leader waits for what it says of a new object
	e.c.Apply(t, e.shop, route("first"))
	e.until("reviews", "True UpToDate 3/3 proxies up to date to latest generation 1 | True NothingFound ")
	// A proxy of the replica that does not lead is behind, or refuses.
	c.pause()
	e.c.Apply(t, e.shop, route("second"))
	e.until("reviews", "False StillPropagating 2/3 proxies up to date to latest generation 2 | True NothingFound ")
	b.refuse("third")
	c.resume()
	e.until("reviews", "True UpToDate 3/3 proxies up to date to latest generation 2 | True NothingFound ")
	e.c.Apply(t, e.shop, route("third"))
	e.untilHas("reviews", "False RefusedByProxies 2/3 proxies up to date to latest generation 3; 1 have refused it | False ErrorsFound ", "it is refused by the test")

	// The leader ends under load.
	change := 3
	edit := func() {
		change++
		e.c.Apply(t, e.shop, route(fmt.Sprintf("version-%d", change)))
	}
	for range 10 {
		edit()
	}
	e.plane.stop()
	if err := e.c.Client.CoreV1().ConfigMaps(e.shop).Delete(t.Context(), "istio-ca-root-cert", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		edit()
	}
	e.until("reviews", fmt.Sprintf("True UpToDate 3/3 proxies up to date to latest generation %d | True NothingFound ", change))
	last := fmt.Sprintf("version-%d", change)
	if !a.has(last) || !b.has(last) || !c.has(last) {
		t.Error("a proxy does not have the last change")
	}
	wait.Until(t, "the root is distributed by the other replica", func() bool {
		_, err := e.c.Client.CoreV1().ConfigMaps(e.shop).Get(t.Context(), "istio-ca-root-cert", metav1.GetOptions{})
		return err == nil
	})
	if n := other.metric("pilothouse_leader"); n != "1" {
		t.Errorf("the other replica leads: %q", n)
	}
	wait.NoError(t, "there is no report of a replica that does not exist, or of the leader", func() error {
		reports, err := e.c.Client.CoreV1().ConfigMaps(e.system).Get(t.Context(), "pilothouse-status-instances", metav1.GetOptions{})
		if err == nil && len(reports.BinaryData) != 0 {
			err = fmt.Errorf("there are %d", len(reports.BinaryData))
		}
		return err
	})
}
