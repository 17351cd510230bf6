package bootstrap

import (
	"encoding/json"
	"fmt"
	"regexp"
	"sort"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Annotations that shape statistics. [agent 1.3]
const (
	noteTags     = "sidecar.istio.io/extraStatTags"
	notePrefixes = "sidecar.istio.io/statsInclusionPrefixes"
	noteSuffixes = "sidecar.istio.io/statsInclusionSuffixes"
	noteRegexps  = "sidecar.istio.io/statsInclusionRegexps"
	noteBuckets  = "sidecar.istio.io/statsHistogramBuckets"
	noteFlush    = "sidecar.istio.io/statsFlushInterval"
	noteEviction = "sidecar.istio.io/statsEvictionInterval"
)

// defaultFlush is Envoy's own interval between flushes.
const defaultFlush = 5 * time.Second

// tags are the rules that extract tags from the names of statistics. [agent B15]
var tags = [][2]string{
	{"cluster_name", `^cluster(\.(.+);)`},
	{"http_conn_manager_prefix", `^http\.(((?:[_.[:digit:]\w]*|[_\[\]aAbBcCdDeEfF[:digit:]\w\:]*));\.)`},
	{"thread_name", `^server(\.(.+))\.watchdog`},
	{"tcp_prefix", `^tcp\.((.*?)\.)\w+?$`},
	{"response_code", `_rq(_(\d{3}))$`},
	{"response_code_class", `_rq(_(\dxx))$`},
	{"http_conn_manager_listener_prefix", `^listener(?=\.).*?\.http\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
	{"listener_address", `^listener\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
	{"mongo_prefix", `^mongo\.(.+?)\.(collection|cmd|cx_|op_|delays_|decoding_)(.*?)$`},
	{"cache", `(cache\.(.+?)\.)`},
	{"component", `(component\.(.+?)\.)`},
	{"tag", `(tag\.(.+?);\.)`},
	{"wasm_filter", `(wasm_filter\.(.+?)\.)`},
	{"authz_enforce_result", `rbac(\.(allowed|denied))`},
	{"authz_dry_run_action", `(\.istio_dry_run_(allow|deny)_)`},
	{"authz_dry_run_result", `(\.shadow_(allowed|denied))`},
}

// undelimited are the rules that replace those of the same names where names need not end with a delimiter. They find names with a delimiter
// as tags does; those without end at a dot, for clusters of the mesh after its domain.
var undelimited = map[string]string{
	"cluster_name":             `^cluster\.((.+(?=;\.)|.+?(?:\..+?\.svc\.cluster\.local)?);?\.)`,
	"http_conn_manager_prefix": `^http\.(([_.[:digit:]\w\[\]\:]*(?=;\.)|[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*);?\.)`,
}

// Patterns of the statistics that every proxy keeps. Users can add others. [agent B16]
var (
	keptPrefixes = []string{"reporter=", "cluster_manager", "listener_manager", "server", "cluster." + xdsCluster, "wasm", "component", "istio"}
	keptSuffixes = []string{"rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"}
	keptRegexps  = []string{`vhost\..*\.route\..*`}
)

// stats fills in which statistics are kept, with which tags, and how often they are flushed.
func stats(s *spec.Spec, b *bootstrapv3.Bootstrap) error {
	b.StatsConfig = &metricsv3.StatsConfig{
		UseAllDefaultTags: wrapperspb.Bool(false),
		StatsMatcher:      matcher(s),
	}
	add := func(name, regex string) {
		b.StatsConfig.StatsTags = append(b.StatsConfig.StatsTags, &metricsv3.TagSpecifier{
			TagName: name, TagValue: &metricsv3.TagSpecifier_Regex{Regex: regex},
		})
	}
	known := map[string]bool{}
	for _, t := range tags {
		known[t[0]] = true
		rule := t[1]
		if r, ok := undelimited[t[0]]; ok && s.Envoy.UndelimitedTags {
			rule = r
		}
		add(t[0], rule)
	}
	extra := append(append([]string(nil), s.Config.GetExtraStatTags()...), mesh.List(s.Node.Annotations[noteTags])...)
	for _, t := range extra {
		if !known[t] {
			known[t] = true
			add(t, `(`+regexp.QuoteMeta(t)+`\.(.+?);\.)`)
		}
	}
	var err error
	if b.StatsConfig.HistogramBucketSettings, err = buckets(s.Node.Annotations[noteBuckets]); err != nil {
		return err
	}
	return intervals(s.Node.Annotations, b)
}

// matcher combines the statistics that every proxy keeps with those that the user configured.
func matcher(s *spec.Spec) *metricsv3.StatsMatcher {
	own := s.Config.GetProxyStatsMatcher()
	suffixes := keptSuffixes
	if s.Lifecycle.ExitOnZero {
		suffixes = append(suffixes[:len(suffixes):len(suffixes)], "downstream_cx_active")
	}
	list := &matcherv3.ListStringMatcher{}
	seen := map[string]bool{}
	add := func(kind string, m func(string) *matcherv3.StringMatcher, groups ...[]string) {
		for _, group := range groups {
			for _, text := range expand(group, s) {
				if text = strings.TrimSpace(text); text != "" && !seen[kind+text] {
					seen[kind+text] = true
					list.Patterns = append(list.Patterns, m(text))
				}
			}
		}
	}
	split := func(note string) []string { return strings.Split(s.Node.Annotations[note], ",") }
	add("prefix", prefix, keptPrefixes, own.GetInclusionPrefixes(), split(notePrefixes))
	add("suffix", suffix, suffixes, own.GetInclusionSuffixes(), split(noteSuffixes))
	add("regex", regex, keptRegexps, own.GetInclusionRegexps(), split(noteRegexps))
	return &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_InclusionList{InclusionList: list}}
}

// expand replaces {pod_ip}: a pattern with it is repeated for each address of the Pod.
func expand(patterns []string, s *spec.Spec) []string {
	const token = "{pod_ip}"
	var out []string
	for _, p := range patterns {
		if !strings.Contains(p, token) {
			out = append(out, p)
			continue
		}
		for _, ip := range s.Node.IPs {
			out = append(out, strings.ReplaceAll(p, token, ip.String()))
		}
	}
	return out
}

func prefix(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: s}}
}

func suffix(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: s}}
}

func regex(s string) *matcherv3.StringMatcher {
	return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: s}}}
}

// buckets reads the annotation's JSON: a statistic's prefix to its buckets' upper bounds.
func buckets(note string) ([]*metricsv3.HistogramBucketSettings, error) {
	if note == "" {
		return nil, nil
	}
	var byPrefix map[string][]float64
	if err := json.Unmarshal([]byte(note), &byPrefix); err != nil {
		return nil, fmt.Errorf("read annotation %s: want a JSON object of lists of numbers: %w", noteBuckets, err)
	}
	names := make([]string, 0, len(byPrefix))
	for name := range byPrefix {
		names = append(names, name)
	}
	sort.Strings(names)
	var out []*metricsv3.HistogramBucketSettings
	for _, name := range names {
		for _, bound := range byPrefix[name] {
			if bound <= 0 {
				return nil, fmt.Errorf("read annotation %s: %q: invalid bound %v: want more than 0", noteBuckets, name, bound)
			}
		}
		out = append(out, &metricsv3.HistogramBucketSettings{Match: prefix(name), Buckets: byPrefix[name]})
	}
	return out, nil
}

// intervals reads how often statistics are flushed and idle ones dropped. Envoy takes only
// an eviction interval that is a multiple of the flush interval. [agent B17]
func intervals(notes map[string]string, b *bootstrapv3.Bootstrap) error {
	flush, evict := defaultFlush, time.Duration(0)
	for _, i := range []struct {
		note string
		into *time.Duration
	}{{noteFlush, &flush}, {noteEviction, &evict}} {
		v := notes[i.note]
		if v == "" {
			continue
		}
		d, err := time.ParseDuration(v)
		if err != nil || d < time.Millisecond {
			return fmt.Errorf("read annotation %s: invalid duration %q: want at least 1ms", i.note, v)
		}
		*i.into = d
	}
	if notes[noteFlush] != "" {
		b.StatsFlushInterval = durationpb.New(flush)
	}
	if evict == 0 {
		return nil
	}
	if evict%flush != 0 {
		return nil // ignored warns about it
	}
	b.StatsEviction = &bootstrapv3.Bootstrap_StatsEvictionInterval{StatsEvictionInterval: durationpb.New(evict)}
	return nil
}
