// Package podplan makes Pods of the workloads in a directory of Kubernetes YAML, for a mesh on one machine.
//
// [Make] does what in a cluster the controllers, the scheduler and the injector do: Deployments, StatefulSets, DaemonSets,
// ReplicaSets and Jobs become Pods, Pods and Services get addresses, and Pods get proxies. It returns the Pods, and
// the files that pilot-discovery is to read: those of the directory, in which each object and field is on the line that it had
// and the Pods are on that of their workload, and one with what has no place there. The package is pure; the same directory gives the same Pods with the same addresses, and an address
// that was given out stays while its owner does. What a workload asks for that has no effect here is a note, one for each object.
package podplan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/discovery/source/decode"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// File is one file of a directory. Name is its path below the directory, with slashes.
type File struct {
	Name string
	Text []byte
}

// GeneratedFile is the name of the file that has what was added, such as routers, and the Pods of workloads that are written in JSON or in a list.
const GeneratedFile = "zz-made-by-pilotctl-up.json"

// The default ranges of addresses.
var (
	DefaultPods     = netip.MustParsePrefix("10.99.0.0/16")
	DefaultServices = netip.MustParsePrefix("10.96.0.0/16")
)

// Options are the options of Make.
type Options struct {
	// Pods and Services are the ranges of addresses that are given out; the first address of Pods is not.
	// Zero values stand for the defaults.
	Pods, Services netip.Prefix
	// Before is the plan that is in force, or nil: its addresses stay, and the Pods of a file that cannot be read.
	Before *Plan
	// AsWritten is set for a directory that says what a cluster has reported: nothing gets an address or a proxy that
	// it does not have, nothing is added, and a Pod without an address is not run.
	AsWritten bool
}

// Plan is what to run.
type Plan struct {
	// Pods are in the order of the files' names and of the objects in them.
	Pods     []Pod
	Services []Service
	// Notes say what of the workloads has no effect here.
	Notes []Note
	// addresses were given out, by "Pod namespace/name" and "Service namespace/name".
	addresses map[string]netip.Addr
	// added are the Services that were added.
	added []map[string]any
	// files and docs are the files of the directory with their documents.
	files []File
	docs  [][]*document
	// gateways say which protocols the ports of routers speak.
	gateways []gateway
}

// Note is one line about an object.
type Note struct {
	// File is empty for what concerns all.
	File string
	Line int
	// Object is "Kind namespace/name", empty if the document could not be parsed.
	Object, Text string
	// Problem is set if the object could not be read.
	Problem bool
}

// In returns the note with the path of its file, which is in a folder.
func (n Note) In(dir string) Note {
	if n.File != "" {
		n.File = path.Join(dir, n.File)
	}
	return n
}

// String is the note as it is printed.
func (n Note) String() string {
	switch {
	case n.File == "":
		return n.Text
	case n.Object == "":
		return fmt.Sprintf("%s:%d: %s", n.File, n.Line, n.Text)
	}
	return fmt.Sprintf("%s:%d: %s: %s", n.File, n.Line, n.Object, n.Text)
}

// Pod is one Pod.
type Pod struct {
	Namespace, Name string
	// Workload is the name of what it was made of: that of a Deployment, or its own without a number at the end.
	Workload       string
	ServiceAccount string
	Labels         map[string]string
	IP             netip.Addr
	// Sidecar and Router say which proxy it has, if any. A router runs no containers.
	Sidecar, Router bool
	// Template is the annotation inject.istio.io/templates.
	Template   string
	Containers []Container
	// Once is set if its containers are expected to end.
	Once bool
	// File and Line are where its workload is; File is empty for what was added.
	File string
	Line int
	// written is set if the directory has the Pod with its address.
	written bool
	// doc is the document that it was made of, in whose place it stands; nil if it stands in GeneratedFile. kept is set if that document cannot be read
	// now: the Pod is at the end of its file.
	doc  *document
	kept bool
}

// Key is "name.namespace", the name of the proxy in pilot-discovery.
func (p Pod) Key() string { return p.Name + "." + p.Namespace }

// badName says which name of the Pod no cluster would accept, if one is.
func (p Pod) badName() string {
	seen := map[string]bool{}
	for _, c := range p.Containers {
		switch {
		case !isName(c.Name, false):
			return fmt.Sprintf("invalid name of a container %q: want lower-case letters, digits and \"-\", with a letter or digit at both ends", c.Name)
		case seen[c.Name]:
			return fmt.Sprintf("two containers have the name %q: want different ones", c.Name)
		}
		seen[c.Name] = true
	}
	switch {
	case !isName(p.Name, true):
		return fmt.Sprintf("metadata.name: invalid name %q: want lower-case letters, digits, \"-\" and \".\", with a letter or digit at both ends", p.Name)
	case !isName(p.Namespace, false):
		return fmt.Sprintf("metadata.namespace: invalid namespace %q: want lower-case letters, digits and \"-\", with a letter or digit at both ends", p.Namespace)
	case !isName(p.ServiceAccount, true):
		return fmt.Sprintf("serviceAccountName: invalid name %q: want lower-case letters, digits, \"-\" and \".\", with a letter or digit at both ends", p.ServiceAccount)
	}
	return ""
}

// isName reports whether Kubernetes accepts a name: that of a label of DNS, or with dots one of several.
func isName(s string, dots bool) bool {
	longest := 63
	if dots {
		longest = 253
	}
	if s == "" || len(s) > longest {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || label != s && !dots {
			return false
		}
	}
	return true
}

// Container is what runs in a Pod.
type Container struct {
	Name, Image string
	// Command and Args are those of the YAML. Without a Command, the image's would run.
	Command, Args []string
	Env           []string
	WorkingDir    string
	Ports         []Port
}

// Port is a declared port of a container.
type Port struct {
	Name   string
	Number uint16
	// HTTP is set unless the name of the port, or a Service, declares another protocol.
	HTTP bool
	UDP  bool
}

// Service is what is needed of a Service to find its name.
type Service struct {
	Namespace, Name string
	// ClusterIP is the zero Addr if the Service is headless or an alias.
	ClusterIP netip.Addr
	Selector  map[string]string
	Ports     []ServicePort
}

// ServicePort is a port of a Service. Target is a number or a name.
type ServicePort struct {
	Number         uint16
	Target         string
	Name, Protocol string
}

// maker is the state of one Make.
type maker struct {
	o    Options
	plan *Plan
	// used are the addresses that are in use, with their owners.
	used map[netip.Addr]string
	// namespaces has the labels of the Namespaces.
	namespaces map[string]map[string]string
	configMaps map[string]map[string]string
	gateways   []gateway
	sets       []listenerSet
	// pending are the workloads, of which Pods are made when everything has been read.
	pending []workload
	// services are the objects, which get addresses when all fixed ones are known.
	services []pendingService
	// unread are the files with a document that cannot be parsed.
	unread map[string]bool
	seen   map[string]bool
}

// Make plans the Pods of a directory. It fails only for what concerns all of it: addresses that are used up.
func Make(files []File, o Options) (*Plan, error) {
	if !o.Pods.IsValid() {
		o.Pods = DefaultPods
	}
	if !o.Services.IsValid() {
		o.Services = DefaultServices
	}
	m := &maker{
		o: o, plan: &Plan{addresses: map[string]netip.Addr{}}, used: map[netip.Addr]string{},
		namespaces: map[string]map[string]string{}, configMaps: map[string]map[string]string{}, unread: map[string]bool{}, seen: map[string]bool{},
	}
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	docs := make([][]*document, len(files))
	for i, f := range files {
		docs[i] = m.read(f)
	}
	if !o.AsWritten {
		m.addGateways()
	}
	if err := m.makePods(); err != nil {
		return nil, err
	}
	if err := m.addressServices(); err != nil {
		return nil, err
	}
	m.declarePorts()
	m.plan.gateways = m.gateways
	m.plan.files, m.plan.docs = files, docs
	for _, s := range m.services {
		if s.added != nil {
			m.plan.added = append(m.plan.added, s.added)
		}
	}
	return m.plan, nil
}

// document is one document of a file, and what is to stand in its place.
type document struct {
	chunk yamltree.Chunk
	// root is the object, and line its first line; nil if the document cannot be parsed.
	root *yamltree.Tree
	line int
	// dropped is set if Pods stand in its place.
	dropped bool
	// changed is the object with an address, nil if the document stays as it is.
	changed *yamltree.Tree
}

// read reads the objects of a file.
func (m *maker) read(f File) []*document {
	var out []*document
	for _, chunk := range yamltree.Split(f.Text, strings.HasSuffix(f.Name, ".json")) {
		d := &document{chunk: chunk}
		out = append(out, d)
		for _, parsed := range chunk.Parse() {
			if parsed.Fault != nil {
				// pilot-discovery reports it, with what stays in force.
				m.unread[f.Name] = true
				m.plan.Notes = append(m.plan.Notes, Note{File: f.Name, Line: max(parsed.Line, parsed.Fault.Line), Text: unplaced(parsed.Fault), Problem: true})
				continue
			}
			if parsed.Root == nil {
				continue
			}
			m.readObject(f.Name, parsed, d)
		}
	}
	return out
}

func (m *maker) readObject(file string, parsed yamltree.Document, d *document) {
	if items := parsed.Root.Get("items"); items != nil && strings.HasSuffix(parsed.Root.Get("kind").Str(), "List") {
		for _, item := range items.Items {
			m.readOne(file, parsed.Line, item, nil)
		}
		return
	}
	if strings.HasSuffix(file, ".json") {
		d = nil // it may have several objects
	} else {
		d.root, d.line = parsed.Root, parsed.Line
	}
	m.readOne(file, parsed.Line, parsed.Root, d)
}

// unplaced is the text of a fault without its line.
func unplaced(f *yamltree.Fault) string {
	at := *f
	at.Line = 0
	return at.Error()
}

// meta is the metadata of an object.
type meta struct {
	Name         string            `json:"name"`
	GenerateName string            `json:"generateName"`
	Namespace    string            `json:"namespace"`
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
}

// source is where an object stands.
type source struct {
	file string
	line int
	kind string
	meta meta
	// tree is the object.
	tree *yamltree.Tree
}

// lineOf is the line of the field that a text begins with, as in "spec.replicas: want …", as far as the object has it.
func (s source) lineOf(text string) int {
	path, _, _ := strings.Cut(text, ": ")
	at, line := s.tree, s.line
	for key := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		var next *yamltree.Tree
		if at != nil {
			for _, e := range at.Entries {
				if e.Key == key {
					next, line = e.Value, e.Line
				}
			}
			if i, err := strconv.Atoi(key); err == nil && i < len(at.Items) {
				next, line = at.Items[i], at.Items[i].Line
			}
		}
		if at = next; at == nil {
			break
		}
	}
	return line
}

func (s source) object() string {
	return fmt.Sprintf("%s %s/%s", s.kind, s.meta.Namespace, s.meta.Name)
}

func (m *maker) note(s source, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	m.plan.Notes = append(m.plan.Notes, Note{File: s.file, Line: s.lineOf(text), Object: s.object(), Text: text})
}

// readOne reads one object; d is nil if it cannot be replaced in place: in lists and in JSON.
func (m *maker) readOne(file string, line int, t *yamltree.Tree, d *document) {
	s := source{file: file, line: line, kind: t.Get("kind").Str(), tree: t}
	text := t.JSON()
	var head struct {
		APIVersion string `json:"apiVersion"`
		Metadata   meta   `json:"metadata"`
	}
	err := json.Unmarshal(text, &head)
	if s.meta = head.Metadata; s.meta.Namespace == "" {
		s.meta.Namespace = "default"
	}
	if err == nil {
		err = m.object(s, head.APIVersion, text, d)
	}
	if d != nil && d.dropped {
		// pilot-discovery does not read it.
		for _, f := range decode.UnknownFields(t) {
			m.plan.Notes = append(m.plan.Notes, Note{File: s.file, Line: f.Line, Object: s.object(), Text: f.Path + ": " + f.Text})
		}
	}
	if err != nil {
		m.unread[file] = true
		m.plan.Notes = append(m.plan.Notes, Note{File: s.file, Line: s.lineOf(err.Error()), Object: s.object(), Text: err.Error(), Problem: true})
	}
}

func (m *maker) object(s source, apiVersion string, text []byte, d *document) error {
	group, _, _ := strings.Cut(apiVersion, "/")
	switch s.kind {
	case "Namespace":
		m.namespaces[s.meta.Name] = s.meta.Labels
	case "ConfigMap":
		var body struct{ Data map[string]string }
		if err := json.Unmarshal(text, &body); err != nil {
			return fieldError(err)
		}
		m.configMaps[s.meta.Namespace+"/"+s.meta.Name] = body.Data
	case "Service":
		return m.readService(s, text, d)
	case "Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job":
		if field, fault := decode.WorkloadFault(apiVersion, s.kind); fault != "" && s.kind != "Pod" {
			m.note(s, "%s: %s A cluster refuses it", field, fault)
		}
		err := m.readWorkload(s, text, d)
		if apiVersion == "" && d != nil && d.dropped { // else pilot-discovery tells
			m.note(s, "apiVersion: missing: want %s; a cluster refuses it", versionOf(s.kind))
		}
		return err
	case "CronJob":
		m.note(s, "it is not run: want a Job")
	case "ProxyConfig":
		if group == "networking.istio.io" && !m.o.AsWritten {
			m.note(s, "not applied: it is for the injector of a cluster")
		}
	case "Gateway":
		return m.readGateway(s, group, text)
	case "ListenerSet":
		return m.readListenerSet(s, group, text)
	}
	return nil
}

// versionOf is the apiVersion of a kind that Pods are made of.
func versionOf(kind string) string {
	switch kind {
	case "Pod":
		return "v1"
	case "Job":
		return "batch/v1"
	}
	return "apps/v1"
}

// fieldError names the field of a JSON error.
func fieldError(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("%s: %s, want a value of type %s", wrong.Field, wrong.Value, wrong.Type)
	}
	return err
}

func (m *maker) makePods() error {
	for _, w := range m.pending {
		if w.fixed.IsValid() {
			if !m.o.AsWritten && !m.o.Pods.Contains(w.fixed) {
				m.note(w.source, "status.podIP: %s is not in %s: remove it, so that the Pod gets an address", w.fixed, m.o.Pods)
				w.fixed = netip.Addr{}
			} else {
				m.used[w.fixed] = w.object()
			}
		}
	}
	// The first address is the bridge's.
	m.used[m.o.Pods.Masked().Addr().Next()] = "the bridge"
	for _, w := range m.pending {
		for _, p := range w.pods() {
			key := "Pod " + p.Namespace + "/" + p.Name
			if fault := p.badName(); fault != "" {
				// Folders and logs are named after them.
				m.unread[w.file] = true
				m.plan.Notes = append(m.plan.Notes, Note{File: w.file, Line: w.lineOf(fault), Object: w.object(), Text: fault + ": it is not run", Problem: true})
				break
			}
			if m.seen[key] {
				m.note(w.source, "there is a Pod %s/%s already%s: it is not run again", p.Namespace, p.Name, m.placeOf(p))
				continue
			}
			m.seen[key] = true
			if m.o.AsWritten && !w.fixed.IsValid() {
				m.plan.Notes = append(m.plan.Notes, Note{File: w.file, Line: w.line, Object: w.object(), Text: "status.podIP: missing: want the Pod's address", Problem: true})
				continue
			}
			if !p.IP.IsValid() || !m.o.AsWritten && !m.o.Pods.Contains(p.IP) {
				ip, err := m.address(key, m.o.Pods)
				if err != nil {
					return err
				}
				p.IP = ip
			}
			m.plan.addresses[key] = p.IP
			m.env(w, &p)
			m.plan.Pods = append(m.plan.Pods, p)
		}
	}
	m.keepUnread()
	return nil
}

// placeOf says where the Pod is that has the name of another one.
func (m *maker) placeOf(p Pod) string {
	i := slices.IndexFunc(m.plan.Pods, func(had Pod) bool { return had.Key() == p.Key() })
	if i < 0 || m.plan.Pods[i].File == "" {
		return ""
	}
	return fmt.Sprintf(", of line %d of %s", m.plan.Pods[i].Line, m.plan.Pods[i].File)
}

// keepUnread keeps the Pods of files that cannot be read, as pilot-discovery keeps their objects.
func (m *maker) keepUnread() {
	if m.o.Before == nil {
		return
	}
	for _, p := range m.o.Before.Pods {
		key := "Pod " + p.Namespace + "/" + p.Name
		if m.unread[p.File] && !m.seen[key] {
			m.seen[key] = true
			m.plan.addresses[key] = p.IP
			p.kept = p.doc != nil
			m.plan.Pods = append(m.plan.Pods, p)
		}
	}
	for _, s := range m.o.Before.Services {
		key := "Service " + s.Namespace + "/" + s.Name
		if ip, ok := m.o.Before.addresses[key]; ok && m.plan.addresses[key] == (netip.Addr{}) {
			m.plan.addresses[key] = ip
		}
	}
}

// address gives out an address: the one that the owner had, else the one that follows from its name, else the next that
// is free.
func (m *maker) address(key string, in netip.Prefix) (netip.Addr, error) {
	if m.o.Before != nil {
		if ip, ok := m.o.Before.addresses[key]; ok && in.Contains(ip) && m.used[ip] == "" {
			m.used[ip] = key
			return ip, nil
		}
	}
	size := uint64(1) << min(in.Addr().BitLen()-in.Bits(), 32)
	at := hash(key) % size
	for range size {
		ip := nth(in, at)
		// The first address is the network's, the last one the broadcast address.
		if at != 0 && at != size-1 && m.used[ip] == "" && !m.reserved(ip) {
			m.used[ip] = key
			return ip, nil
		}
		at = (at + 1) % size
	}
	return netip.Addr{}, fmt.Errorf("give %s an address: all of %s are in use", key, in)
}

// reserved reports whether an address belongs to somebody else in the plan that is in force.
func (m *maker) reserved(ip netip.Addr) bool {
	if m.o.Before == nil {
		return false
	}
	for _, had := range m.o.Before.addresses {
		if had == ip {
			return true
		}
	}
	return false
}

// env resolves the variables of a Pod's containers.
func (m *maker) env(w workload, p *Pod) {
	for i := range p.Containers {
		for _, v := range w.template.Spec.Containers[i].EnvFrom {
			data, ok := m.configMaps[p.Namespace+"/"+v.ConfigMapRef.Name]
			if v.ConfigMapRef.Name == "" || !ok {
				m.note(w.source, "container %s: envFrom: only ConfigMaps of this directory are read", p.Containers[i].Name)
				continue
			}
			for _, k := range slices.Sorted(maps.Keys(data)) {
				p.Containers[i].Env = append(p.Containers[i].Env, v.Prefix+k+"="+data[k])
			}
		}
		for _, v := range w.template.Spec.Containers[i].Env {
			value, ok := v.Value, true
			if v.ValueFrom != nil {
				value, ok = m.valueFrom(*v.ValueFrom, *p)
			}
			if !ok {
				m.note(w.source, "container %s: variable %s is not set: want a value, a ConfigMap of this directory, or a field of the Pod", p.Containers[i].Name, v.Name)
				continue
			}
			p.Containers[i].Env = append(p.Containers[i].Env, v.Name+"="+value)
		}
	}
}

func (m *maker) valueFrom(v valueFrom, p Pod) (string, bool) {
	if v.ConfigMapKeyRef.Name != "" {
		value, ok := m.configMaps[p.Namespace+"/"+v.ConfigMapKeyRef.Name][v.ConfigMapKeyRef.Key]
		return value, ok
	}
	switch path := v.FieldRef.FieldPath; path {
	case "metadata.name":
		return p.Name, true
	case "metadata.namespace":
		return p.Namespace, true
	case "status.podIP", "status.hostIP":
		return p.IP.String(), true
	case "spec.serviceAccountName":
		return p.ServiceAccount, true
	case "spec.nodeName":
		return "this-machine", true
	default:
		name, ok := strings.CutPrefix(path, "metadata.labels['")
		return p.Labels[strings.TrimSuffix(name, "']")], ok
	}
}

// injected decides whether a Pod gets a sidecar, as the injector of a namespace with injection does.
func (m *maker) injected(w workload) bool {
	t := w.template
	for _, v := range []string{t.Metadata.Labels["sidecar.istio.io/inject"], t.Metadata.Annotations["sidecar.istio.io/inject"]} {
		if v != "" {
			return v != "false" && !t.Spec.HostNetwork
		}
	}
	return !t.Spec.HostNetwork && m.namespaces[w.meta.Namespace]["istio-injection"] != "disabled"
}

// labelled returns labels with one more.
func labelled(labels map[string]string, name, value string) map[string]string {
	out := maps.Clone(labels)
	if out == nil {
		out = map[string]string{}
	}
	out[name] = value
	return out
}
