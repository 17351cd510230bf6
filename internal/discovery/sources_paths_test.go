package discovery

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Paths in messages can be pasted, wherever whoever reads them is: a relative directory is shown by its absolute path, also of what
// was saved.
func TestPathsOfARelativeDirectory(t *testing.T) {
	l := newLife(t, map[string]string{
		"a.yaml": "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: shop}\nspec: {hosts: [a], http: [{redirect: {uri: /}}], tpc: []}\n",
	})
	dir := l.config
	t.Chdir(filepath.Dir(dir))
	l.config = filepath.Base(dir)
	l.start()
	for range 2 {
		want := filepath.Join(dir, "a.yaml") + ":"
		if _, body := l.plane.get(l.plane.addr.HTTP, "/debug/objectz"); !strings.Contains(body, `"`+want) {
			t.Errorf("the page lacks %q: %s", want, body)
		}
		if t.Failed() {
			break
		}
		l.restart(func() {
			if _, err := os.Stat(l.config); err != nil {
				t.Fatal(err)
			}
		})
	}
	l.stop()
}
