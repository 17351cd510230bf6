package admit_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/pilothouse/pilothouse/internal/discovery/admit"
	"github.com/pilothouse/pilothouse/internal/discovery/config"
	"github.com/pilothouse/pilothouse/internal/printable"
)

// isPrintable also takes the mark that stands for invalid UTF-8.
func isPrintable(s string) bool { return printable.Is(strings.ReplaceAll(s, "\ufffd", "")) }

// Whatever is sent, the answer is bounded and printable, and an object that does not change is not refused.
func FuzzDecide(f *testing.F) {
	for _, tt := range decisions {
		f.Add(string(tt.op), "", raw(f, tt.now), raw(f, tt.before))
	}
	f.Add("UPDATE", "status", []byte("{"), []byte(`{"metadata":{"name":7}}`))
	f.Fuzz(func(t *testing.T, op, sub string, now, before []byte) {
		rules := admit.Rules{MeshConfig: config.MeshConfigKey("istio-system", "")}
		q := &admissionv1.AdmissionRequest{UID: "u", Operation: admissionv1.Operation(op), SubResource: sub, Namespace: "shop"}
		q.Object.Raw, q.OldObject.Raw = now, before
		d, err := rules.Decide(q)
		if err != nil {
			if len(err.Error()) > 1024 || !isPrintable(err.Error()) {
				t.Errorf("error of %d bytes: %q", len(err.Error()), err)
			}
			return
		}
		if d.Allowed == (d.Message != "") || len(d.Message) > 4500 || !isPrintable(d.Message) || len(d.Warnings) > 12 {
			t.Errorf("%+v", d)
		}
		for _, w := range d.Warnings {
			if len(w) > 256 || !isPrintable(w) {
				t.Errorf("warning of %d bytes: %q", len(w), w)
			}
		}
		if utf8.Valid(now) && utf8.Valid(before) {
			if _, err := admit.Parse(bytes.Replace(admit.Encode(d.Response(q)), []byte(`"response"`), []byte(`"request"`), 1)); err != nil {
				t.Errorf("the answer cannot be read: %v", err)
			}
		}
		if !json.Valid(now) {
			return
		}
		q.Operation, q.OldObject.Raw = admissionv1.Update, now
		if d, err := rules.Decide(q); err == nil && !d.Allowed {
			t.Errorf("an update that changes nothing is refused: %s", d.Message)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","object":{}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		q, err := admit.Parse(text)
		if err != nil && (len(err.Error()) > 1024 || !isPrintable(err.Error())) {
			t.Errorf("error of %d bytes: %q", len(err.Error()), err)
		}
		if err == nil {
			if d, err := (admit.Rules{}).Decide(q); err == nil {
				admit.Encode(d.Response(q))
			}
		}
	})
}
