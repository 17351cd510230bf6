package inject

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// functions are what templates may call: those that Istio's templates have, and the functions of text, lists
// and mappings that they commonly use, with the order of arguments of the library sprig. None does I/O.
var functions = template.FuncMap{
	// Those of Istio.
	"annotation":          metaAnnotation,
	"appendMultusNetwork": appendMultusNetwork,
	"applicationPorts":    applicationPorts,
	"contains":            func(part, s string) bool { return strings.Contains(s, part) },
	"directory":           directory,
	"env":                 func(_, otherwise string) string { return otherwise },
	"excludeInboundPort":  func(port any, list any) string { return excludeInboundPort(port, toText(list)) },
	"excludeInterfaces":   identity,
	"formatDuration":      formatDuration,
	"fromJSON":            fromJSON,
	"includeInboundPorts": identity,
	"indent":              indent,
	"isset":               func(m map[string]string, key string) bool { _, ok := m[key]; return ok },
	"kubevirtInterfaces":  identity,
	"mergeMaps":           func(a, b map[string]any) (any, error) { out := cloneMap(a); mergeMaps(out, b); return bounded(out) },
	"omit":                omit,
	"omitNil":             omitNil,
	"protoToJSON":         protoToJSON,
	"strdict":             stringDict,
	"structToJSON":        toJSON,
	"toJSON":              toJSON,
	"toJsonMap":           toJSONMap,
	"toLower":             strings.ToLower,
	"toYaml":              toYAML,
	"valueOrDefault":      func(v, otherwise any) any { return orDefault(otherwise, v) },

	// Those of text/template, with a limit.
	"print":   func(args ...any) (string, error) { return boundedText(fmt.Sprint(args...)) },
	"printf":  func(format string, args ...any) (string, error) { return boundedText(fmt.Sprintf(format, args...)) },
	"println": func(args ...any) (string, error) { return boundedText(fmt.Sprintln(args...)) },

	// Text.
	"b64dec":     func(s string) (string, error) { b, err := base64.StdEncoding.DecodeString(s); return string(b), err },
	"b64enc":     func(s string) (string, error) { return boundedText(base64.StdEncoding.EncodeToString([]byte(s))) },
	"hasPrefix":  func(prefix, s string) bool { return strings.HasPrefix(s, prefix) },
	"hasSuffix":  func(suffix, s string) bool { return strings.HasSuffix(s, suffix) },
	"join":       func(sep string, list any) (string, error) { return boundedText(strings.Join(texts(list), sep)) },
	"lower":      strings.ToLower,
	"nindent":    func(n int, s string) (string, error) { s, err := indent(n, s); return "\n" + s, err },
	"quote":      quote,
	"replace":    func(old, new, s string) (string, error) { return boundedText(strings.ReplaceAll(s, old, new)) },
	"splitList":  func(sep, s string) []string { return strings.Split(s, sep) },
	"squote":     func(v any) (string, error) { return boundedText("'" + strings.ReplaceAll(toText(v), "'", "''") + "'") },
	"toString":   toText,
	"trim":       strings.TrimSpace,
	"trimPrefix": func(prefix, s string) string { return strings.TrimPrefix(s, prefix) },
	"trimSuffix": func(suffix, s string) string { return strings.TrimSuffix(s, suffix) },
	"upper":      strings.ToUpper,

	// Values.
	"coalesce": coalesce,
	"default":  orDefault,
	"empty":    empty,
	"fail":     func(message string) (string, error) { return "", errors.New(message) },
	"int":      toInt,
	"int64":    func(v any) (int64, error) { n, err := toInt(v); return int64(n), err },
	"kindIs":   func(kind string, v any) bool { return v != nil && reflect.TypeOf(v).Kind().String() == kind },
	"ternary":  ternary,
	"toJson":   toJSON,

	// Numbers.
	"add": func(a, b any) (int, error) { return arithmetic(a, b, func(x, y int) int { return x + y }) },
	"max": func(a, b any) (int, error) { return arithmetic(a, b, func(x, y int) int { return max(x, y) }) },
	"min": func(a, b any) (int, error) { return arithmetic(a, b, func(x, y int) int { return min(x, y) }) },
	"mul": func(a, b any) (int, error) { return arithmetic(a, b, func(x, y int) int { return x * y }) },
	"sub": func(a, b any) (int, error) { return arithmetic(a, b, func(x, y int) int { return x - y }) },

	// Lists and mappings.
	"append": func(list any, v any) (any, error) { return bounded(append(items(list), v)) },
	"dict":   dict,
	"first":  func(list any) any { return at(list, 0) },
	"get":    func(m map[string]any, key string) any { return m[key] },
	"has": func(v any, list any) bool {
		return slices.ContainsFunc(items(list), func(e any) bool { return reflect.DeepEqual(e, v) })
	},
	"hasKey": hasKey,
	"keys":   keys,
	"last":   func(list any) any { return at(list, len(items(list))-1) },
	"list":   func(v ...any) (any, error) { return bounded(v) },
	"merge": func(dst, src map[string]any) (any, error) {
		out := cloneMap(src)
		mergeMaps(out, dst)
		return bounded(out)
	},
	"prepend": func(list any, v any) (any, error) { return bounded(append([]any{v}, items(list)...)) },
	"set":     setKey,
	"until":   until,
}

// maxValues bounds the values in a list or mapping of a template.
const maxValues = 100_000

// bounded returns v, or an error if it has too many values, or has itself within it.
func bounded(v any) (any, error) {
	budget := maxValues
	if !within(v, &budget) {
		return nil, fmt.Errorf("a list or mapping with more than %d values", maxValues)
	}
	return v, nil
}

func within(v any, budget *int) bool {
	if *budget--; *budget < 0 {
		return false
	}
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if !within(e, budget) {
				return false
			}
		}
	case map[string]any:
		for _, e := range v {
			if !within(e, budget) {
				return false
			}
		}
	case string:
		*budget -= len(v) / 64
	}
	return *budget >= 0
}

func boundedText(s string) (string, error) {
	if len(s) > maxOutputBytes {
		return "", errOutput
	}
	return s, nil
}

func metaAnnotation(meta metav1.ObjectMeta, name string, otherwise any) string {
	if v, ok := meta.Annotations[name]; ok {
		return v
	}
	return toText(otherwise)
}

// identity returns a list of ports or interfaces as the user wrote it.
func identity(list any) string { return toText(list) }

func applicationPorts(containers any) (string, error) {
	type withPorts struct {
		Ports []struct {
			ContainerPort int32 `json:"containerPort"`
		} `json:"ports"`
	}
	text, err := json.Marshal(containers)
	if err != nil {
		return "", err
	}
	var list []withPorts
	if err := json.Unmarshal(text, &list); err != nil {
		return "", err
	}
	var ports []string
	for _, c := range list {
		for _, p := range c.Ports {
			ports = append(ports, strconv.Itoa(int(p.ContainerPort)))
		}
	}
	return strings.Join(ports, ","), nil
}

// directory is the part of a path before its last slash.
func directory(path string) string {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i+1]
	}
	return ""
}

func formatDuration(d *durationpb.Duration) string { return d.AsDuration().String() }

func fromJSON(text string) (any, error) {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, err
	}
	return bounded(v)
}

// toJSON encodes a value without escaping HTML, so that its text stays readable.
func toJSON(v any) (string, error) {
	if m, ok := v.(proto.Message); ok {
		return compactJSON(m)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	return boundedText(strings.TrimSuffix(b.String(), "\n"))
}

// protoToJSON encodes a message; of a proxy configuration what differs from the agent's defaults.
func protoToJSON(m proto.Message) (string, error) {
	if c, ok := m.(*meshv1.ProxyConfig); ok {
		return configJSON(c)
	}
	return compactJSON(m)
}

func toYAML(v any) (string, error) {
	if s, ok := v.(*structpb.Struct); ok {
		v = s.AsMap()
	}
	text, err := yaml.Marshal(v)
	if err != nil {
		return "", err
	}
	return boundedText(strings.TrimSuffix(string(text), "\n"))
}

func toJSONMap(pairs ...string) (string, error) {
	if len(pairs)%2 != 0 {
		return "", fmt.Errorf("toJsonMap: %d arguments: want keys and values", len(pairs))
	}
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			m[pairs[i]] = pairs[i+1]
		}
	}
	return toJSON(m)
}

func stringDict(pairs ...string) (map[string]string, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("strdict: %d arguments: want keys and values", len(pairs))
	}
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m, nil
}

func omit(m map[string]any, names ...string) map[string]any {
	out := maps.Clone(m)
	for _, n := range names {
		delete(out, n)
	}
	return out
}

func omitNil(m map[string]any) map[string]any {
	out := maps.Clone(m)
	maps.DeleteFunc(out, func(_ string, v any) bool { return v == nil })
	return out
}

func indent(n int, s string) (string, error) {
	if n < 0 || n > 1000 {
		return "", fmt.Errorf("indent: invalid number of blanks %d: want 0–1000", n)
	}
	if (strings.Count(s, "\n")+1)*n+len(s) > maxOutputBytes {
		return "", errOutput
	}
	pad := strings.Repeat(" ", n)
	return pad + strings.ReplaceAll(s, "\n", "\n"+pad), nil
}

func quote(v any) (string, error) {
	if v == nil {
		return `""`, nil
	}
	return toJSON(toText(v))
}

// toText is a value as a template prints it; "" for none.
func toText(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case scalar:
		return string(v)
	}
	return fmt.Sprint(v)
}

func texts(list any) []string {
	var out []string
	for _, v := range items(list) {
		out = append(out, toText(v))
	}
	return out
}

// items is a list as a new slice of values.
func items(list any) []any {
	v := reflect.ValueOf(list)
	if !v.IsValid() || v.Kind() != reflect.Slice && v.Kind() != reflect.Array {
		return nil
	}
	out := make([]any, v.Len(), v.Len()+1)
	for i := range out {
		out[i] = v.Index(i).Interface()
	}
	return out
}

func at(list any, i int) any {
	l := items(list)
	if i < 0 || i >= len(l) {
		return nil
	}
	return l[i]
}

func empty(v any) bool {
	ok, _ := template.IsTrue(v)
	return !ok
}

func orDefault(otherwise any, v ...any) any {
	if len(v) == 0 || empty(v[0]) {
		return otherwise
	}
	return v[0]
}

func coalesce(list ...any) any {
	for _, v := range list {
		if !empty(v) {
			return v
		}
	}
	return nil
}

func ternary(yes, no any, condition bool) any {
	if condition {
		return yes
	}
	return no
}

func toInt(v any) (int, error) {
	text := toText(v)
	if text == "" {
		return 0, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < -1<<53 || f > 1<<53 {
		return 0, fmt.Errorf("invalid number %q", clip(text))
	}
	return int(f), nil
}

func arithmetic(a, b any, f func(x, y int) int) (int, error) {
	x, err := toInt(a)
	if err != nil {
		return 0, err
	}
	y, err := toInt(b)
	if err != nil {
		return 0, err
	}
	return f(x, y), nil
}

func dict(pairs ...any) (any, error) {
	if len(pairs)%2 != 0 {
		return nil, fmt.Errorf("dict: %d arguments: want keys and values", len(pairs))
	}
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[toText(pairs[i])] = pairs[i+1]
	}
	return bounded(m)
}

func hasKey(m any, key string) bool {
	v := reflect.ValueOf(m)
	return v.IsValid() && v.Kind() == reflect.Map && v.MapIndex(reflect.ValueOf(key)).IsValid()
}

func keys(m any) []string {
	v := reflect.ValueOf(m)
	if !v.IsValid() || v.Kind() != reflect.Map {
		return nil
	}
	var out []string
	for _, k := range v.MapKeys() {
		out = append(out, k.String())
	}
	slices.Sort(out)
	return out
}

func setKey(m map[string]any, key string, v any) (any, error) {
	m[key] = v
	return bounded(m)
}

func until(n int) ([]int, error) {
	if n < 0 || n > maxSteps {
		return nil, fmt.Errorf("until: invalid number %d: want 0–%d", n, maxSteps)
	}
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out, nil
}
