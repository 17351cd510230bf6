package config

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoregistry"
)

// A name that is misspelt here would leave its field silent.
func TestConsequencesNameWhatThereIs(t *testing.T) {
	for name, q := range consequences {
		if _, err := protoregistry.GlobalFiles.FindDescriptorByName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if q.text == "" {
			t.Errorf("%s: nothing is said of what follows", name)
		}
	}
}
