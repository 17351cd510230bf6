package inject

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pilothouse/pilothouse/internal/yamltree"
)

//go:embed values.yaml
var defaultValues []byte

// values are the settings of the ConfigMap's key "values" that the built-in templates and the injector
// read. Templates see all values, also those that are not here.
type values struct {
	Revision string     `json:"revision"`
	Global   global     `json:"global"`
	Gateways podDefault `json:"gateways"`
	Pilot    struct {
		CNI struct {
			Enabled  bool   `json:"enabled"`
			Provider string `json:"provider"`
		} `json:"cni"`
	} `json:"pilot"`
	Webhook struct {
		RewriteProbes    bool              `json:"rewriteAppHTTPProbe"`
		DefaultTemplates []string          `json:"defaultTemplates"`
		Templates        map[string]string `json:"templates"`
		ByDefault        bool              `json:"enableNamespacesByDefault"`
	} `json:"sidecarInjectorWebhook"`
}

type podDefault struct {
	SecurityContext map[string]any `json:"securityContext"`
	SeccompProfile  map[string]any `json:"seccompProfile"`
}

type global struct {
	CAAddress        string    `json:"caAddress"`
	Hub              string    `json:"hub"`
	Tag              scalar    `json:"tag"`
	Variant          string    `json:"variant"`
	ImagePullPolicy  string    `json:"imagePullPolicy"`
	ImagePullSecrets []string  `json:"imagePullSecrets"`
	IstioNamespace   string    `json:"istioNamespace"`
	LogAsJSON        bool      `json:"logAsJson"`
	MeshID           string    `json:"meshID"`
	MountMTLSCerts   bool      `json:"mountMtlsCerts"`
	NativeNftables   bool      `json:"nativeNftables"`
	Network          string    `json:"network"`
	CertProvider     string    `json:"pilotCertProvider"`
	TrustBundleName  string    `json:"trustBundleName"`
	Proxy            proxy     `json:"proxy"`
	ProxyInit        proxyInit `json:"proxy_init"`
	Logging          struct {
		Level string `json:"level"`
	} `json:"logging"`
	MultiCluster struct {
		ClusterName string `json:"clusterName"`
	} `json:"multiCluster"`
	SDS struct {
		Token struct {
			Audience string `json:"aud"`
		} `json:"token"`
	} `json:"sds"`
	STS struct {
		Port int32 `json:"servicePort"`
	} `json:"sts"`
}

type proxyInit struct {
	Image string `json:"image"`
	Force bool   `json:"forceApplyIptables"`
}

type proxy struct {
	AutoInject           string         `json:"autoInject"`
	ClusterDomain        string         `json:"clusterDomain"`
	ComponentLogLevel    string         `json:"componentLogLevel"`
	LogLevel             string         `json:"logLevel"`
	OutlierLogPath       string         `json:"outlierLogPath"`
	Image                string         `json:"image"`
	IncludeIPRanges      string         `json:"includeIPRanges"`
	ExcludeIPRanges      string         `json:"excludeIPRanges"`
	IncludeInboundPorts  scalar         `json:"includeInboundPorts"`
	ExcludeInboundPorts  scalar         `json:"excludeInboundPorts"`
	IncludeOutboundPorts scalar         `json:"includeOutboundPorts"`
	ExcludeOutboundPorts scalar         `json:"excludeOutboundPorts"`
	Privileged           bool           `json:"privileged"`
	CapNetBindService    scalar         `json:"capNetBindService"`
	ReadinessDelay       int32          `json:"readinessInitialDelaySeconds"`
	ReadinessPeriod      int32          `json:"readinessPeriodSeconds"`
	ReadinessFailures    int32          `json:"readinessFailureThreshold"`
	Resources            map[string]any `json:"resources"`
	SeccompProfile       map[string]any `json:"seccompProfile"`
	Lifecycle            map[string]any `json:"lifecycle"`
	StatusPort           int32          `json:"statusPort"`
	Hold                 bool           `json:"holdApplicationUntilProxyStarts"`
	StartupProbe         struct {
		Enabled  bool  `json:"enabled"`
		Failures int32 `json:"failureThreshold"`
	} `json:"startupProbe"`
}

// scalar is a text that YAML may hold as a number or a boolean.
type scalar string

// UnmarshalJSON takes a string, a number or a boolean.
func (s *scalar) UnmarshalJSON(text []byte) error {
	var str string
	switch {
	case string(text) == "null":
		*s = ""
	case text[0] == '"':
		if err := json.Unmarshal(text, &str); err != nil {
			return err
		}
		*s = scalar(str)
	case text[0] == '{' || text[0] == '[':
		return fmt.Errorf("want a string, not %s", text)
	default:
		*s = scalar(text)
	}
	return nil
}

// parseValues merges texts of values over the defaults, and returns them as templates see them, and typed.
func parseValues(texts ...string) (map[string]any, *values, error) {
	all := map[string]any{}
	for _, text := range append([]string{string(defaultValues)}, texts...) {
		tree, err := parseMapping("values", text)
		if err != nil {
			return nil, nil, err
		}
		if tree == nil {
			continue
		}
		if f := yamltree.Into(tree, "", &values{}); f != nil { // the error names the line
			return nil, nil, fmt.Errorf("values: %w", f)
		}
		var m map[string]any
		if err := json.Unmarshal(tree.JSON(), &m); err != nil {
			return nil, nil, fmt.Errorf("values: %w", err)
		}
		mergeMaps(all, m)
	}
	merged, err := json.Marshal(all)
	if err != nil {
		return nil, nil, fmt.Errorf("values: %w", err)
	}
	v := &values{}
	if err := json.Unmarshal(merged, v); err != nil {
		return nil, nil, fmt.Errorf("values: %w", err)
	}
	return all, v, nil
}

// parseMapping parses one YAML or JSON document that is a mapping; nil if the text has none.
func parseMapping(what, text string) (*yamltree.Tree, error) {
	var root *yamltree.Tree
	for _, d := range yamltree.Parse([]byte(text), false) {
		switch {
		case d.Fault != nil:
			return nil, fmt.Errorf("%s: %w", what, d.Fault)
		case d.Root.IsNull():
		case root != nil:
			return nil, fmt.Errorf("%s: line %d: a second document; want one", what, d.Line)
		case d.Root.Kind != yamltree.Mapping:
			return nil, fmt.Errorf("%s: line %d: want a mapping, not %s", what, d.Line, d.Root.Kind)
		default:
			root = d.Root
		}
	}
	return root, nil
}

// mergeMaps merges src into dst: mappings by key, all else is replaced.
func mergeMaps(dst, src map[string]any) {
	for k, v := range src {
		to, ok := dst[k].(map[string]any)
		from, both := v.(map[string]any)
		if ok && both {
			mergeMaps(to, from)
			continue
		}
		if v != nil {
			dst[k] = v
		}
	}
}

// caAddress is the address of the CA for a revision.
func (g *global) caAddress(revision string) string {
	if g.CAAddress != "" {
		return g.CAAddress
	}
	name := "istiod"
	if revision != "" && revision != defaultRevision {
		name += "-" + revision
	}
	return name + "." + g.IstioNamespace + ".svc:15012"
}

// image returns the image of the proxy, of an image type that is appended to the tag.
func (g *global) image(name, imageType string) string {
	if strings.ContainsAny(name, "/") {
		return name
	}
	if hub := strings.TrimSuffix(g.Hub, "/"); hub != "" {
		name = hub + "/" + name
	}
	tag := string(g.Tag)
	if imageType != "" {
		for _, known := range []string{"distroless", "debug"} {
			tag = strings.TrimSuffix(tag, "-"+known)
		}
		if imageType != "default" {
			tag = strings.TrimPrefix(tag+"-"+imageType, "-")
		}
	}
	if tag == "" {
		return name
	}
	return name + ":" + tag
}
