package main

import (
	"bufio"
	"context"
	"crypto"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/agent/sds"
	"github.com/pilothouse/pilothouse/internal/claim"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/pki"
	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/envoytest"
)

// sdsFolder is where the SDS socket is, relative to the agent's folder.
const sdsFolder = "var/run/secrets/workload-spiffe-uds"

// The environment of this test program as a client of the SDS socket: its path and the name of a secret.
const (
	clientSocket = "AGENT_TEST_SDS_SOCKET"
	clientName   = "AGENT_TEST_SDS_NAME"
	// takenSocket has the program replace the socket at this path by one of its own, and serve it until its input ends.
	takenSocket = "AGENT_TEST_TAKEN_SOCKET"
)

// takeSocket replaces a socket if this program was started by takeAs, and reports whether it was.
func takeSocket() bool {
	path := os.Getenv(takenSocket)
	if path == "" {
		return false
	}
	if err := os.Remove(path); err != nil {
		fmt.Println(err)
		return true
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o777)
	}
	fmt.Println("taken", err)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it
	l.Close()
	return true
}

// takeAs has a program of the name, run by another user, replace the socket, and returns when that is done. The other user serves its own until the test ends.
func takeAs(t *testing.T, uid uint32, dir, name, socket string) {
	t.Helper()
	program := filepath.Join(dir, name)
	copyFile(t, "/proc/self/exe", program)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir, cmd.Env = "/", append(os.Environ(), takenSocket+"="+socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "taken <nil>\n" {
		t.Fatalf("%q, %v", line, err)
	}
}

// Stock Envoy has no private key providers, and rejects a certificate with one even if that may be left out.
func TestKeyProviderOnStockEnvoy(t *testing.T) {
	for name, tt := range map[string]struct {
		fallback string
		says     string
		ready    bool
	}{
		"with a fallback": {"true", "uses the workload's key itself", true},
		"without":         {"false", "set privateKeyProvider.cryptomb.fallback, or use an Envoy that has it", false},
	} {
		t.Run(name, func(t *testing.T) {
			plane := agenttest.NewPlane(t)
			port := agenttest.Port(t)
			plane.Give(agenttest.ListenerType, map[string]proto.Message{"tls": tlsListener(t, port)})
			plane.Start()
			a := agenttest.New(t, plane, "privateKeyProvider: {cryptomb: {pollDelay: 10ms, fallback: "+tt.fallback+"}}")
			a.Start()
			agenttest.Until(t, "the agent says what Envoy lacks", func() error {
				if !strings.Contains(a.Output(), tt.says) {
					return errors.New("it does not")
				}
				return nil
			})
			handshake := func() error {
				c, err := tls.Dial("tcp", net.JoinHostPort("127.0.0.1", port), &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}) // whose certificate it is does not matter
				if err == nil {
					c.Close()
				}
				return err
			}
			if tt.ready {
				agenttest.Until(t, "the listener has a certificate", handshake)
			} else if handshake() == nil {
				t.Error("the listener has a certificate")
			}
		})
	}
}

// The socket's folder is writable to every user, and one of them puts a socket of its own in the place of the agent's.
func TestAReplacedSocketIsOpenedAgain(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Start()
	a := agenttest.New(t, plane, "")
	a.Cmd.Args = append(a.Cmd.Args, "--log_repeat_period=0") // lines are counted
	openVolume(t, a, sdsFolder)
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	dir := filepath.Join(a.Dir, sdsFolder)
	socket := filepath.Join(dir, "socket")
	for _, name := range []string{"first", "second"} {
		before := strings.Count(a.Output(), "is open again")
		takeAs(t, 4711, dir, name, socket)
		agenttest.Until(t, "the agent says that its socket was replaced", func() error {
			if strings.Count(a.Output(), "is open again") == before {
				return errors.New("it does not")
			}
			return nil
		})
		if uid, err := claim.Server(socket); err != nil || uid != 0 {
			t.Errorf("user %d serves the socket, %v", uid, err)
		}
		if got := streamAs(t, 0, dir, socket, "default"); got != "1 secrets, 0 errors" {
			t.Errorf("secrets: %s", got)
		}
		if got := streamAs(t, 4711, dir, socket, "default"); got != "Unavailable" {
			t.Errorf("secrets as the other user: %s", got)
		}
	}
	if !strings.Contains(a.Output(), "in use by another process (of user 4711)") {
		t.Error("the log does not name the user")
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	agenttest.Until(t, "a socket that was removed is there again", func() error {
		_, err := claim.Server(socket)
		return err
	})
}

// sdsClient requests a secret if this program was started by streamAs, and reports whether it was.
func sdsClient() bool {
	socket := os.Getenv(clientSocket)
	if socket != "" {
		fmt.Println(firstAnswer(socket, os.Getenv(clientName)))
	}
	return socket != ""
}

// firstAnswer requests a secret and describes the first answer.
func firstAnswer(socket, name string) string {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), agenttest.Bound)
	defer cancel()
	st, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err != nil {
		return status.Code(err).String()
	}
	_ = st.Send(&discoveryv3.DiscoveryRequest{TypeUrl: sds.TypeURL, ResourceNames: []string{name}}) // Recv has the reason
	r, err := st.Recv()
	if err != nil {
		return status.Code(err).String()
	}
	return fmt.Sprintf("%d secrets, %d errors", len(r.GetResources()), len(r.GetResourceErrors()))
}

// streamAs requests a secret as another user.
func streamAs(t *testing.T, uid uint32, dir, socket, name string) string {
	t.Helper()
	program := filepath.Join(dir, "client")
	copyFile(t, "/proc/self/exe", program)
	ctx, cancel := context.WithTimeout(t.Context(), 2*agenttest.Bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Dir, cmd.Env = "/", append(os.Environ(), clientSocket+"="+socket, clientName+"="+name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// openVolume makes a folder of the agent that every user may write to, as a volume of a Pod is.
func openVolume(t *testing.T, a *agenttest.Process, path string) {
	t.Helper()
	full := filepath.Join(a.Dir, path)
	if err := errors.Join(os.MkdirAll(full, 0o755), os.Chmod(full, 0o777), os.Chmod(a.Dir, 0o755), os.Chmod(filepath.Dir(a.Dir), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// TestOtherUsersGetNoSecrets: the socket's folder is writable to every user. Envoy gets the key; another user gets neither
// the key nor a file that only root may read, and root gets only files that the configuration uses.
func TestOtherUsersGetNoSecrets(t *testing.T) {
	plane := agenttest.NewPlane(t)
	a := agenttest.New(t, plane, "", "WORKLOAD_IDENTITY_SOCKET_UIDS=4712")
	openVolume(t, a, sdsFolder)
	root, err := os.ReadFile(plane.RootFile)
	if err != nil {
		t.Fatal(err)
	}
	used, unused := filepath.Join(a.Dir, "used.pem"), filepath.Join(a.Dir, "unused.pem")
	for _, path := range []string{used, unused} {
		if err := os.WriteFile(path, root, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	plane.Give(agenttest.ClusterType, map[string]proto.Message{"used": tlsCluster(t, "used", used)})
	plane.Start()
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	socket := filepath.Join(a.Dir, sdsFolder, "socket")
	for _, tt := range []struct {
		uid        uint32
		name, want string
	}{
		{4711, "default", "Unavailable"},
		{4711, "file-root:" + used, "Unavailable"},
		{4712, "default", "1 secrets, 0 errors"},
		{4712, "file-root:" + unused, "0 secrets, 1 errors"},
		{0, "file-root:" + unused, "0 secrets, 1 errors"},
		{0, "file-root:" + used, "1 secrets, 0 errors"},
		{0, "nosuch", "0 secrets, 1 errors"},
	} {
		if got := streamAs(t, tt.uid, filepath.Join(a.Dir, sdsFolder), socket, tt.name); got != tt.want {
			t.Errorf("user %d, %s: %s, want %s", tt.uid, tt.name, got, tt.want)
		}
	}
	if !strings.Contains(a.Output(), "uid=4711") && !strings.Contains(a.Output(), `"uid":4711`) {
		t.Error("the log does not name the user who was refused")
	}
}

// secrets is a workload's secret.
type secrets struct{ s *pki.Secret }

// Current implements sds.Source.
func (s secrets) Current() (*pki.Secret, <-chan struct{}) { return s.s, nil }

// external serves an SDS socket in place of a SPIRE agent.
func external(t *testing.T, socket string) {
	t.Helper()
	s, err := sds.New(sds.Config{
		Socket: socket, Access: claim.AnyUser, Users: sds.Users{All: true}, Source: secrets{testSecret(t)}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestAnExternalServerHasTheCertificate: Envoy gets it from there, nothing is requested from the CA, and files are
// served beside it. With the policy require the server may come later than the agent.
func TestAnExternalServerHasTheCertificate(t *testing.T) {
	for _, policy := range []string{"prefer", "require"} {
		t.Run(policy, func(t *testing.T) {
			plane := agenttest.NewPlane(t)
			a := agenttest.New(t, plane, "", "WORKLOAD_IDENTITY_SOCKET_POLICY="+policy)
			socket := filepath.Join(a.Dir, sdsFolder, "socket")
			root, err := os.ReadFile(plane.RootFile)
			if err != nil {
				t.Fatal(err)
			}
			a.Write("used.pem", root)
			used := filepath.Join(a.Dir, "used.pem")
			plane.Give(agenttest.ClusterType, map[string]proto.Message{"used": tlsCluster(t, "used", used)})
			plane.Give(agenttest.ListenerType, map[string]proto.Message{"tls": tlsListener(t, agenttest.Port(t))})
			plane.Start()
			if policy == "prefer" {
				external(t, socket)
			}
			a.Start()
			if policy == "require" {
				agenttest.Until(t, "the agent says that it waits for the server", func() error {
					if !strings.Contains(a.Output(), "does not answer yet") {
						return errors.New("no such line")
					}
					return nil
				})
				external(t, socket)
			}
			agenttest.Until(t, "the proxy is ready", a.Ready)
			agenttest.Until(t, "Envoy has the certificate", func() error {
				_, body, err := a.Get(a.Admin, "/certs")
				if err == nil && !strings.Contains(body, "spiffe://elsewhere.example/ns/n/sa/s") {
					err = errors.New(body)
				}
				return err
			})
			if n, _ := plane.Signed(); n != 0 {
				t.Errorf("%d certificates were requested from the CA", n)
			}
			if v := plane.Node().GetMetadata().GetFields()[mesh.FileSecretsKey].GetStringValue(); v != "true" {
				t.Errorf("the node's metadata has %s %q, want true", mesh.FileSecretsKey, v)
			}
			files := filepath.Join(a.Dir, "var/run/secrets/credential-uds/files-socket")
			for name, want := range map[string]string{"default": "0 secrets, 1 errors", "file-root:" + used: "1 secrets, 0 errors"} {
				if got := firstAnswer(files, name); got != want {
					t.Errorf("%s: %s, want %s", name, got, want)
				}
			}
			a.Stop()
			if got := firstAnswer(socket, "default"); got != "1 secrets, 0 errors" {
				t.Errorf("the other server after the agent's end: %s", got)
			}
		})
	}
}

// TestAnExternalServerIsRefused: by the policy, because of its user, or because certificates are to be written.
func TestAnExternalServerIsRefused(t *testing.T) {
	for env, want := range map[string]string{
		"WORKLOAD_IDENTITY_SOCKET_POLICY=ignore": "in use by another process",
		"OUTPUT_CERTS=out":                       "OUTPUT_CERTS: no certificate to write",
	} {
		plane := agenttest.NewPlane(t)
		plane.Start()
		a := agenttest.New(t, plane, "", env)
		socket := filepath.Join(a.Dir, sdsFolder, "socket")
		external(t, socket)
		a.Start()
		if code := a.Wait(); code != 255 || !strings.Contains(a.Output(), want) {
			t.Errorf("%s: exit code %d, want 255 and %q", env, code, want)
		}
		if got := firstAnswer(socket, "default"); got != "1 secrets, 0 errors" {
			t.Errorf("%s: the other server: %s", env, got)
		}
	}
}

// testSecret is a secret that no CA of the mesh has signed.
func testSecret(t *testing.T) *pki.Secret {
	t.Helper()
	term := pki.Validity{NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour)}
	var keys [2]crypto.Signer
	for i := range keys {
		key, err := pki.GenerateKey(pki.ECDSAP256)
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = key
	}
	root, err := pki.Sign(pki.RootTemplate("elsewhere.example", term), nil, keys[0].Public(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	template, err := pki.WorkloadTemplate(mesh.Identity{TrustDomain: "elsewhere.example", Namespace: "n", ServiceAccount: "s"}, term)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := pki.Sign(template, root, keys[1].Public(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	text, err := pki.EncodeKey(keys[1], true)
	if err != nil {
		t.Fatal(err)
	}
	return &pki.Secret{Key: text, Chain: pki.EncodeCerts(leaf), Roots: pki.EncodeCerts(root)}
}

// TestCertificatesAreWrittenBeforeEnvoyStarts: an Envoy whose program is a script that needs the files finds them. While the CA is away, Envoy
// starts without.
func TestCertificatesAreWrittenBeforeEnvoyStarts(t *testing.T) {
	for name, away := range map[string]bool{"the CA answers": false, "the CA is away": true} {
		t.Run(name, func(t *testing.T) {
			plane := agenttest.NewPlane(t)
			if !away {
				plane.Start()
			}
			a := agenttest.New(t, plane, "binaryPath: ./envoy.sh", "OUTPUT_CERTS=out")
			script := "#!/bin/sh\nfor f in key.pem cert-chain.pem root-cert.pem; do if [ -s out/$f ]; then echo \"$f exists\"; else echo \"$f is missing\"; fi; done >&2\nexec " + envoytest.Binary(t) + " \"$@\"\n"
			a.Write("envoy.sh", []byte(script))
			if err := os.Chmod(filepath.Join(a.Dir, "envoy.sh"), 0o755); err != nil {
				t.Fatal(err)
			}
			a.Start()
			want := "exists"
			if away {
				want = "is missing"
			}
			agenttest.Until(t, "Envoy was started", func() error {
				for _, file := range []string{"key.pem", "cert-chain.pem", "root-cert.pem"} {
					if !strings.Contains(a.Output(), file+" "+want) {
						return fmt.Errorf("no line %s %s", file, want)
					}
				}
				return nil
			})
			if away {
				plane.Start()
			}
			agenttest.Until(t, "the proxy is ready", a.Ready)
		})
	}
}

// TestACertificateThatIsMountedLaterReachesEnvoy: it replaces that of the CA, which is not asked any more.
func TestACertificateThatIsMountedLaterReachesEnvoy(t *testing.T) {
	plane := agenttest.NewPlane(t)
	plane.Give(agenttest.ListenerType, map[string]proto.Message{"tls": tlsListener(t, agenttest.Port(t))})
	plane.Start()
	a := agenttest.New(t, plane, "")
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	s := testSecret(t)
	for name, text := range map[string][]byte{"certificates.pem": s.Chain, "private_key.pem": s.Key, "ca_certificates.pem": s.Roots} {
		a.Write("var/run/secrets/workload-spiffe-credentials/"+name, text)
	}
	agenttest.Until(t, "Envoy has the mounted certificate", func() error {
		_, body, err := a.Get(a.Admin, "/certs")
		if err == nil && !strings.Contains(body, "spiffe://elsewhere.example/ns/n/sa/s") {
			err = errors.New(body)
		}
		return err
	})
}

// TestEnvoyTakesSecretsInBothVariants: an unknown name is an error of that name. Envoy rejects no response, and gets the other
// secrets and their successors.
func TestEnvoyTakesSecretsInBothVariants(t *testing.T) {
	plane := agenttest.NewPlane(t)
	a := agenttest.New(t, plane, "")
	root, err := os.ReadFile(plane.RootFile)
	if err != nil {
		t.Fatal(err)
	}
	clusters := map[string]proto.Message{}
	variants := map[string]corev3.ApiConfigSource_ApiType{"whole": corev3.ApiConfigSource_GRPC, "delta": corev3.ApiConfigSource_DELTA_GRPC}
	for name, variant := range variants {
		a.Write(name+".pem", root)
		clusters[name] = secretCluster(t, name, "file-root:"+filepath.Join(a.Dir, name+".pem"), variant)
		clusters[name+"-unknown"] = secretCluster(t, name+"-unknown", "nosuch-"+name, variant)
		clusters[name+"-roots"] = secretCluster(t, name+"-roots", "ROOTCA", variant)
	}
	plane.Give(agenttest.ClusterType, clusters)
	plane.Start()
	a.Start()
	agenttest.Until(t, "the proxy is ready", a.Ready)
	contain := func(want string) {
		t.Helper()
		agenttest.Until(t, "Envoy has the secrets", func() error {
			_, body, err := a.Get(a.Admin, "/config_dump?resource=dynamic_active_secrets")
			for name := range variants {
				if !strings.Contains(body, `"name": "file-root:`+filepath.Join(a.Dir, name+".pem")) || strings.Count(body, want) < len(variants) {
					return errors.Join(err, errors.New(body))
				}
			}
			return err
		})
	}
	contain(base64.StdEncoding.EncodeToString(root))
	next := testSecret(t).Roots
	for name := range variants {
		a.Write(name+".pem", next)
	}
	contain(base64.StdEncoding.EncodeToString(next))
	for name := range variants {
		if out := a.Output(); !strings.Contains(out, "nosuch-"+name) || strings.Contains(out, "Envoy rejected a secret") {
			t.Errorf("the log does not name nosuch-%s, or Envoy rejected a secret", name)
		}
	}
	_, stats, err := a.Get(a.Admin, "/stats?usedonly&filter=sds.*update_(rejected|failure)")
	if err != nil || strings.TrimSpace(stats) != "" {
		t.Errorf("statistics: %s, error %v", stats, err)
	}
}
