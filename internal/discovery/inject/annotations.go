package inject

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// The annotations that injection reads. [control-plane 1.15.9]
const (
	annotationAgentLog      = "sidecar.istio.io/agentLogLevel"
	annotationBootstrap     = "sidecar.istio.io/bootstrapOverride"
	annotationCapBind       = "sidecar.istio.io/capNetBindService"
	annotationComponentLog  = "sidecar.istio.io/componentLogLevel"
	annotationMode          = "sidecar.istio.io/interceptionMode"
	annotationLog           = "sidecar.istio.io/logLevel"
	annotationNative        = "sidecar.istio.io/nativeSidecar"
	annotationCPU           = "sidecar.istio.io/proxyCPU"
	annotationCPULimit      = "sidecar.istio.io/proxyCPULimit"
	annotationMemory        = "sidecar.istio.io/proxyMemory"
	annotationMemoryLimit   = "sidecar.istio.io/proxyMemoryLimit"
	annotationImage         = "sidecar.istio.io/proxyImage"
	annotationImageType     = "sidecar.istio.io/proxyImageType"
	annotationProbes        = "sidecar.istio.io/rewriteAppHTTPProbers"
	annotationVolume        = "sidecar.istio.io/userVolume"
	annotationVolumeMount   = "sidecar.istio.io/userVolumeMount"
	annotationStatusPort    = "status.sidecar.istio.io/port"
	annotationDelay         = "readiness.status.sidecar.istio.io/initialDelaySeconds"
	annotationPeriod        = "readiness.status.sidecar.istio.io/periodSeconds"
	annotationFailures      = "readiness.status.sidecar.istio.io/failureThreshold"
	annotationReadyPorts    = "readiness.status.sidecar.istio.io/applicationPorts"
	annotationIncludeRanges = "traffic.sidecar.istio.io/includeOutboundIPRanges"
	annotationExcludeRanges = "traffic.sidecar.istio.io/excludeOutboundIPRanges"
	annotationIncludeIn     = "traffic.sidecar.istio.io/includeInboundPorts"
	annotationExcludeIn     = "traffic.sidecar.istio.io/excludeInboundPorts"
	annotationIncludeOut    = "traffic.sidecar.istio.io/includeOutboundPorts"
	annotationExcludeOut    = "traffic.sidecar.istio.io/excludeOutboundPorts"
	annotationInterfaces    = "traffic.sidecar.istio.io/excludeInterfaces"
	annotationKubeVirt      = "traffic.sidecar.istio.io/kubevirtInterfaces"
	annotationReroute       = "istio.io/reroute-virtual-interfaces"
	annotationConfig        = "proxy.istio.io/config"
	annotationOverrides     = "proxy.istio.io/overrides"
	annotationStatus        = "sidecar.istio.io/status"
	annotationMerge         = "prometheus.istio.io/merge-metrics"
	annotationTargets       = "prometheus.istio.io/scrape-targets"
	annotationContainer     = "kubectl.kubernetes.io/default-container"
	annotationLogs          = "kubectl.kubernetes.io/default-logs-container"
	annotationMultus        = "k8s.v1.cni.cncf.io/networks"
)

// check is what the value of an annotation must be; its error is the rest of a sentence.
type check func(value string) error

// knownAnnotations are the annotations of Pods that work, those of the agent too, with what their values
// must be; nil takes any.
var knownAnnotations = map[string]check{
	labelInject: nil, annotationTemplates: nil, mesh.RevisionLabel: nil, annotationStatus: nil, annotationOverrides: nil,
	annotationConfig:   nil, // checked when it is parsed
	annotationAgentLog: nil, annotationComponentLog: nil, annotationLog: nil,
	annotationBootstrap: checkName, annotationCapBind: checkBool, annotationNative: nil,
	annotationMode: checkMode,
	annotationCPU:  checkQuantity, annotationCPULimit: checkQuantity, annotationMemory: checkQuantity, annotationMemoryLimit: checkQuantity,
	annotationImage: checkWord, annotationImageType: checkWord,
	annotationProbes: nil, annotationVolume: nil, annotationVolumeMount: nil,
	annotationStatusPort: checkPort,
	annotationDelay:      checkSeconds, annotationPeriod: checkSeconds, annotationFailures: checkSeconds,
	annotationIncludeRanges: all(checkRanges), annotationExcludeRanges: checkRanges,
	annotationIncludeIn: all(checkPorts), annotationExcludeIn: checkPorts,
	annotationIncludeOut: all(checkPorts), annotationExcludeOut: checkPorts,
	annotationInterfaces: checkInterfaces, annotationKubeVirt: checkInterfaces, annotationReroute: checkInterfaces,
	annotationMerge: checkBool, annotationTargets: nil,

	// The agent reads these where the proxy runs.
	"sidecar.istio.io/discoveryAddress":       checkWord,
	"sidecar.istio.io/extraStatTags":          nil,
	"sidecar.istio.io/statsInclusionPrefixes": nil,
	"sidecar.istio.io/statsInclusionSuffixes": nil,
	"sidecar.istio.io/statsInclusionRegexps":  nil,
	"sidecar.istio.io/statsHistogramBuckets":  nil,
	"sidecar.istio.io/statsFlushInterval":     nil,
	"sidecar.istio.io/statsEvictionInterval":  nil,
}

// noEffect are annotations that Istio has, or had, and that do nothing here, with what to do instead.
var noEffect = map[string]string{
	annotationReadyPorts:                           "give the application a readiness probe",
	"sidecar.istio.io/enableCoreDump":              "set the core pattern of the node",
	"sidecar.istio.io/statsCompression":            "the agent compresses no metrics",
	"sidecar.istio.io/statsHistogramBins":          "use sidecar.istio.io/statsHistogramBuckets",
	"sidecar.istio.io/controlPlaneAuthPolicy":      "use the address of the plaintext port in " + annotationConfig,
	"sidecar.istio.io/extraListeners":              "use a Sidecar object",
	"sidecar.istio.io/rewriteAppHTTPProbersPolicy": "use " + annotationProbes,
}

// owned are the domains whose annotations are for injection: an unknown one is most likely a mistake.
var owned = []string{"sidecar.istio.io/", "status.sidecar.istio.io/", "readiness.status.sidecar.istio.io/", "traffic.sidecar.istio.io/", "inject.istio.io/", "proxy.istio.io/"}

// checkAnnotations returns an error with all annotations that are invalid, and warnings about those
// without effect. The error of proxy.istio.io/config is given.
func checkAnnotations(annotations map[string]string, ofConfig error) (warnings []string, err error) {
	var bad []error
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		value := annotations[name]
		valid, known := knownAnnotations[name]
		instead, useless := noEffect[name]
		switch {
		case useless:
			warnings = append(warnings, fmt.Sprintf("annotation %s has no effect: %s", name, instead))
		case !known && slices.ContainsFunc(owned, func(prefix string) bool { return strings.HasPrefix(name, prefix) }):
			warnings = append(warnings, fmt.Sprintf("annotation %s is unknown, and has no effect", clip(name)))
		case name == annotationConfig && ofConfig != nil:
			bad = append(bad, fmt.Errorf("invalid value '%s' for annotation '%s': %w", clip(value), name, ofConfig))
		case valid != nil:
			if err := valid(value); err != nil {
				bad = append(bad, fmt.Errorf("invalid value '%s' for annotation '%s': %w", clip(value), name, err))
			}
		}
	}
	if _, err := strconv.ParseBool(annotations[annotationProbes]); err != nil && annotations[annotationProbes] != "" {
		warnings = append(warnings, fmt.Sprintf("annotation %s: invalid value %q is ignored: want true or false", annotationProbes, clip(annotations[annotationProbes])))
	}
	return warnings, errors.Join(bad...)
}

// clip bounds a text of a user in a message.
func clip(s string) string { return printable.Clip(printable.Escape(s), 200) }

func checkMode(v string) error {
	switch v {
	case "", modeRedirect, modeTProxy, modeNone:
		return nil
	}
	return errors.New("want REDIRECT, TPROXY or NONE")
}

func checkBool(v string) error {
	if _, err := strconv.ParseBool(v); err != nil {
		return errors.New("want true or false")
	}
	return nil
}

func checkQuantity(v string) error {
	if _, err := resource.ParseQuantity(v); err != nil {
		return errors.New("want a quantity such as 100m or 128Mi")
	}
	return nil
}

func checkPort(v string) error {
	if _, err := strconv.ParseUint(v, 10, 16); err != nil {
		return fmt.Errorf("invalid port %q: want 0–65535", clip(v))
	}
	return nil
}

func checkSeconds(v string) error {
	if _, err := strconv.ParseUint(v, 10, 31); err != nil {
		return errors.New("want a whole number that is not negative")
	}
	return nil
}

// all takes * too.
func all(valid check) check {
	return func(v string) error {
		if strings.TrimSpace(v) == "*" {
			return nil
		}
		return valid(v)
	}
}

// checkPorts takes a list of ports. Blanks around them are as if they were not there.
func checkPorts(v string) error {
	for p := range strings.SplitSeq(v, ",") {
		if p = strings.TrimSpace(p); p == "" {
			continue
		}
		if err := checkPort(p); err != nil {
			return err
		}
	}
	return nil
}

// checkRanges takes a list of CIDRs.
func checkRanges(v string) error {
	for p := range strings.SplitSeq(v, ",") {
		if p = strings.TrimSpace(p); p == "" {
			continue
		}
		if _, err := netip.ParsePrefix(p); err != nil {
			return fmt.Errorf("invalid range %q: want a CIDR such as 10.0.0.0/8", clip(p))
		}
	}
	return nil
}

// interfaceName is what the kernel takes as the name of a network interface.
var interfaceName = regexp.MustCompile(`^[^\s/,]{1,15}$`)

func checkInterfaces(v string) error {
	for p := range strings.SplitSeq(v, ",") {
		if p = strings.TrimSpace(p); p != "" && !interfaceName.MatchString(p) {
			return fmt.Errorf("invalid interface %q: want names of at most 15 bytes", clip(p))
		}
	}
	return nil
}

// configMapName is the form of the name of a ConfigMap.
var configMapName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

func checkName(v string) error {
	if len(v) > 253 || !configMapName.MatchString(v) {
		return errors.New("want the name of a ConfigMap")
	}
	return nil
}

// checkWord takes a text without blanks.
func checkWord(v string) error {
	if strings.ContainsAny(v, " \t\r\n") {
		return errors.New("want no blanks")
	}
	return nil
}
