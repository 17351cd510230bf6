package objectstatus

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/pilothouse/pilothouse/internal/object"
)

// The status of an Ingress has the addresses while it is served. What others have written is replaced then, and otherwise stays.
func TestMergeIngress(t *testing.T) {
	addresses := []object.GatewayAddress{{Type: "IPAddress", Value: "203.0.113.9"}, {Type: "Hostname", Value: "lb.example.com"}}
	const ours, others = `{"loadBalancer":{"ingress":[{"ip":"203.0.113.9"},{"hostname":"lb.example.com"}]}}`, `{"loadBalancer":{"ingress":[{"ip":"192.0.2.1","ports":[{"port":80,"protocol":"TCP"}]}],"more":1},"x":2}`
	for name, tt := range map[string]struct {
		stored    string
		addresses []object.GatewayAddress
		foreign   bool
		written   bool
		want      string // empty for unchanged
	}{
		"new":                            {`{}`, addresses, false, false, ours},
		"the same":                       {ours, addresses, false, true, ""},
		"the same, written by others":    {ours, addresses, false, false, ""},
		"other fields stay":              {others, addresses, false, false, `{"loadBalancer":{"ingress":[{"ip":"203.0.113.9"},{"hostname":"lb.example.com"}],"more":1},"x":2}`},
		"no address, others' stay":       {others, nil, false, false, ""},
		"no address, ours goes":          {ours, nil, false, true, `{"loadBalancer":{"ingress":null}}`},
		"no address and nothing there":   {`{"loadBalancer":{}}`, nil, false, true, ""},
		"served no more":                 {ours, nil, true, true, `{"loadBalancer":{"ingress":null}}`},
		"another's":                      {others, nil, true, false, ""},
		"another's without a status":     {`{}`, nil, true, false, ""},
		"fewer":                          {ours, addresses[:1], false, true, `{"loadBalancer":{"ingress":[{"ip":"203.0.113.9"}]}}`},
		"an address and a name in one":   {`{"loadBalancer":{"ingress":[{"ip":"203.0.113.9","hostname":"x"}]}}`, addresses[:1], false, true, `{"loadBalancer":{"ingress":[{"ip":"203.0.113.9"}]}}`},
		"what is stored has other types": {`{"loadBalancer":[1]}`, addresses[:1], false, false, `{"loadBalancer":{"ingress":[{"ip":"203.0.113.9"}]}}`},
	} {
		var stored map[string]any
		if err := json.Unmarshal([]byte(tt.stored), &stored); err != nil {
			t.Fatal(err)
		}
		o := Observation{Generation: 3, GatewayAPI: true, Gateway: &object.GatewayStatus{Kind: object.Ingress, Foreign: tt.foreign, Addresses: tt.addresses}}
		want, ok := Decide(3, &o, 0)
		if !ok {
			t.Fatal(name)
		}
		want.Written = tt.written
		out, change := Merge(stored, want, time.Now())
		text, err := json.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		expected, moved := tt.want, VersionChange
		if tt.want == "" {
			moved = Unchanged
			same, _ := json.Marshal(stored)
			expected = string(same)
		}
		if string(text) != expected || change != moved {
			t.Errorf("%s: %v %s, want %v %s", name, change, text, moved, expected)
		}
		if before, _ := json.Marshal(stored); tt.want != "" && string(before) == tt.want {
			t.Errorf("%s: what is stored was changed", name)
		}
	}
}
