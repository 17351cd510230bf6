package multi

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pilothouse/pilothouse/internal/object"
)

// Limits on what Secrets may name: clusters, and bytes of a kubeconfig.
const (
	maxClusters   = 256
	maxKubeconfig = 256 << 10
)

// Secret is one Secret with kubeconfigs. Its data must not be logged.
type Secret struct {
	Name string
	// Data has a kubeconfig for each cluster, by the cluster's ID.
	Data map[string][]byte
}

// remote is a cluster that a Secret names.
type remote struct {
	secret     string
	kubeconfig []byte
}

func (r remote) equal(o remote) bool {
	return r.secret == o.secret && bytes.Equal(r.kubeconfig, o.kubeconfig)
}

// plan returns the clusters that Secrets name, by ID. own is the ID of the control plane's cluster. A cluster that
// several Secrets name is that of the first one by name.
func plan(secrets []Secret, own string) (map[string]remote, []object.Problem) {
	secrets = slices.SortedFunc(slices.Values(secrets), func(a, b Secret) int { return cmp.Compare(a.Name, b.Name) })
	out := map[string]remote{}
	var problems []object.Problem
	for _, s := range secrets {
		ids := make([]string, 0, len(s.Data))
		for id := range s.Data {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		for _, id := range ids {
			text := ""
			switch first, taken := out[id]; {
			case id == own:
				text = "is the ID of the control plane's own cluster: rename the key, or start pilot-discovery with another --clusterID"
			case taken:
				text = fmt.Sprintf("is a key of Secret %s, too, which is used: remove one of them", first.secret)
			case len(s.Data[id]) == 0:
				text = "is empty: want a kubeconfig"
			case len(s.Data[id]) > maxKubeconfig:
				text = fmt.Sprintf("has %d bytes: want at most %d", len(s.Data[id]), maxKubeconfig)
			case len(out) == maxClusters:
				text = fmt.Sprintf("is one cluster too many: want at most %d", maxClusters)
			default:
				out[id] = remote{s.Name, s.Data[id]}
				continue
			}
			problems = append(problems, secretProblem(s.Name, id, text))
		}
	}
	return out, problems
}

// secretProblem returns a problem with a key of a Secret. Its text must not have anything of the value.
func secretProblem(secret, key, text string) object.Problem {
	return object.Problem{Origin: object.Origin{File: "Secret " + secret}, Field: "data." + key, Text: "key " + text}
}

// The schemes of configSources.
const (
	directoryScheme = "fs://"
	clusterScheme   = "k8s://"
)

// configSources returns the directories among the addresses of configSources, each once, and whether Istio's kinds are
// read from the control plane's cluster, too. Addresses of other schemes are left out; package config reports them.
func configSources(addresses []string) (directories []string, cluster bool) {
	cluster = len(addresses) == 0
	for _, a := range addresses {
		if strings.HasPrefix(a, clusterScheme) {
			cluster = true
		}
		if path, ok := strings.CutPrefix(a, directoryScheme); ok && path != "" && !slices.Contains(directories, path) {
			directories = append(directories, path)
		}
	}
	return directories, cluster
}
