package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"

	"github.com/pilothouse/pilothouse/internal/agent/envoy"
	"github.com/pilothouse/pilothouse/internal/agent/node"
)

// Where the Pod's files lie, relative to the agent's working directory. [agent P22]
const (
	labelsFile      = "./etc/istio/pod/labels"
	annotationsFile = "./etc/istio/pod/annotations"
	// configFileVariable names a file with what PROXY_CONFIG would hold; unlike a variable it may change.
	configFileVariable = "PROXY_CONFIG_FILE"
)

// ReadNode fills in what the machine knows: the host's name, the interfaces' addresses and
// the files (the Pod's labels and annotations, the mesh file at meshFile). A file that is
// not there is absent; one that cannot be read is an error naming it.
func ReadNode(in node.Input, meshFile string) (node.Input, error) {
	in.Hostname, _ = os.Hostname() // only a name of last resort
	in, err := ReadFiles(in, meshFile)
	if err != nil {
		return in, err
	}
	in.CPULimit = envoy.CPULimit()
	nics, err := net.Interfaces()
	if err != nil {
		return in, fmt.Errorf("list network interfaces: %w", err)
	}
	for _, nic := range nics {
		if nic.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := nic.Addrs()
		if err != nil {
			continue // an interface that went away meanwhile has no address
		}
		i := node.Interface{Name: nic.Name}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				i.Addrs = append(i.Addrs, p.Addr())
			}
		}
		in.Interfaces = append(in.Interfaces, i)
	}
	return in, nil
}

// ReadFiles fills in the files' contents alone.
func ReadFiles(in node.Input, meshFile string) (node.Input, error) {
	for _, f := range []struct {
		path string
		into *[]byte
	}{
		{labelsFile, &in.Labels},
		{annotationsFile, &in.Annotations},
		{in.Env[configFileVariable], &in.ConfigFile},
		{meshFile, &in.MeshFile},
	} {
		if f.path == "" {
			continue
		}
		data, err := os.ReadFile(f.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return in, fmt.Errorf("read %s: %w", f.path, errors.Unwrap(err))
		}
		*f.into = data
	}
	return in, nil
}
