package hotrestart_test

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pilothouse/pilothouse/internal/agent"
	"github.com/pilothouse/pilothouse/test/agenttest"
	"github.com/pilothouse/pilothouse/test/fakeenvoy"
)

// outage is an agent whose CA goes away and comes back. Its certificates are renewed after 6 s and last for five minutes.
type outage struct {
	*agenttest.Process
	t     *testing.T
	plane *agenttest.Plane
	https string
}

// unavailable is the CA's answer in an outage.
var unavailable = status.Error(codes.Unavailable, "maintenance")

// startOutage starts the agent with a CA that signs its first certificate and no other.
func startOutage(t *testing.T) *outage {
	t.Helper()
	// The copy of the certificate is kept in memory.
	memory, err := os.MkdirTemp("/dev/shm", "pilothouse-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(memory); err != nil {
			t.Error(err)
		}
	})
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("served")) }))
	t.Cleanup(app.Close)
	o := &outage{t: t, plane: agenttest.NewPlane(t), https: fakeenvoy.FreeAddress(t)}
	o.plane.Lifetime(5 * time.Minute)
	o.plane.RefuseAfter(1, unavailable)
	o.plane.Give(agenttest.ClusterType, map[string]proto.Message{"app": cluster(t, "app", strings.TrimPrefix(app.URL, "http://"))})
	o.plane.Give(agenttest.ListenerType, map[string]proto.Message{"https": httpListener(t, "https", o.https, sdsDefault)})
	o.plane.Start()
	o.Process = agenttest.New(t, o.plane, "", "SECRET_GRACE_PERIOD_RATIO=0.98", "SECRET_GRACE_PERIOD_RATIO_JITTER=0", "IDENTITY_COPY_DIR="+memory)
	o.Start()
	agenttest.Until(t, "the proxy is ready", o.Ready)
	return o
}

// serial makes a request and returns the serial number of the certificate that Envoy served it with.
func (o *outage) serial() (string, error) {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: agenttest.Bound}, "tcp", o.https, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(agenttest.Bound)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	text := make([]byte, len("HTTP/1.1 200"))
	if _, err := io.ReadFull(conn, text); err != nil || string(text) != "HTTP/1.1 200" {
		return "", errors.Join(err, fmt.Errorf("answer %q", text))
	}
	return fmt.Sprintf("%x", conn.ConnectionState().PeerCertificates[0].SerialNumber), nil
}

// serves checks that Envoy serves with a certificate.
func (o *outage) serves(serial string) {
	o.t.Helper()
	if got, err := o.serial(); err != nil || got != serial {
		o.t.Errorf("Envoy serves with certificate %s, %v; want %s", got, err, serial)
	}
}

// identity runs pilot-agent identity.
func (o *outage) identity() (r agent.IdentityReport, err error) {
	out, err := exec.Command(o.Cmd.Path, "identity", "--statusPort", o.Status, "-o", "json").Output()
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(out, &r)
}

// awaitFailure waits until the CA has been asked in vain.
func (o *outage) awaitFailure() {
	o.t.Helper()
	agenttest.Until(o.t, "a renewal fails", func() error {
		r, err := o.identity()
		if err == nil && (r.Failures == 0 || !strings.Contains(r.Problem, "maintenance")) {
			err = fmt.Errorf("%d failures, %q", r.Failures, r.Problem)
		}
		return err
	})
}

// awaitRenewal waits until Envoy serves with another certificate, and returns it.
func (o *outage) awaitRenewal(old string) (serial string) {
	o.t.Helper()
	agenttest.Until(o.t, "Envoy serves with a new certificate", func() (err error) {
		if serial, err = o.serial(); err == nil && serial == old {
			err = errors.New("it is the old one")
		}
		return err
	})
	return serial
}

// TestCAOutage takes the CA away across the time of a renewal. Envoy, and then the agent, are restarted meanwhile; the
// next agent has no token.
func TestCAOutage(t *testing.T) {
	t.Parallel()
	o := startOutage(t)
	first, err := o.serial()
	if err != nil {
		t.Fatal(err)
	}
	o.awaitFailure()
	o.serves(first)
	pid, err := o.Envoy()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	agenttest.Until(t, "another Envoy is ready", func() error {
		if now, err := o.Envoy(); err != nil || now == pid {
			return fmt.Errorf("process %d, %w", now, err)
		}
		return o.Ready()
	})
	o.serves(first)
	o.plane.RefuseAfter(1, unavailable)
	second := o.awaitRenewal(first)

	next := o.Again()
	o.Stop()
	// As on a virtual machine whose token has ended.
	if err := os.Remove(filepath.Join(o.Dir, "var/run/secrets/tokens/istio-token")); err != nil {
		t.Fatal(err)
	}
	o.Process = next
	o.Start()
	agenttest.Until(t, "the proxy of the next agent is ready", o.Ready)
	o.serves(second)
	if r, err := o.identity(); err != nil || r.Held == nil || !r.Held.Restored || r.Held.Serial != second || r.Next.IsZero() {
		t.Errorf("the next agent has %+v, %v", r, err)
	}
	o.awaitFailure()
	o.serves(second)
	if err := o.Ready(); err != nil {
		t.Errorf("not ready while the CA is away: %v", err)
	}
	o.plane.Refuse(nil)
	o.awaitRenewal(second)
	if _, md := o.plane.Signed(); len(md.Get("authorization")) != 0 {
		t.Error("the renewal was authenticated by a token")
	}
	if r, err := o.identity(); err != nil || r.Held.Restored || r.Failures != 0 || r.Copy == nil || r.Copy.Written.IsZero() || r.Source != "CA "+o.plane.Addr ||
		r.Token == nil || r.Token.Problem == "" {
		t.Errorf("after the renewal: %+v, %v", r, err)
	}
}
