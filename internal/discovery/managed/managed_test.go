package managed

import "testing"

func TestNames(t *testing.T) {
	for annotation, want := range map[string]bool{"": false, "one": true, "two": false, "two, one": true, "*": true, "ones": false, "two,*": true} {
		if got := names(annotation, "one"); got != want {
			t.Errorf("%q names one: %v, want %v", annotation, got, want)
		}
	}
	if names("", "") || names("one", "") {
		t.Error("a control plane whose cluster has no name is named")
	}
}
