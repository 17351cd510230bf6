package settings

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// Every row is whole: a reader of the documentation finds all that there is to know.
func TestRowsAreWhole(t *testing.T) {
	for _, c := range Commands() {
		for _, table := range c.Tables {
			for i := range table {
				s := &table[i]
				name := c.Path + " " + s.Name()
				if s.Help == "" || s.Unit == "" || (s.Used == "") == (s.NoEffect == "") {
					t.Errorf("%s: help, unit, and one of used and no effect are needed: %+v", name, s)
				}
				if s.Flag != "" && strings.Count(s.Help, "`") != 2 && s.Kind != Bool && s.Unit != "duration" {
					t.Errorf("%s: the help names no argument between backquotes", name)
				}
				if s.Flag == "" && strings.Contains(s.Help, "`") {
					t.Errorf("%s: a variable has no argument", name)
				}
				if len(s.Values) > 0 != (s.Kind == Enum) {
					t.Errorf("%s: values belong to an enum", name)
				}
				if s.Kind == Enum && s.Default == "" && !slices.Contains(s.Values, "") {
					t.Errorf("%s: an enum without a default must take the empty value", name)
				}
				if s.Default != "" && (s.Number != 0 || s.Otherwise != "") {
					t.Errorf("%s: more than one default", name)
				}
				if def := s.DefaultText(); def != "" {
					if got, err := s.Canonical(def); err != nil || got != def {
						t.Errorf("%s: default %q, in its usual spelling %q, %v", name, def, got, err)
					}
				}
			}
		}
	}
}

// Within what one command takes, a name means one setting.
func TestNamesAreUnique(t *testing.T) {
	for _, c := range Commands() {
		seen := map[string]bool{}
		for _, table := range append(slices.Clone(c.Tables), c.Shared...) {
			for i := range table {
				s := &table[i]
				for _, name := range append([]string{s.Flag, s.Short}, s.Env...) {
					// pilotctl collateral leaves its short flag to --output.
					if name != "" && seen[name] && !(name == "o" && c.Path == "pilotctl collateral") {
						t.Errorf("%s: %s is there twice", c.Path, name)
					}
					seen[name] = true
				}
			}
		}
	}
}

// What a row says about where its value is used is a place of this tree.
func TestUsedIsAPlace(t *testing.T) {
	for _, c := range Commands() {
		for _, table := range c.Tables {
			for i := range table {
				if used := table[i].Used; used != "" {
					if _, err := os.Stat("../../" + used); err != nil {
						t.Errorf("%s %s is used in %s: %v", c.Path, table[i].Name(), used, err)
					}
				}
			}
		}
	}
}

// Ports within a text cannot be written as the constants that they are.
func TestPortsInTexts(t *testing.T) {
	find := func(t Table, name string) string { return Read(nil, nil, t).find(name).Default }
	for _, tt := range []struct {
		text string
		port int
	}{{find(AgentProxy, "DNS_PROXY_ADDR"), mesh.DNSPort}, {find(AgentWait, "url"), mesh.HealthPort}} {
		if !strings.Contains(tt.text, ":"+strconv.Itoa(tt.port)) {
			t.Errorf("%s does not have port %d", tt.text, tt.port)
		}
	}
}
