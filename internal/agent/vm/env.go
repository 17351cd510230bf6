package vm

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/settings"
)

// maxEnv bounds an environment file, in bytes.
const maxEnv = 1 << 20

// FormatEnv returns the text of an environment file: one NAME='value' in a line, sorted.
func FormatEnv(env map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&b, "%s='%s'\n", name, strings.ReplaceAll(env[name], "'", `'\''`))
	}
	return b.String()
}

// ParseEnv reads an environment file as a shell does that sources it: NAME=VALUE, with quotes, backslashes, comments and export.
// Commands and the expansion of variables are refused: this program runs none.
func ParseEnv(text string) (map[string]string, error) {
	if len(text) > maxEnv {
		return nil, fmt.Errorf("%d bytes, want at most %d", len(text), maxEnv)
	}
	if i := strings.IndexByte(text, 0); i >= 0 {
		return nil, errors.New("it has a zero byte")
	}
	p := &envParser{text: text, line: 1}
	env := map[string]string{}
	for p.skip() {
		line := p.line
		name, value, err := p.assignment()
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		env[name] = value
	}
	return env, nil
}

// envParser reads an environment file from at.
type envParser struct {
	text     string
	at, line int
}

// next returns the next byte, and 0 at the end.
func (p *envParser) next() byte {
	if p.at == len(p.text) {
		return 0
	}
	c := p.text[p.at]
	p.at++
	if c == '\n' {
		p.line++
	}
	return c
}

// skip passes over what is between two assignments, and reports whether there is another one.
func (p *envParser) skip() bool {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\r', '\n', ';':
			p.next()
		case '#':
			for c := p.next(); c != '\n' && c != 0; {
				c = p.next()
			}
		default:
			return true
		}
	}
	return false
}

func (p *envParser) assignment() (name, value string, err error) {
	rest := p.text[p.at:]
	if after, ok := strings.CutPrefix(rest, "export "); ok {
		rest = strings.TrimLeft(after, " \t")
		p.at = len(p.text) - len(rest)
	}
	n := strings.IndexFunc(rest, func(r rune) bool {
		return !(r == '_' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9')
	})
	if n <= 0 || rest[n] != '=' || rest[0] >= '0' && rest[0] <= '9' {
		word, _, _ := strings.Cut(rest, "\n")
		return "", "", fmt.Errorf("%.60q: want NAME=VALUE", word)
	}
	name = rest[:n]
	p.at += n + 1
	value, err = p.value()
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return name, value, err
}

var (
	errExpansion = errors.New("$ and ` stand for variables and commands, which are not expanded: want the value in single quotes")
	errQuote     = errors.New("a quote is not closed")
)

// value reads a value up to the end of the line.
func (p *envParser) value() (string, error) {
	var b strings.Builder
	for {
		switch c := p.next(); c {
		case 0, '\n', ';':
			return b.String(), nil
		case ' ', '\t', '\r':
			for p.at < len(p.text) && strings.IndexByte(" \t\r", p.text[p.at]) >= 0 {
				p.at++
			}
			if p.at < len(p.text) && strings.IndexByte("\n;#", p.text[p.at]) < 0 {
				return "", errors.New("there is a word behind the value: want the value in quotes")
			}
			return b.String(), nil
		case '\'':
			end := strings.IndexByte(p.text[p.at:], '\'')
			if end < 0 {
				return "", errQuote
			}
			quoted := p.text[p.at : p.at+end]
			b.WriteString(quoted)
			p.line += strings.Count(quoted, "\n")
			p.at += end + 1
		case '"':
			if err := p.double(&b); err != nil {
				return "", err
			}
		case '\\':
			if c := p.next(); c != 0 && c != '\n' {
				b.WriteByte(c)
			}
		case '$', '`':
			return "", errExpansion
		case '(', ')', '<', '>', '|', '&':
			return "", fmt.Errorf("%q has a meaning for shells: want the value in single quotes", c)
		default:
			b.WriteByte(c)
		}
	}
}

// double reads what is between double quotes.
func (p *envParser) double(b *strings.Builder) error {
	for {
		switch c := p.next(); c {
		case 0:
			return errQuote
		case '"':
			return nil
		case '$', '`':
			return errExpansion
		case '\\':
			switch c := p.next(); c {
			case 0:
				return errQuote
			case '\n':
			case '$', '`', '"', '\\':
				b.WriteByte(c)
			default:
				b.WriteByte('\\')
				b.WriteByte(c)
			}
		default:
			b.WriteByte(c)
		}
	}
}

// ParseHosts reads lines of /etc/hosts. Other lines than addresses with names are an error.
func ParseHosts(text string) ([]Host, error) {
	var out []Host
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		address, err := netip.ParseAddr(fields[0])
		if err != nil || len(fields) < 2 || n > 1000 {
			return nil, fmt.Errorf("line %d: %.60q: want an address and names", n, line)
		}
		for _, name := range fields[1:] {
			out = append(out, Host{address.String(), name})
		}
	}
	return out, nil
}

// Marks of the lines that join adds to HostsFile.
const (
	hostsBegin = "# pilot-agent join: begin"
	hostsEnd   = "# pilot-agent join: end"
)

// WithHosts returns the text of HostsFile with the lines of the hosts in place of those that an earlier join added; without
// hosts there are none. All other lines stay as they are.
func WithHosts(text string, hosts []Host) string {
	var b strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		switch strings.TrimSpace(line) {
		case hostsBegin:
			inside = true
		case hostsEnd:
			inside = false
		default:
			if !inside {
				b.WriteString(line)
			}
		}
	}
	out := b.String()
	if len(hosts) == 0 {
		return out
	}
	if out != "" && !strings.HasSuffix(out, "\n") {
		out += "\n"
	}
	out += hostsBegin + "\n"
	for _, h := range hosts {
		out += h.Address + " " + h.Name + "\n"
	}
	return out + hostsEnd + "\n"
}

// Proxy is how pilot-agent proxy is started.
type Proxy struct {
	// Args follow the name of the program; Env is the whole environment.
	Args []string
	Env  map[string]string
	// Capture says that the rules of capture are applied before, with Env and CaptureArgs.
	Capture     bool
	CaptureArgs []string
	// User runs the proxy. Root says that it keeps the user root, with the group of User: transparent sockets need that.
	User string
	Root bool
}

// Settings are the values of settings.AgentStart.
type Settings struct {
	user, flags, ip, service, namespace string
	customRules, transparent            bool
	canonicalName, canonicalRevision    string
	// discovery is the address of discovery; empty if no variable says it.
	discovery string
}

// ReadSettings reads settings.AgentStart. Its result is for Start.
func ReadSettings(v *settings.Values) Settings {
	s := Settings{
		user: v.TextOr("EXEC_USER", ""), flags: v.Text("ISTIO_AGENT_FLAGS"), ip: v.Text("ISTIO_SVC_IP"), service: v.Text("ISTIO_SERVICE"), namespace: v.Text("ISTIO_NAMESPACE"),
		customRules: v.Bool("ISTIO_CUSTOM_IP_TABLES"), transparent: v.Enum("ISTIO_INBOUND_INTERCEPTION_MODE") == "TPROXY",
		canonicalName: v.Text("CANONICAL_SERVICE"), canonicalRevision: v.Text("CANONICAL_REVISION"), discovery: v.Text("PILOT_ADDRESS"),
	}
	port, namespace := v.Text("ISTIO_PILOT_PORT"), v.Text("ISTIO_SYSTEM_NAMESPACE")
	if s.discovery == "" && port+namespace != "" {
		s.discovery = "istiod." + cmp.Or(namespace, mesh.DefaultRootNamespace) + ".svc:" + cmp.Or(port, "15012")
	}
	return s
}

// Start decides how the proxy is started from the environment, which has the variables of sidecar.env and, over them, those of
// cluster.env. verb is that of istio-start.sh: empty, run, init or clean; args are what follows init. Notes say which variables of
// Istio's script have no effect here. [agent V3, V4]
func Start(env map[string]string, verb string, args []string) (Proxy, []string, error) {
	v := settings.Read(nil, env, settings.AgentStart)
	s := ReadSettings(v)
	if err := v.Err(); err != nil {
		return Proxy{}, nil, err
	}
	p := Proxy{Env: maps.Clone(env), User: cmp.Or(s.user, env["ENVOY_USER"], ProxyUser), CaptureArgs: args, Root: s.transparent}
	if p.Env == nil {
		p.Env = map[string]string{}
	}
	set := func(name, value string) {
		if p.Env[name] == "" && value != "" {
			p.Env[name] = value
		}
	}
	switch verb {
	case "", "init":
		p.Capture = verb == "init" || !s.customRules
	case "run", "clean":
	default:
		return p, nil, fmt.Errorf("invalid argument %q: want run, init, clean or none", verb)
	}
	if verb != "init" && len(args) > 0 {
		return p, nil, fmt.Errorf("unexpected arguments %q: only init takes some, behind --", args)
	}
	// The rules exclude connections of the user that the proxy is run as.
	set("ENVOY_USER", p.User)
	set("INSTANCE_IP", s.ip)
	set("POD_NAMESPACE", s.namespace)
	set("PROV_CERT", "./"+CertDir)
	set("OUTPUT_CERTS", "./"+CertDir)
	set("CA_ADDR", s.discovery)
	if s.discovery != "" {
		set("PROXY_CONFIG", "discoveryAddress: "+s.discovery+"\n")
	}
	if s.transparent {
		set("ISTIO_META_INTERCEPTION_MODE", "TPROXY")
		p.Env["INBOUND_INTERCEPTION_MODE"] = "TPROXY"
	}
	if err := addLabels(p.Env, map[string]string{"service.istio.io/canonical-name": s.canonicalName, "service.istio.io/canonical-revision": s.canonicalRevision}); err != nil {
		return p, nil, err
	}
	p.Args = []string{"proxy", "sidecar"}
	if s.service != "" {
		p.Args = append(p.Args, "--serviceCluster", s.service)
	}
	p.Args = append(p.Args, strings.Fields(s.flags)...)
	return p, v.WithoutEffect(), nil
}

// addLabels adds labels to those of the environment, unless it has others of the same names.
func addLabels(env, more map[string]string) error {
	labels := map[string]any{}
	if text := env["ISTIO_METAJSON_LABELS"]; text != "" {
		if err := json.Unmarshal([]byte(text), &labels); err != nil {
			return fmt.Errorf("ISTIO_METAJSON_LABELS: %w", err)
		}
	}
	changed := false
	for label, value := range more {
		if _, ok := labels[label]; !ok && value != "" {
			labels[label], changed = value, true
		}
	}
	if !changed {
		return nil
	}
	text, err := json.Marshal(labels)
	env["ISTIO_METAJSON_LABELS"] = string(text)
	return err
}
