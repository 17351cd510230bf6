package xds

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilothouse/pilothouse/test/wait"
)

// luaExtension is an extension configuration with a script.
func luaExtension(t *testing.T, name, code string) *Resource {
	t.Helper()
	return NewResource(ECDS, name, encode(t, &corev3.TypedExtensionConfig{Name: name, TypedConfig: pack(t, &luav3.Lua{
		DefaultSourceCode: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: code}},
	})}))
}

// answering is a configuration that answers requests with a text.
func answering(t *testing.T, name, text string) *Resource {
	t.Helper()
	return luaExtension(t, name, fmt.Sprintf("function envoy_on_request(h) h:respond({[':status'] = '200'}, %q) end", text))
}

// luaListener is a listener whose Lua filter takes its configuration from a source.
func luaListener(t *testing.T, name, filter string, source *corev3.ConfigSource) *Resource {
	t.Helper()
	return listenerWith(t, name, "r", 0, &hcmv3.HttpFilter{Name: filter, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
		ConfigSource: source, TypeUrls: []string{"type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"},
	}}})
}

// An extension configuration moves alone, no listener with it, under requests of which none fails. What Envoy refuses leaves the last one
// in force, and what is gone stays in force where a listener names it.
func TestRealEnvoyTakesExtensionConfigurations(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		r := newRig(t, api, firstView(t, backend(t, "a")).put(luaListener(t, "in", "filter", ads()), answering(t, "filter", "1")))
		url := r.url("in")
		is := func(want string) {
			t.Helper()
			wait.Until(t, "an answer of "+want, func() bool { return fetch(url) == want })
		}
		is("1")
		changes := r.stat("listener_manager.listener_modified") + r.stat("listener_manager.listener_in_place_updated") + r.stat("listener_manager.listener_added")
		stop := storm(url, "1", "2", "3", "4", "5")
		r.publish("a change", r.view.put(answering(t, "filter", "2")))
		is("2")
		r.show(r.view.put(luaExtension(t, "filter", "this is no script")))
		wait.Until(t, "the refusal", func() bool {
			s := r.server.Connections()[0].Types[ECDS]
			return s.Rejects > 0 && len(s.RejectedName) == 1 && s.RejectedName[0] == "filter" && strings.Contains(s.Message, "script load error")
		})
		is("2")
		r.publish("a script that is mended", r.view.put(answering(t, "filter", "3")))
		is("3")
		r.publish("nothing", r.view.drop(ECDS, "filter"))
		is("3")
		r.publish("it is there again", r.view.put(answering(t, "filter", "4")))
		is("4")
		if sent, wrong := stop(); wrong != "" || sent < enough {
			t.Errorf("of %d requests one got %q", sent, wrong)
		}
		if n := r.stat("listener_manager.listener_modified") + r.stat("listener_manager.listener_in_place_updated") + r.stat("listener_manager.listener_added"); n != changes {
			t.Errorf("%d changes of listeners, want the %d before", n, changes)
		}
		r.settled()
	})
}

// A listener is used without a configuration that nothing has when the time has passed that it waits for it, and takes the one that comes
// later; one that does not limit the time waits for it.
func TestRealEnvoyTakesAnExtensionConfigurationThatComesLate(t *testing.T) {
	eachFlavour(t, func(t *testing.T, api string) {
		r := newRig(t, api, firstView(t, backend(t, "a")))
		limited, patient := ads(), ads()
		limited.InitialFetchTimeout, patient.InitialFetchTimeout = durationpb.New(time.Second), durationpb.New(0)
		r.show(r.view.put(luaListener(t, "limited", "late", limited), luaListener(t, "patient", "later", patient)))
		wait.Until(t, "the listener that waits no longer", func() bool { return r.listening("limited") != "" })
		wait.Until(t, "500 without a configuration", func() bool { return strings.HasPrefix(fetch("http://"+r.listening("limited")+"/"), "500") })
		if r.listening("patient") != "" {
			t.Error("a listener does not wait for its filter's configuration")
		}
		r.publish("the configurations", r.view.put(answering(t, "late", "1"), answering(t, "later", "2")))
		wait.Until(t, "the late one", func() bool { return fetch("http://"+r.listening("limited")+"/") == "1" })
		wait.Until(t, "the later one", func() bool { return r.listening("patient") != "" && fetch(r.url("patient")) == "2" })
	})
}
