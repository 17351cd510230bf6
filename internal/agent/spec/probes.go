package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/pilothouse/pilothouse/internal/printable"
)

// Probes say how the agent answers the probes and the hooks of the application, in place of the kubelet. [agent E29, H9]
type Probes struct {
	// Probers are the probes and hooks by the path at the status port.
	Probers map[string]Prober
	// Localhost probes the application at localhost instead of the node's primary address.
	Localhost bool
	// HTTP2 allows HTTP/2 for probes over HTTPS. KeepAlive keeps the connections of HTTP probes open.
	HTTP2, KeepAlive bool
}

// Prober is one probe or hook. Exactly one of HTTP, TCPPort and GRPC is set.
type Prober struct {
	HTTP *HTTPProbe
	// TCPPort is the port to which a connection is opened, 1–65535.
	TCPPort int
	GRPC    *GRPCProbe
	// Timeout bounds the probe; 0 means that only the client does.
	Timeout time.Duration
}

// HTTPProbe is a GET.
type HTTPProbe struct {
	Port int
	TLS  bool
	// Host is where the kubelet would connect; empty for the Pod. It is only sent as the Host.
	Host string
	// Target is the path and the query; it begins with a slash.
	Target  string
	Headers []Header
}

// Header is a field of an HTTP request, valid in both parts.
type Header struct{ Name, Value string }

// GRPCProbe is a call of grpc.health.v1.Health/Check for a service, which may be empty.
type GRPCProbe struct {
	Port    int
	Service string
}

const (
	probersVariable = "ISTIO_KUBE_APP_PROBERS"
	// hooks is the prefix of the paths of hooks; all others are probes.
	hooks = "/app-lifecycle/"
	// defaultProbeTimeout is Kubernetes' for probes.
	defaultProbeTimeout = time.Second
)

// proberPath matches the path of a probe or a hook.
const proberPath = `^/(app-health/[^/]+/(livez|readyz|startupz)|app-lifecycle/[^/]+/(prestopz|poststartz))$`

// proberJSON is a probe or a hook as injection writes it: the form of Kubernetes, with ports as numbers.
type proberJSON struct {
	HTTPGet *struct {
		Path        string       `json:"path"`
		Port        probePort    `json:"port"`
		Host        string       `json:"host"`
		Scheme      string       `json:"scheme"`
		HTTPHeaders []headerJSON `json:"httpHeaders"`
	} `json:"httpGet"`
	TCPSocket *struct {
		Port probePort `json:"port"`
		Host string    `json:"host"`
	} `json:"tcpSocket"`
	GRPC *struct {
		Port    probePort `json:"port"`
		Service string    `json:"service"`
	} `json:"grpc"`
	TimeoutSeconds int32 `json:"timeoutSeconds"`
}

type headerJSON struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// probePort is a port as a number: the agent does not know the names of the Pod's ports.
type probePort int

// UnmarshalJSON returns an error for anything but a number of 1–65535.
func (p *probePort) UnmarshalJSON(text []byte) error {
	var n int
	if err := json.Unmarshal(text, &n); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("invalid port %s: want a number of 1–65535", printable.Quote(string(text), 100))
	}
	*p = probePort(n)
	return nil
}

// probes reads what the agent probes. statusPort is the agent's own.
func (b *builder) probes(statusPort int) Probes {
	p := Probes{
		Localhost: b.set.Bool("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION"),
		HTTP2:     b.set.Bool("ISTIO_ENABLE_HTTP2_PROBING"),
		KeepAlive: b.set.Bool("ENABLE_PROBE_KEEPALIVE_CONNECTIONS"),
	}
	text := b.set.Text(probersVariable)
	if text == "" {
		return p
	}
	p.Probers = map[string]Prober{}
	valid := regexp.MustCompile(proberPath)
	err := eachMember(text, func(path string, value json.RawMessage) error {
		if !valid.MatchString(path) {
			return errors.New("invalid key: want /app-health/CONTAINER/ and livez, readyz or startupz, or /app-lifecycle/CONTAINER/ and prestopz or poststartz")
		}
		if _, twice := p.Probers[path]; twice {
			return errors.New("the key occurs twice: want one probe for each path")
		}
		prober, ignored, err := parseProber(path, value, statusPort)
		if err != nil {
			return err
		}
		if ignored != "" {
			b.warn("%s: %s: %s has no effect: the Pod itself is probed", probersVariable, path, ignored)
		}
		p.Probers[path] = prober
		return nil
	})
	if err != nil {
		b.set.Fail(probersVariable, "%w", err)
	}
	return p
}

// eachMember calls f for the members of a JSON object, in their order. Its errors name the key.
func eachMember(text string, f func(key string, value json.RawMessage) error) error {
	const want = "want an object with a probe for each path, as injection writes it"
	d := json.NewDecoder(strings.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(errors.New("parse JSON: "+want), err)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return fmt.Errorf("parse JSON: %w: %s", err, want)
		}
		name, _ := key.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("parse JSON: key %s: %w: %s", printable.Quote(name, 200), err, want)
		}
		if err := f(name, value); err != nil {
			return fmt.Errorf("key %s: %w", printable.Quote(name, 200), err)
		}
	}
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("parse JSON: %w: %s", err, want)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("parse JSON: there is text after the object: " + want)
	}
	return nil
}

// parseProber parses one probe. It also returns the name of a field that has no effect.
func parseProber(path string, value json.RawMessage, statusPort int) (p Prober, ignored string, err error) {
	var in proberJSON
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return p, "", fmt.Errorf("parse probe: %w: want httpGet, tcpSocket or grpc, and timeoutSeconds", err)
	}
	if in.TimeoutSeconds < 0 {
		return p, "", fmt.Errorf("invalid timeoutSeconds %d: want 0 or more", in.TimeoutSeconds)
	}
	p.Timeout = time.Duration(in.TimeoutSeconds) * time.Second
	if p.Timeout == 0 && !strings.HasPrefix(path, hooks) {
		p.Timeout = defaultProbeTimeout
	}
	actions := 0
	if get := in.HTTPGet; get != nil {
		actions++
		if p.HTTP, err = httpProbe(get.Path, get.Scheme, get.Host, int(get.Port), get.HTTPHeaders); err != nil {
			return p, "", fmt.Errorf("httpGet: %w", err)
		}
		if p.HTTP.Port == statusPort && IsProberPath(p.HTTP.Target) {
			return p, "", fmt.Errorf("httpGet: the agent would probe itself at port %d: want the application's own path and port; injection may have happened twice", statusPort)
		}
	}
	if tcp := in.TCPSocket; tcp != nil {
		actions++
		if p.TCPPort = int(tcp.Port); p.TCPPort == 0 {
			return p, "", errors.New("tcpSocket: no port: want 1–65535")
		}
		if tcp.Host != "" {
			ignored = "tcpSocket.host"
		}
	}
	if call := in.GRPC; call != nil {
		actions++
		if p.GRPC = (&GRPCProbe{Port: int(call.Port), Service: call.Service}); call.Port == 0 {
			return p, "", errors.New("grpc: no port: want 1–65535")
		}
	}
	if actions != 1 {
		return p, "", fmt.Errorf("%d of httpGet, tcpSocket and grpc: want exactly one", actions)
	}
	return p, ignored, nil
}

// IsProberPath reports whether the agent answers a path, or the target of a request, by a probe.
func IsProberPath(target string) bool {
	return strings.HasPrefix(target, "/app-health/") || strings.HasPrefix(target, hooks)
}

func httpProbe(path, scheme, host string, port int, headers []headerJSON) (*HTTPProbe, error) {
	if port == 0 {
		return nil, errors.New("no port: want 1–65535")
	}
	if scheme != "" && scheme != "HTTP" && scheme != "HTTPS" {
		return nil, fmt.Errorf("invalid scheme %s: want HTTP or HTTPS", printable.Quote(scheme, 100))
	}
	target, err := httpTarget(path)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("/?#@\\", r) }) {
		return nil, fmt.Errorf("invalid host %s: want a name or an IP address", printable.Quote(host, 100))
	}
	p := &HTTPProbe{Port: port, TLS: scheme == "HTTPS", Host: host, Target: target}
	for _, h := range headers {
		if h.Name != ":authority" && !validName(h.Name) {
			return nil, fmt.Errorf("invalid name of a header %s: want letters, digits and hyphens", printable.Quote(h.Name, 100))
		}
		if strings.ContainsFunc(h.Value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return nil, fmt.Errorf("invalid value of header %s: want no control characters", h.Name)
		}
		p.Headers = append(p.Headers, Header(h))
	}
	return p, nil
}

// httpTarget returns a path, with or without a query, as the target of a request, which begins with a slash.
func httpTarget(path string) (string, error) {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u, err := url.Parse("http://host" + path)
	if err != nil || u.Host != "host" || u.Fragment != "" {
		return "", fmt.Errorf("invalid path %s: want a path, and a query if needed", printable.Quote(path, 200))
	}
	return u.RequestURI(), nil
}

// validName reports whether a text is a token, of which HTTP's field names consist.
func validName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}
