package xds

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/pilothouse/pilothouse/test/wait"
)

func TestProgressOfAProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLatestView(&View{Generation: 3})
		check := func(what string, missing, unanswered uint64) {
			t.Helper()
			if got := l.Progress(); got.Missing != missing || got.Unanswered != unanswered {
				t.Errorf("%s: missing %d, unanswered %d; want %d and %d", what, got.Missing, got.Unanswered, missing, unanswered)
			}
			<-time.After(time.Second)
		}
		check("connected", 1, 1)
		l.take()
		check("sent", 1, 1)
		l.Report(true, true)
		check("applied", 0, 0)
		seven := time.Now()
		l.Publish(&View{Generation: 7})
		check("published", 7, 7)
		l.take()
		l.Report(false, false)
		l.Publish(&View{Generation: 9})
		check("two published, one taken", 7, 7)
		if since := l.Progress().Since; !since.Equal(seven) {
			t.Errorf("missing since %v, want %v", since, seven)
		}
		l.Report(true, true)
		check("the first applied", 9, 9)
		l.take()
		l.Report(true, false)
		check("refused", 9, 0)
		l.PublishAt(&View{Generation: 2}, 12)
		check("the view of another class", 9, 12)
		l.take()
		l.Report(true, true)
		check("applied", 0, 0)
		l.Report(false, false)
		check("asks for more", 12, 12)
		l.Report(true, true)
		check("has it", 0, 0)
	})
}

// The progress is that of a list of all publications.
func TestProgressIsThatOfAllPublications(t *testing.T) {
	r := rand.New(rand.NewPCG(wait.Seed(t, 11), 1))
	for range 200 {
		l := NewLatestView(&View{})
		published, taken := []uint64{1}, 0
		applied, answered := 0, 0 // how many of published
		for range 40 {
			switch r.IntN(3) {
			case 0:
				g := published[len(published)-1] + 1 + uint64(r.IntN(3))
				published = append(published, g)
				l.PublishAt(&View{}, g)
			case 1:
				l.take()
				taken = len(published)
			case 2:
				if taken == 0 {
					continue // nothing to report on
				}
				done, all := r.IntN(2) == 0, r.IntN(2) == 0
				l.Report(done, done && all)
				if answered = min(answered, taken-1); done {
					answered = taken
				}
				if applied = min(applied, taken-1); done && all {
					applied = taken
				}
			}
			first := func(n int) uint64 {
				if n == len(published) {
					return 0
				}
				return published[n]
			}
			got := l.Progress()
			if got.Missing != first(applied) || got.Unanswered != first(answered) {
				t.Fatalf("missing %d, unanswered %d; want %d and %d of %v", got.Missing, got.Unanswered, first(applied), first(answered), published)
			}
			for _, g := range published {
				if got.Applied(g) != (got.Missing == 0 || g < got.Missing) || got.Answered(g) != (got.Unanswered == 0 || g < got.Unanswered) {
					t.Fatalf("generation %d: applied %v, answered %v with %+v", g, got.Applied(g), got.Answered(g), got)
				}
			}
		}
	}
}

// A proxy that comes back with what it shall have is sent nothing, and is shown with its resources, as in
// sync.
func TestAProxyThatComesBackUnchangedIsShownInSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := (&View{Generation: 5}).put(NewResource(CDS, "a", []byte("1")), NewResource(CDS, "b", []byte("1")), NewResource(LDS, "l", []byte("1")))
		class := &oneClass{latest: NewLatestView(v)}
		s := New(class, slog.New(slog.DiscardHandler), nil)
		g := open(t, dial(t, s, nil))
		initial := func(typ Type) map[string]string {
			out := map[string]string{}
			for r := range v.Of(typ).All() {
				out[r.Name] = r.Version
			}
			return out
		}
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: CDS.URL(), InitialResourceVersions: initial(CDS)})
		synctest.Wait()
		if got := class.latest.Progress(); got.Missing != 1 {
			t.Errorf("before it has asked for listeners, it is at %+v", got)
		}
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: LDS.URL(), InitialResourceVersions: initial(LDS)})
		synctest.Wait()
		c := s.Connections()[0]
		for typ, n := range map[Type]int{CDS: 2, LDS: 1} {
			if got := c.Types[typ]; got.Resources != n || !got.Synced || got.SentNonce != "" {
				t.Errorf("%s: %+v, want %d resources in sync and nothing sent", typ, got, n)
			}
		}
		if got := class.latest.Progress(); got != (Progress{}) {
			t.Errorf("it is at %+v, want all applied", got)
		}
	})
}

// What a proxy refuses is answered and not applied, and the names are known until it has accepted them.
func TestRefusedResourcesAreAnsweredAndNotApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := (&View{Generation: 1}).put(NewResource(LDS, "l", []byte("1")), NewResource(LDS, "m", []byte("1")))
		class := &oneClass{latest: NewLatestView(v)}
		s := New(class, quiet(t), nil)
		g := open(t, dial(t, s, nil))
		answer := func(message string) {
			m, err := g.Recv()
			if err != nil {
				t.Fatal(err)
			}
			r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()}
			if message != "" {
				r.ErrorDetail = &rpcstatus.Status{Message: message}
			}
			ask(t, g, r)
			synctest.Wait()
		}
		ask(t, g, &discoveryv3.DeltaDiscoveryRequest{Node: node(nil), TypeUrl: LDS.URL()})
		answer("l: bad")
		got := s.Connections()[0].Types[LDS]
		if len(got.Refused) != 1 || got.Refused[0] != "l" || got.Synced {
			t.Errorf("%+v, want l as refused", got)
		}
		if p := class.latest.Progress(); p.Missing != 1 || p.Unanswered != 0 {
			t.Errorf("with one refused it is at %+v", p)
		}
		v = v.put(NewResource(LDS, "l", []byte("2")))
		class.latest.Publish(v)
		answer("")
		if got := s.Connections()[0].Types[LDS]; got.Refused != nil || !got.Synced || got.Resources != 2 {
			t.Errorf("with all accepted: %+v", got)
		}
		if p := class.latest.Progress(); p != (Progress{}) {
			t.Errorf("with all accepted it is at %+v", p)
		}
	})
}

// Changes count as applied once each, when a view that has them is accepted.
func TestAppliedChangesAreCounted(t *testing.T) {
	var got []uint64
	l := NewLatestView(&View{Generation: 1})
	if l.Await(1) {
		t.Error("without anybody who counts, changes are awaited")
	}
	l.OnApplied(func(generations []uint64) { got = append(got, generations...) })
	publish := func(generation uint64) {
		if !l.Await(generation) || l.Await(generation) {
			t.Errorf("generation %d is not awaited once", generation)
		}
		l.PublishAt(&View{Generation: generation}, generation)
	}
	l.Take()
	publish(3)
	publish(5)
	l.Report(true, true) // of the view before
	if len(got) > 0 {
		t.Errorf("applied %d before they were taken", got)
	}
	l.Take()
	publish(7)
	l.Report(true, false) // refused
	l.Report(true, true)
	l.Report(true, true)
	if !slices.Equal(got, []uint64{3, 5}) || !slices.Equal(l.Awaited(), []uint64{7}) {
		t.Errorf("applied %d, awaited %d: want 3 and 5, and 7", got, l.Awaited())
	}
	for g := range uint64(2 * maxAwaited) {
		publish(8 + g)
	}
	if a := l.Awaited(); len(a) != maxAwaited || a[0] != 8+maxAwaited {
		t.Errorf("%d awaited from %d, want the newest %d", len(a), a[0], maxAwaited)
	}
}
