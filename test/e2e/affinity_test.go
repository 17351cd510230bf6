package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
)

// affinityUsers is how many users make requests.
const affinityUsers = 60

// affinityWays are those in which a request says whose it is, by the Service that has a rule for it.
var affinityWays = map[string]func(user int) (url string, header http.Header){
	"by-header": func(u int) (string, http.Header) {
		return "http://by-header:9080/", http.Header{"X-User": {fmt.Sprint(u)}}
	},
	"by-header-maglev": func(u int) (string, http.Header) {
		return "http://by-header-maglev:9080/", http.Header{"X-User": {fmt.Sprint(u)}}
	},
	"by-cookie": func(u int) (string, http.Header) {
		return "http://by-cookie:9080/", http.Header{"Cookie": {fmt.Sprintf("a=b; user=%d", u)}}
	},
	"by-query": func(u int) (string, http.Header) {
		return fmt.Sprintf("http://by-query:9080/?a=b&user=%d", u), http.Header{}
	},
}

// affinity makes requests in the mesh of testdata/affinity, each on a connection of its own.
type affinity struct {
	t      *testing.T
	client *http.Client
	config string // the file
}

// ask returns the Pod that answers a request.
func (a affinity) ask(ctx context.Context, url string, header http.Header) (string, *http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", nil, err
	}
	req.Header = header
	res, err := a.client.Do(req)
	if err != nil {
		return "", nil, err
	}
	defer res.Body.Close()
	answer, err := meshup.ReadAnswer(res)
	if err == nil && answer.Status != http.StatusOK {
		err = fmt.Errorf("status %d", answer.Status)
	}
	return answer.Pod, res, err
}

// where returns the Pod of each user, and how many users each Pod has.
func (a affinity) where(ctx context.Context, way string) (pods [affinityUsers]string, used map[string]int, err error) {
	used = map[string]int{}
	for u := range pods {
		url, header := affinityWays[way](u)
		if pods[u], _, err = a.ask(ctx, url, header); err != nil {
			return pods, used, err
		}
		used[pods[u]]++
	}
	return pods, used, nil
}

// settled waits until the users are at so many Pods, and returns those.
func (a affinity) settled(endpoints int) map[string][affinityUsers]string {
	a.t.Helper()
	out := map[string][affinityUsers]string{}
	for way := range affinityWays {
		await(a.t, fmt.Sprintf("%s: users are at %d Pods", way, endpoints), func(ctx context.Context) error {
			pods, used, err := a.where(ctx, way)
			if err == nil && len(used) != endpoints {
				err = fmt.Errorf("users are at %v", used)
			}
			out[way] = pods
			return err
		})
	}
	return out
}

// ready says whether a Pod is.
func (a affinity) ready(pod string, is bool) {
	a.t.Helper()
	have, err := os.ReadFile(a.config)
	if err != nil {
		a.t.Fatal(err)
	}
	docs, status := strings.Split(string(have), "---\n"), strings.NewReplacer(`"True"`, `"False"`)
	if is {
		status = strings.NewReplacer(`"False"`, `"True"`)
	}
	for i, doc := range docs {
		if strings.Contains(doc, "name: "+pod+",") {
			docs[i] = status.Replace(doc)
		}
	}
	if err := os.WriteFile(a.config+".new", []byte(strings.Join(docs, "---\n")), 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(a.config+".new", a.config); err != nil {
		a.t.Fatal(err)
	}
}

// TestConsistentHash: the requests of a user stay at one endpoint, by header, cookie, query parameter and address, whatever the connection. When an
// endpoint goes, its users move, and most others stay; when it is back, so are its users.
func TestConsistentHash(t *testing.T) {
	t.Parallel()
	m, config := start(t, "affinity")
	const going = "echo-4"
	a := affinity{t, meshup.Client(m.Pod("client-1.affinity").Net, 0), filepath.Join(config, "mesh.yaml")}
	first := a.settled(4)
	for way, pods := range first {
		for range 3 {
			again, used, err := a.where(t.Context(), way)
			if err != nil || again != pods {
				t.Errorf("%s: users moved, to %v (%v)", way, used, err)
			}
		}
	}
	t.Run("a cookie is made for who has none", a.cookies)
	t.Run("by the client's address", func(t *testing.T) {
		used := map[string]bool{}
		for range 30 {
			pod, _, err := a.ask(t.Context(), "http://by-source:9080/", http.Header{})
			if err != nil {
				t.Fatal(err)
			}
			used[pod] = true
		}
		if len(used) != 1 {
			t.Errorf("one client is at %v", used)
		}
	})

	a.ready(going, false)
	for way, pods := range a.settled(3) {
		stay, others := 0, 0
		for u, pod := range pods {
			if first[way][u] == going {
				continue
			}
			others++
			if pod == first[way][u] {
				stay++
			}
		}
		t.Logf("%s: of %d users of the Pods that stay, %d stay", way, others, stay)
		if stay*10 < others*7 { // by chance it would be a third
			t.Errorf("%s: of %d users of the Pods that stay, %d stay: want most", way, others, stay)
		}
	}
	a.ready(going, true)
	for way, pods := range first {
		await(t, way+": users are where they were", func(ctx context.Context) error {
			again, used, err := a.where(ctx, way)
			if err == nil && again != pods {
				err = fmt.Errorf("users are at %v", used)
			}
			return err
		})
	}
}

// cookies has new users get a cookie that keeps them where they are.
func (a affinity) cookies(t *testing.T) {
	used := map[string]bool{}
	for range 20 {
		pod, res, err := a.ask(t.Context(), "http://by-cookie:9080/", http.Header{})
		if err != nil {
			t.Fatal(err)
		}
		cookies := res.Cookies()
		if len(cookies) != 1 || cookies[0].Name != "user" || cookies[0].Value == "" || cookies[0].MaxAge != 60 || cookies[0].Path != "/" {
			t.Fatalf("cookies %v", res.Header["Set-Cookie"])
		}
		used[pod] = true
		for range 5 {
			again, res, err := a.ask(t.Context(), "http://by-cookie:9080/", http.Header{"Cookie": {cookies[0].Name + "=" + cookies[0].Value}})
			if err != nil || again != pod || len(res.Cookies()) > 0 {
				t.Errorf("with %s, which was at %s: at %s (%v)", cookies[0], pod, again, err)
			}
		}
	}
	if len(used) < 2 {
		t.Errorf("20 new users are all at %v", used)
	}
}
