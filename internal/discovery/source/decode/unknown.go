package decode

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pilothouse/pilothouse/internal/object"
	"github.com/pilothouse/pilothouse/internal/spelling"
	"github.com/pilothouse/pilothouse/internal/yamltree"
)

// maxUnknown is how many unknown fields of one object are named.
const maxUnknown = 20

// workloadKinds are kinds that are not read themselves, but that Pods are made of: their unknown fields are named, too.
var workloadKinds = map[groupKind]reflect.Type{
	{group: "apps", kind: "Deployment"}:  reflect.TypeFor[appsv1.Deployment](),
	{group: "apps", kind: "StatefulSet"}: reflect.TypeFor[appsv1.StatefulSet](),
	{group: "apps", kind: "DaemonSet"}:   reflect.TypeFor[appsv1.DaemonSet](),
	{group: "apps", kind: "ReplicaSet"}:  reflect.TypeFor[appsv1.ReplicaSet](),
	{group: "batch", kind: "Job"}:        reflect.TypeFor[batchv1.Job](),
	{group: "batch", kind: "CronJob"}:    reflect.TypeFor[batchv1.CronJob](),
}

var objectMeta = reflect.TypeFor[metav1.ObjectMeta]()

// UnknownFields returns the fields of an object of one of Kubernetes' own kinds that its kind does not have, at most
// maxUnknown and one that says that there are more, and those in the metadata of every other kind. Fields of status are not
// looked at: the API server writes it, which may be newer.
func UnknownFields(t *yamltree.Tree) []*yamltree.Fault {
	if t == nil {
		return nil
	}
	var u unknown
	group := groupIn(t.Get("apiVersion").Str())
	kind := ownKind(group, object.Kind(t.Get("kind").Str()))
	typ := workloadKinds[groupKind{group: group, kind: kind}]
	if row, known := kinds[kind]; known && row.group == group {
		typ = row.typ
	}
	switch {
	case typ == nil:
		u.find(t.Get("metadata"), "metadata", objectMeta)
	case t.Kind == yamltree.Mapping:
		u.fields(t, "", fieldsOf[typ], "status")
	}
	if u.more > 0 {
		u.faults = append(u.faults, &yamltree.Fault{Line: t.Line, Text: fmt.Sprintf("%d more unknown fields", u.more)})
	}
	return u.faults
}

// unknown collects unknown fields.
type unknown struct {
	faults []*yamltree.Fault
	more   int
}

// find looks for unknown fields of a value of a type. A value of another form is for the decoding to refuse.
func (u *unknown) find(t *yamltree.Tree, path string, typ reflect.Type) {
	typ = pointee(typ)
	switch {
	case t == nil || decodesItself(typ):
	case typ.Kind() == reflect.Slice && t.Kind == yamltree.Sequence:
		for i, item := range t.Items {
			u.find(item, fmt.Sprintf("%s[%d]", path, i), typ.Elem())
		}
	case typ.Kind() == reflect.Map && t.Kind == yamltree.Mapping:
		for _, e := range t.Entries {
			u.find(e.Value, yamltree.JoinPath(path, e.Key), typ.Elem())
		}
	case typ.Kind() == reflect.Struct && t.Kind == yamltree.Mapping:
		u.fields(t, path, fieldsOf[typ], "")
	}
}

// fields looks for unknown fields of a struct; the field skipped is not looked at.
func (u *unknown) fields(t *yamltree.Tree, path string, fields map[string]reflect.Type, skipped string) {
	for _, e := range t.Entries {
		at := yamltree.JoinPath(path, e.Key)
		typ, known := fields[e.Key]
		switch {
		case e.Key == skipped && known:
		case known:
			u.find(e.Value, at, typ)
		case len(u.faults) == maxUnknown:
			u.more++
		default:
			u.faults = append(u.faults, &yamltree.Fault{Line: e.Line, Path: at, Text: "unknown field" + meantField(e.Key, fields), Unknown: true})
		}
	}
}

// meantField is the remedy for an unknown field: the most similar of the fields, if one is.
func meantField(key string, fields map[string]reflect.Type) string {
	const maxLength = 64 // bytes of names that are compared; longer ones are no misspelling of a field
	best, least := "", 3
	if len(key) > maxLength {
		return ": it has no effect; remove it"
	}
	for name := range fields {
		if name == "" {
			continue
		}
		if d := spelling.Distance(strings.ToLower(key), strings.ToLower(name)); d < len(key) && (d < least || d == least && best != "" && name < best) {
			best, least = name, d
		}
	}
	switch {
	case best == "":
		return ": it has no effect; remove it"
	case least == 0:
		return "; did you mean " + best + "? Kubernetes distinguishes capital letters"
	}
	return ": it has no effect; did you mean " + best + "?"
}

// pointee returns the type that pointers of a type lead to.
func pointee(typ reflect.Type) reflect.Type {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	return typ
}

// decodesItself reports whether the fields of a type say nothing about its JSON.
func decodesItself(typ reflect.Type) bool {
	return reflect.PointerTo(typ).Implements(reflect.TypeFor[json.Unmarshaler]())
}

// fieldsOf has the fields, by their names in JSON, of all structs that objects of Kubernetes' own kinds consist of.
var fieldsOf = func() map[reflect.Type]map[string]reflect.Type {
	out := map[reflect.Type]map[string]reflect.Type{}
	var add func(reflect.Type)
	add = func(typ reflect.Type) {
		switch typ = pointee(typ); typ.Kind() {
		case reflect.Slice, reflect.Map:
			add(typ.Elem())
		case reflect.Struct:
			if out[typ] != nil || decodesItself(typ) {
				return
			}
			out[typ] = jsonFields(typ)
			for _, field := range out[typ] {
				add(field)
			}
		}
	}
	add(objectMeta)
	for _, row := range kinds {
		if row.typ != nil {
			add(row.typ)
		}
	}
	for _, typ := range workloadKinds {
		add(typ)
	}
	return out
}()
