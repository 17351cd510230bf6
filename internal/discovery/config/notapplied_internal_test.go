package config

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoregistry"
)

// A field with a misspelt name would be ignored without a verdict.
func TestConsequencesNameExistingFields(t *testing.T) {
	for name, q := range consequences {
		if _, err := protoregistry.GlobalFiles.FindDescriptorByName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if q.text == "" {
			t.Errorf("%s: no text", name)
		}
	}
}
