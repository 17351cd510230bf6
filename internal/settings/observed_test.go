package settings

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"golang.org/x/tools/txtar"
)

// container is what is needed of a container that Istio's injector adds.
type container struct {
	Name, Image string
	Args        []string
	Env         []struct {
		Name      string
		Value     string
		ValueFrom any `yaml:"valueFrom"`
	}
}

// containers are all containers in a document, wherever they are.
func containers(n *yaml.Node) (all []container, err error) {
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && strings.HasSuffix(strings.ToLower(n.Content[i-1].Value), "containers") && c.Kind == yaml.SequenceNode {
			var list []container
			if err := c.Decode(&list); err != nil {
				return nil, err
			}
			all = append(all, list...)
		}
		more, err := containers(c)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	return all, nil
}

// byUsers are flags and variables of the observed Pods that their users, and not the injector, have written: with proxyMetadata or
// in a container istio-proxy of their own.
var byUsers = []string{"FOO", "MY_ENV", "--custom", "PILOT_CERT_PROVIDER=other"}

// Every flag and variable that Istio's injector was observed to write for the agent has a row, which takes the value.
func TestWhatIstioInjectsIsTaken(t *testing.T) {
	files, err := filepath.Glob("../discovery/inject/testdata/[0-9]*.txtar")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d observed objects, error %v", len(files), err)
	}
	commands := map[string]Command{}
	for _, c := range Commands() {
		commands[c.Path] = c
	}
	flagCount, envCount := map[string]int{}, map[string]int{}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := slices.IndexFunc(archive.Files, func(f txtar.File) bool { return f.Name == "want.yaml" })
		if want < 0 {
			continue // the injector refused it
		}
		dec := yaml.NewDecoder(strings.NewReader(string(archive.Files[want].Data)))
		for {
			var document yaml.Node
			if err := dec.Decode(&document); err != nil {
				break // the end; the files are parsed whole by the tests of the injector
			}
			all, err := containers(&document)
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for _, c := range all {
				if len(c.Args) == 0 || c.Args[0] != "proxy" && c.Args[0] != "istio-iptables" {
					continue
				}
				command, ok := commands["pilot-agent "+c.Args[0]]
				if !ok {
					t.Fatalf("no command %s", c.Args[0])
				}
				check(t, filepath.Base(file), command, commands["pilot-agent proxy"], c, flagCount, envCount)
			}
		}
	}
	if len(flagCount) < 15 || len(envCount) < 20 {
		t.Errorf("only %d flags and %d variables were looked at: %v %v", len(flagCount), len(envCount), flagCount, envCount)
	}
}

// check reads the arguments and variables of a container as the command does. The variables may be those of the proxy, too:
// proxyMetadata is written to both containers.
func check(t *testing.T, file string, command, proxy Command, c container, flagCount, envCount map[string]int) {
	t.Helper()
	tables := append(slices.Clone(command.Tables), command.Shared...)
	find := func(tables []Table, match func(s *Setting) bool) *Setting {
		for _, table := range tables {
			for i := range table {
				if match(&table[i]) {
					return &table[i]
				}
			}
		}
		return nil
	}
	flags, env := map[string]string{}, map[string]string{}
	args := c.Args[1:]
	if c.Args[0] == "proxy" {
		args = args[1:] // the role
	}
	for len(args) > 0 {
		name, value, inline := strings.Cut(args[0], "=")
		args = args[1:]
		if slices.Contains(byUsers, name) {
			continue
		}
		s := find(tables, func(s *Setting) bool {
			return s.Flag != "" && ("--"+s.Flag == name || "-"+s.Short == name && s.Short != "")
		})
		if s == nil {
			t.Errorf("%s: container %s: flag %q has no row in the tables of %s", file, c.Name, name, command.Path)
			return
		}
		if !inline {
			if s.Kind == Bool && (len(args) == 0 || strings.HasPrefix(args[0], "-")) {
				value = "true"
			} else {
				value, args = args[0], args[1:]
			}
		}
		flagCount[s.Flag]++
		flags[s.Flag] = value
	}
	for _, e := range c.Env {
		if slices.Contains(byUsers, e.Name) || slices.Contains(byUsers, e.Name+"="+e.Value) {
			continue
		}
		if find(slices.Concat(tables, proxy.Tables), func(s *Setting) bool {
			return slices.ContainsFunc(s.Env, func(name string) bool {
				prefix, isPrefix := strings.CutSuffix(name, "*")
				return name == e.Name || isPrefix && strings.HasPrefix(e.Name, prefix)
			})
		}) == nil {
			t.Errorf("%s: container %s: variable %s has no row in the tables of %s", file, c.Name, e.Name, command.Path)
		}
		envCount[e.Name]++
		if e.ValueFrom == nil {
			env[e.Name] = e.Value
		}
	}
	v := Read(flags, env, tables...)
	for _, table := range tables {
		for i := range table {
			v.current(&table[i])
		}
	}
	if err := v.Err(); err != nil {
		t.Errorf("%s: container %s: %v", file, c.Name, err)
	}
}
