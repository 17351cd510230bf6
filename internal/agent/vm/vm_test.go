package vm

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pilothouse/pilothouse/internal/join"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/wait"
)

// Environment files are read as a shell reads them.
func TestParseEnvAsAShell(t *testing.T) {
	dir := wait.Folder(t)
	for _, text := range []string{
		"A=1\nB='two words'\nC=\"x y\"\n", "# comment\n\nexport A=1 # more\n  B=2;C=3\n", "A='it'\\''s'\n", "A=a'b'\"c\"\\ d\n", "A=\nB=''\n", "A=\"\\\"\\$\\`\\\\ \\n\"\n",
		"A='x\ny'\nB=2\n", "A=*\nB={\"a\":1}\n", "A=x#y\n", "A=\"a\\\nb\"\n", "A=1\r\n", "A=a\\\nb\n", "A=1\nA=2\n", "A='$(date)'\n", "A=~x\n",
	} {
		got, err := ParseEnv(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		file := filepath.Join(dir, "env")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"A", "B", "C"} {
			want, err := exec.Command("sh", "-c", ". "+file+"; printf %s \"$"+name+"\"").Output()
			if err != nil {
				t.Fatal(err)
			}
			if strings.TrimSuffix(string(want), "\r") != got[name] {
				t.Errorf("%q: %s is %q, the shell says %q", text, name, got[name], want)
			}
		}
	}
}

func TestParseEnvRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"A=$HOME": "line 1: A: $ and `", "A=1\nB=`date`": "line 2: B: $ and `", "A=\"$(date)\"": "not expanded", "A='x": "a quote is not closed", "A=\"x": "a quote is not closed",
		"echo x": `"echo x": want NAME=VALUE`, "A=1 reboot": "a word behind the value", "1A=2": "want NAME=VALUE", "A = 1": "want NAME=VALUE", "A=1|x": "meaning for shells", "A\x00=1": "zero byte",
		strings.Repeat("#", maxEnv+1): "want at most", "if true": "want NAME=VALUE", "A": "want NAME=VALUE",
	} {
		if env, err := ParseEnv(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, %v, want %q", text, env, err, want)
		}
	}
}

// What FormatEnv writes, ParseEnv reads.
func FuzzParseEnv(f *testing.F) {
	for _, s := range []string{"A=1\n", "A='x'\\''y'\n", "export B=\"x\\\"\"\n", "C=\\\n", "D='a\nb' # x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		env, err := ParseEnv(text)
		if err != nil {
			return
		}
		again, err := ParseEnv(FormatEnv(env))
		if err != nil || !maps.Equal(env, again) {
			t.Fatalf("%q became %q, %v", env, again, err)
		}
	})
}

func root(t testing.TB) []byte {
	t.Helper()
	key, err := pki.GenerateKey(pki.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	template := pki.RootTemplate("cluster.local", pki.Validity{NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour)})
	c, err := pki.Sign(template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return c.Raw
}

func TestFromBundle(t *testing.T) {
	b := &join.Bundle{
		Namespace: "shop", ServiceAccount: "legacy", Discovery: "192.0.2.1:15012", ServerName: "istiod.istio-system.svc", Roots: [][]byte{root(t)}, Token: "a.b.c", Expires: time.Now(),
		TrustDomain: "example.org", Cluster: "one", Network: "vms", Group: "old", Revision: "canary", Labels: map[string]string{"app": "x", "version": "v2"}, ProxyConfig: "concurrency: 3\nproxyMetadata: {A: b}\n",
	}
	m, err := FromBundle(b, "/opt/envoy")
	if err != nil {
		t.Fatal(err)
	}
	env, err := ParseEnv(m.Env)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"POD_NAMESPACE": "shop", "SERVICE_ACCOUNT": "legacy", "TRUST_DOMAIN": "example.org", "CA_ADDR": "192.0.2.1:15012", "ISTIOD_SAN": "istiod.istio-system.svc",
		"ISTIO_META_CLUSTER_ID": "one", "ISTIO_META_NETWORK": "vms", "ISTIO_META_AUTO_REGISTER_GROUP": "old", "ISTIO_META_WORKLOAD_NAME": "old", "ISTIO_META_DNS_CAPTURE": "true",
		"ISTIO_INBOUND_PORTS": "*", "ISTIO_LOCAL_EXCLUDE_PORTS": "22,15090,15021,15020", "ISTIO_SERVICE": "old.shop", "CANONICAL_SERVICE": "x", "CANONICAL_REVISION": "v2",
		"ISTIO_METAJSON_LABELS": `{"app":"x","security.istio.io/tlsMode":"istio","service.istio.io/canonical-name":"x","service.istio.io/canonical-revision":"v2","version":"v2"}`,
	} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	var mesh map[string]any
	if err := yaml.Unmarshal([]byte(m.Mesh), &mesh); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"defaultConfig": map[string]any{"concurrency": 3.0, "discoveryAddress": "192.0.2.1:15012", "binaryPath": "/opt/envoy", "proxyMetadata": map[string]any{"A": "b"}}}
	if !reflect.DeepEqual(mesh, want) || m.Envoy() != "/opt/envoy" {
		t.Errorf("the mesh's file is %v, want %v; %s", mesh, want, m.Envoy())
	}
	if len(b.Labels) != 2 {
		t.Errorf("the bundle was changed: %v", b.Labels)
	}
	for _, f := range m.Files("unit", "script") {
		if strings.Contains(string(f.Text), b.Token) {
			t.Errorf("%s has the token", f.Path)
		}
	}
}

// The files are as Istio's tool writes them. [agent V4, V5]
func TestFromFilesOfIstio(t *testing.T) {
	files := map[string][]byte{}
	for _, name := range GivenFiles() {
		text, err := os.ReadFile(filepath.Join("testdata/istio", name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = text
	}
	files[givenRoots] = encode(t)
	m, err := FromFiles(files, "")
	if err != nil {
		t.Fatal(err)
	}
	if m.Identity.SPIFFE() != "spiffe://cluster.local/ns/vm-namespace/sa/vm-account" || m.CA != "istiod-1-28.istio-system.svc:15012" || m.Group != "vm-app" || m.Token != "header.payload.signature" ||
		m.ClusterID != "cluster1" || !reflect.DeepEqual(m.Hosts, []Host{{"192.0.2.15", "istiod-1-28.istio-system.svc"}}) || m.Envoy() != DefaultEnvoy || len(m.Notes) > 0 {
		t.Errorf("%+v", m)
	}
	for _, f := range m.Files("", "") {
		if f.Path == ClusterEnv && string(f.Text) != string(files[givenEnv]) || f.Path == MeshFile && string(f.Text) != string(files[givenMesh]) {
			t.Errorf("%s was changed: %s", f.Path, f.Text)
		}
	}
	env, err := ParseEnv(m.Env)
	if err != nil {
		t.Fatal(err)
	}
	p, notes, err := Start(env, "", nil)
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	for name, want := range map[string]string{
		"CA_ADDR": "istiod-1-28.istio-system.svc:15012", "PROV_CERT": "./etc/certs", "OUTPUT_CERTS": "./etc/certs", "INSTANCE_IP": "192.0.2.20", "ENVOY_USER": "istio-proxy", "PROXY_CONFIG": "",
		"ISTIO_META_NETWORK": "vm-network", "ISTIO_META_MESH_ID": "mesh1", "POD_NAMESPACE": "vm-namespace", "CUSTOM_METADATA": "a b",
	} {
		if p.Env[name] != want {
			t.Errorf("%s is %q, want %q", name, p.Env[name], want)
		}
	}
	if m, err := FromFiles(files, "/opt/envoy"); err != nil || m.Envoy() != "/opt/envoy" || !strings.Contains(m.Mesh, "ISTIO_META_AUTO_REGISTER_GROUP: vm-app") {
		t.Errorf("%+v, %v", m, err)
	}
	for name, change := range map[string]string{givenEnv: "A=$(x)", givenHosts: "x y", givenRoots: "x", givenMesh: "[x"} {
		bad := maps.Clone(files)
		bad[name] = []byte(change)
		if _, err := FromFiles(bad, ""); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	delete(files, givenEnv)
	if _, err := FromFiles(files, ""); err == nil || !strings.Contains(err.Error(), "there is no cluster.env") {
		t.Error(err)
	}
}

func encode(t *testing.T) []byte {
	t.Helper()
	m, err := FromBundle(&join.Bundle{Namespace: "a", ServiceAccount: "a", TrustDomain: "a", Roots: [][]byte{root(t)}}, "")
	if err != nil {
		t.Fatal(err)
	}
	return m.Roots
}

// The verbs and variables of istio-start.sh. [agent V3]
func TestStart(t *testing.T) {
	for _, tt := range []struct {
		name, verb string
		env        map[string]string
		args       []string
		capture    bool
		root       bool
		want       map[string]string
		argv       string
		problem    string
	}{
		{name: "nothing", capture: true, want: map[string]string{"PROV_CERT": "./etc/certs", "CA_ADDR": ""}, argv: "proxy sidecar"},
		{name: "run", verb: "run", argv: "proxy sidecar"},
		{name: "custom rules", env: map[string]string{"ISTIO_CUSTOM_IP_TABLES": "true"}, argv: "proxy sidecar"},
		{name: "init", verb: "init", env: map[string]string{"ISTIO_CUSTOM_IP_TABLES": "true"}, args: []string{"-b", "80"}, capture: true, argv: "proxy sidecar"},
		{name: "clean", verb: "clean", argv: "proxy sidecar"},
		{name: "another verb", verb: "stop", problem: `invalid argument "stop"`},
		{name: "arguments", verb: "run", args: []string{"x"}, problem: "unexpected arguments"},
		{
			name: "the CA is discovery", env: map[string]string{"PILOT_ADDRESS": "pilot:15012"}, capture: true, argv: "proxy sidecar",
			want: map[string]string{"CA_ADDR": "pilot:15012", "PROXY_CONFIG": "discoveryAddress: pilot:15012\n"},
		},
		{
			name: "CA_ADDR has priority", env: map[string]string{"PILOT_ADDRESS": "pilot:15012", "CA_ADDR": "ca:1", "PROXY_CONFIG": "concurrency: 1"}, capture: true, argv: "proxy sidecar",
			want: map[string]string{"CA_ADDR": "ca:1", "PROXY_CONFIG": "concurrency: 1"},
		},
		{name: "port of discovery", env: map[string]string{"ISTIO_PILOT_PORT": "443"}, capture: true, argv: "proxy sidecar", want: map[string]string{"CA_ADDR": "istiod.istio-system.svc:443"}},
		{name: "namespace of discovery", env: map[string]string{"ISTIO_SYSTEM_NAMESPACE": "mesh"}, capture: true, argv: "proxy sidecar", want: map[string]string{"CA_ADDR": "istiod.mesh.svc:15012"}},
		{
			name: "transparent", env: map[string]string{"ISTIO_INBOUND_INTERCEPTION_MODE": "TPROXY"}, capture: true, root: true, argv: "proxy sidecar",
			want: map[string]string{"INBOUND_INTERCEPTION_MODE": "TPROXY", "ISTIO_META_INTERCEPTION_MODE": "TPROXY"},
		},
		{
			name: "flags, service, user", env: map[string]string{"ISTIO_AGENT_FLAGS": "--log_output_level debug", "ISTIO_SERVICE": "a.b", "EXEC_USER": "mesh", "ISTIO_NAMESPACE": "n"}, capture: true,
			argv: "proxy sidecar --serviceCluster a.b --log_output_level debug", want: map[string]string{"ENVOY_USER": "mesh", "POD_NAMESPACE": "n"},
		},
		{
			name: "canonical names", env: map[string]string{"CANONICAL_SERVICE": "s", "CANONICAL_REVISION": "r", "ISTIO_METAJSON_LABELS": `{"service.istio.io/canonical-revision":"own"}`}, capture: true, argv: "proxy sidecar",
			want: map[string]string{"ISTIO_METAJSON_LABELS": `{"service.istio.io/canonical-name":"s","service.istio.io/canonical-revision":"own"}`},
		},
		{name: "bad labels", env: map[string]string{"ISTIO_METAJSON_LABELS": "x"}, problem: "ISTIO_METAJSON_LABELS"},
	} {
		p, _, err := Start(tt.env, tt.verb, tt.args)
		if tt.problem != "" {
			if err == nil || !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("%s: %v, want %q", tt.name, err, tt.problem)
			}
			continue
		}
		if err != nil || p.Capture != tt.capture || p.Root != tt.root || strings.Join(p.Args, " ") != tt.argv {
			t.Errorf("%s: %+v, %v", tt.name, p, err)
		}
		for name, want := range tt.want {
			if p.Env[name] != want {
				t.Errorf("%s: %s is %q, want %q", tt.name, name, p.Env[name], want)
			}
		}
	}
	if _, notes, err := Start(map[string]string{"ISTIO_BIN_BASE": "/opt"}, "", nil); err != nil || len(notes) != 1 {
		t.Error(notes, err)
	}
}

func TestWithHosts(t *testing.T) {
	hosts := []Host{{"192.0.2.1", "a"}, {"192.0.2.1", "b"}}
	once := WithHosts("127.0.0.1 localhost", hosts)
	if want := "127.0.0.1 localhost\n" + hostsBegin + "\n192.0.2.1 a\n192.0.2.1 b\n" + hostsEnd + "\n"; once != want {
		t.Errorf("%q, want %q", once, want)
	}
	if again := WithHosts(once+"192.0.2.9 own\n", hosts[:1]); again != "127.0.0.1 localhost\n192.0.2.9 own\n"+hostsBegin+"\n192.0.2.1 a\n"+hostsEnd+"\n" {
		t.Errorf("%q", again)
	}
	if none := WithHosts(once, nil); none != "127.0.0.1 localhost\n" {
		t.Errorf("%q", none)
	}
}

func TestParseRecord(t *testing.T) {
	r, err := ParseRecord([]byte(`{"identity":"x","written":["` + ClusterEnv + `"],"hosts":true}`))
	if err != nil || !slices.Equal(r.Written, []string{ClusterEnv}) || !r.Hosts {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"", "{}", `{"identity":"x","written":["etc/passwd"]}`, `{"identity":"x","written":["../../x"]}`} {
		if _, err := ParseRecord([]byte(bad)); err == nil {
			t.Errorf("%s is a record", bad)
		}
	}
}

// The unit names no option twice, and its lines are sections, options and comments.
func TestUnit(t *testing.T) {
	text := Unit("/usr/local/bin/pilot-agent")
	if packaged, err := os.ReadFile("../../../deploy/packages/istio.service"); err != nil || string(packaged) != text {
		t.Errorf("deploy/packages/istio.service is %s, want %s: %v", packaged, text, err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == '[' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || value == "" || seen[name] {
			t.Errorf("line %q", line)
		}
		seen[name] = true
	}
	for _, want := range []string{"ExecStart=/usr/local/bin/pilot-agent start\n", "ExecStopPost=/usr/local/bin/pilot-agent start clean\n", "Restart=always\n", "RestartSec=10\n", "KillMode=mixed\n", "TimeoutStopSec=30\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no line %q", want)
		}
	}
}
