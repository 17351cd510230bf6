package up

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pilothouse/pilothouse/internal/lab/meshup"
	"github.com/pilothouse/pilothouse/internal/lab/podplan"
)

// SampleImage is the image of the sample application, which the stand-in is: its arguments are the stand-in's.
const SampleImage = "pilothouse/app"

// choice is what a container runs.
type choice struct {
	container podplan.Container
	// path and args are a program of this machine; without a path the container is a stand-in.
	path string
	args []string
	// why says why it is a stand-in.
	why string
}

// line is the program as a person confirms it.
func (c choice) line() string {
	if c.path == "" {
		return ""
	}
	return strings.Join(append([]string{c.path}, c.args...), " ")
}

// chooser decides what containers run.
type chooser struct {
	// exec has the commands of --exec by workload, or by workload/container.
	exec map[string][]string
	// user is the name of whom programs run as.
	user string
	// find finds a program of this machine that the user may run.
	find func(name string) (string, error)
}

// choose decides what a container of a Pod runs: what --exec says, else its command if this machine has the program,
// else a stand-in that answers on its ports.
func (ch chooser) choose(p podplan.Pod, c podplan.Container) choice {
	out := choice{container: c}
	command, args := c.Command, c.Args
	said := false
	for _, key := range []string{p.Workload + "/" + c.Name, p.Workload} {
		if words, ok := ch.exec[key]; ok {
			command, args, said = words[:1], words[1:], true
			break
		}
	}
	switch {
	case len(command) == 0 && (c.Image == SampleImage || strings.HasPrefix(c.Image, SampleImage+":")):
		out.why, out.args = "the sample application", c.Args
		return out
	case len(command) == 0:
		out.why = "no command; image " + c.Image
		return out
	}
	path, err := ch.find(command[0])
	if err != nil {
		out.why = fmt.Sprintf("this machine has no %s that %s may run", command[0], ch.user)
		if said {
			out.why += ", which --exec names"
		}
		return out
	}
	out.path, out.args = path, slices.Concat(command[1:], args)
	return out
}

// unknown returns the keys of --exec that no workload has.
func (ch chooser) unknown(plan *podplan.Plan) []string {
	known := map[string]bool{}
	for _, p := range plan.Pods {
		known[p.Workload] = true
		for _, c := range p.Containers {
			known[p.Workload+"/"+c.Name] = true
		}
	}
	var out []string
	for key := range ch.exec {
		if !known[key] {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// ParseExec parses a value of --exec, WORKLOAD[/CONTAINER]=COMMAND, whose words are separated by blanks.
func ParseExec(text string) (key string, command []string, err error) {
	key, line, ok := strings.Cut(text, "=")
	command = strings.Fields(line)
	if !ok || key == "" || len(command) == 0 {
		return "", nil, fmt.Errorf("parse %q: want WORKLOAD=COMMAND or WORKLOAD/CONTAINER=COMMAND", text)
	}
	return key, command, nil
}

// program is the program of a container; standIn is the stand-in's path, and dir the directory of the YAML, empty if
// the user has no access to it.
func (c choice) program(p podplan.Pod, u User, standIn, dir string) meshup.Program {
	out := meshup.Program{
		Container: c.container.Name, UID: u.UID, GID: u.GID, Once: p.Once,
		Env: slices.Concat([]string{
			"PATH=" + u.Path, "HOME=" + u.Home, "USER=" + u.Name, "LANG=C.UTF-8", "POD_NAME=" + p.Name, "POD_NAMESPACE=" + p.Namespace, "POD_IP=" + p.IP.String(),
		}, c.container.Env),
	}
	var http, tcp []string
	for _, port := range c.container.Ports {
		if port.UDP {
			continue
		}
		out.Ports = append(out.Ports, port.Number)
		if addr := fmt.Sprintf(":%d", port.Number); port.HTTP {
			http = append(http, addr)
		} else {
			tcp = append(tcp, addr)
		}
	}
	if c.path != "" {
		out.Path, out.Args, out.Dir = c.path, c.args, dir
		if wd := c.container.WorkingDir; filepath.IsAbs(wd) {
			out.Dir = wd
		} else if wd != "" && dir != "" {
			out.Dir = filepath.Join(dir, wd)
		}
		return out
	}
	out.Path = standIn
	out.Args = []string{"sample-app", "-log", "-service=" + p.Workload, "-version=" + p.Labels["version"], "-pod=" + p.Name}
	switch {
	case c.args != nil:
		out.Args = append(out.Args, c.args...)
		out.Ports = listenPorts(c.args)
	case len(http)+len(tcp) > 0:
		out.Args = append(out.Args, "-http="+strings.Join(http, ","), "-tcp="+strings.Join(tcp, ","))
	}
	out.Args = slices.DeleteFunc(out.Args, func(a string) bool { return a == "-http=" || a == "-tcp=" })
	return out
}

// listenPorts are the ports in the arguments of the sample application, such as -http=:9080,:9081.
func listenPorts(args []string) []uint16 {
	var out []uint16
	for _, a := range args {
		flag, list, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if flag != "http" && flag != "tcp" {
			continue
		}
		for addr := range strings.SplitSeq(list, ",") {
			if n, err := strconv.ParseUint(addr[strings.LastIndexByte(addr, ':')+1:], 10, 16); err == nil && n > 0 {
				out = append(out, uint16(n))
			}
		}
	}
	return out
}
