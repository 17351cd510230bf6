package sds

import (
	"context"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/pki"
)

// contents lists a delta response: the names of its secrets, and "!" before each name that is removed with an error.
func contents(t *testing.T, r *response) string {
	t.Helper()
	if r == nil {
		return ""
	}
	var d discoveryv3.DeltaDiscoveryResponse
	if err := proto.Unmarshal(r.encode(), &d); err != nil {
		t.Fatal(err)
	}
	return deltaContents(t, &d)
}

func deltaContents(t *testing.T, d *discoveryv3.DeltaDiscoveryResponse) string {
	t.Helper()
	var names []string
	for _, r := range d.GetResources() {
		if r.GetVersion() == "" || r.GetResource().GetTypeUrl() != TypeURL {
			t.Errorf("resource %v", r)
		}
		names = append(names, r.GetName())
	}
	var failed []string
	for _, e := range d.GetResourceErrors() {
		failed = append(failed, e.GetResourceName().GetName())
		names = append(names, "!"+e.GetResourceName().GetName())
	}
	if !slices.Equal(failed, d.GetRemovedResources()) {
		t.Errorf("errors of %v, removed %v", failed, d.GetRemovedResources())
	}
	return strings.Join(names, " ")
}

func TestDelta(t *testing.T) {
	subscribe := func(names ...string) *deltaRequest { return &deltaRequest{typeURL: TypeURL, subscribe: names} }
	answer := func(nonce string) *deltaRequest { return &deltaRequest{typeURL: TypeURL, nonce: nonce} }
	version := func(name string) string { return finds(secretA)(name).version }
	type step struct {
		req    *deltaRequest // nil: only the secret changed
		secret *pki.Secret
		sends  string
		says   string
	}
	for name, script := range map[string][]step{
		"waits, then sends what changed only": {
			{subscribe(LeafName, RootsName), nil, "", ""},
			{nil, secretA, "ROOTCA default", ""},
			{answer("1"), secretA, "", ""},
			{nil, secretB, "default", ""},
			{nil, secretC, "ROOTCA", ""},
		},
		"what the client has is not sent again": {
			{&deltaRequest{subscribe: []string{LeafName, RootsName}, versions: map[string]string{LeafName: version(LeafName), RootsName: "old"}}, secretA, "ROOTCA", ""},
		},
		"versions count in the first request only": {
			{subscribe(RootsName), secretA, "ROOTCA", ""},
			{&deltaRequest{subscribe: []string{LeafName}, versions: map[string]string{LeafName: version(LeafName)}}, secretA, "default", ""},
		},
		"subscribed again, sent again": {
			{subscribe(LeafName), secretA, "default", ""},
			{subscribe(LeafName), secretA, "default", ""},
		},
		"unsubscribed": {
			{subscribe(LeafName, RootsName), secretA, "ROOTCA default", ""},
			{&deltaRequest{unsubscribe: []string{LeafName}}, secretB, "", ""},
			{nil, secretC, "ROOTCA", ""},
		},
		"an unknown name is an error of that name, once": {
			{subscribe("nosuch", LeafName), secretA, "default !nosuch", ""},
			{answer("1"), secretB, "default", ""},
		},
		"a NACK is reported once and does not loop": {
			{subscribe(LeafName), secretA, "default", ""},
			{&deltaRequest{nonce: "1", refused: true, reason: "bad key"}, secretA, "", "rejected"},
			{&deltaRequest{nonce: "1", refused: true, reason: "bad key"}, secretA, "", ""},
			{nil, secretB, "default", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &delta{}
			for i, st := range script {
				if st.req != nil {
					rep, err := d.request(st.req)
					if err != nil || !strings.Contains(rep.text, st.says) || (rep.text == "") != (st.says == "") {
						t.Errorf("step %d: says %q, error %v, want %q", i, rep.text, err, st.says)
					}
				}
				if got := contents(t, d.response(finds(st.secret))); got != st.sends {
					t.Errorf("step %d: sends %q, want %q", i, got, st.sends)
				}
			}
		})
	}
}

func TestInvalidDeltaRequestEndsTheStream(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = strings.Repeat("x", i+1)
	}
	for why, r := range map[string]*deltaRequest{
		"want " + TypeURL: {typeURL: "other"},
		"at most 64":      {subscribe: many},
		"name of":         {subscribe: []string{strings.Repeat("x", maxName+1)}},
	} {
		if _, err := new(delta).request(r); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%v, want %q", err, why)
		}
	}
}

func TestDeltaSecrets(t *testing.T) {
	source := &value{}
	socket := serve(t, source)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	st, err := dial(t, socket).DeltaSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL, ResourceNamesSubscribe: []string{LeafName, "nosuch"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		secret *pki.Secret
		sends  string
	}{{nil, "!nosuch"}, {secretA, "default"}, {secretB, "default"}} {
		if want.secret != nil {
			source.set(want.secret)
		}
		d, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := deltaContents(t, d); got != want.sends {
			t.Errorf("got %s, want %s", got, want.sends)
		}
		if err := st.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: TypeURL, ResponseNonce: d.GetNonce()}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFetchSecrets(t *testing.T) {
	source := &value{}
	client := dial(t, serve(t, source))
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	for want, r := range map[codes.Code]*discoveryv3.DiscoveryRequest{
		codes.NotFound: ask("", "nosuch"), codes.InvalidArgument: ask(""),
	} {
		if _, err := client.FetchSecrets(ctx, r); status.Code(err) != want {
			t.Errorf("%v: %v, want %v", r, err, want)
		}
	}
	if _, err := client.FetchSecrets(ctx, &discoveryv3.DiscoveryRequest{TypeUrl: "other"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("another type: %v", err)
	}
	got := make(chan *discoveryv3.DiscoveryResponse, 1)
	go func() {
		r, err := client.FetchSecrets(ctx, ask("", LeafName, "nosuch"))
		if err != nil {
			t.Errorf("a secret that comes later: %v", err)
		}
		got <- r
	}()
	source.set(secretA)
	r := <-got
	if s := secretsIn(t, r); len(s) != 1 || s[0].GetName() != LeafName || len(r.GetResourceErrors()) != 1 || r.GetVersionInfo() == "" {
		t.Errorf("got %v", r)
	}
}

func TestFetchOfWhatDoesNotExistEnds(t *testing.T) {
	s := &Server{Config: config("", &value{})}
	s.Users = Users{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.fetch(ctx, &request{names: []string{LeafName}}); status.Code(err) != codes.Unavailable {
		t.Errorf("%v, want Unavailable", err)
	}
}
