package compile_test

import (
	"math/rand/v2"
	"testing"

	"github.com/pilothouse/pilothouse/internal/object"
)

// noRuleReads are the kinds that no rule of the compiler reads, with what reads them.
var noRuleReads = map[object.Kind]string{
	object.ServiceAccount: "nothing",
	object.Secret:         "package ca",
	object.ProxyConfig:    "the injector",
	object.WorkloadGroup:  "package register",
}

// What a rule reads is in the random histories, or nothing shows that it is recorded: a new kind needs a case in change.
func TestHistoriesHaveEveryKind(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	data := make([]byte, 500_000)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	made, gone := map[object.Kind]int{}, map[object.Kind]int{}
	for d := (&dice{data: data}); len(d.data) > 0; {
		if c := d.change(); c.Object == nil {
			gone[c.Key.Kind]++
		} else {
			made[c.Key.Kind]++
		}
	}
	for _, k := range object.Kinds() {
		if by, unread := noRuleReads[k]; unread && made[k] > 0 {
			t.Errorf("%s is made, and is said to be read by %s", k, by)
		} else if !unread && (made[k] < 10 || gone[k] < 10) {
			t.Errorf("%s is made %d times and removed %d times, want at least 10", k, made[k], gone[k])
		}
	}
}
