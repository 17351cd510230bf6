package xds

import (
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/test/wait"
)

// A proxy whose server was away while a cluster changed takes the changed cluster into use,
// whether the view is there before its requests or not, and goes on taking others.
func TestRealEnvoyTakesAClusterThatChangedWhileTheServerWasAway(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		r := newRig(t, api, firstView(t, backend(t, "a")))
		url := r.url("in")
		wait.Until(t, "an answer", func() bool { return fetch(url) == "a" })
		stop := storm(url, "a", "b")
		r.stop()
		r.view = r.view.put(edsCluster(t, "web", 2))
		r.serve(t)
		r.inSync("the changed cluster")
		wait.Until(t, "the changed cluster in use", func() bool {
			return strings.Contains(r.get("/config_dump?resource=dynamic_active_clusters"), `"2s"`)
		})
		b := backend(t, "b")
		r.publish("a new cluster", r.view.put(edsCluster(t, "more", 1), endpoints(t, "more", b), routes(t, "r", "/", "more")))
		wait.Until(t, "an answer of the new cluster", func() bool { return fetch(url) == "b" })
		if sent, wrong := stop(); wrong != "" || sent == 0 {
			t.Errorf("of %d requests one got %q", sent, wrong)
		}
		r.settled()
	})
}
