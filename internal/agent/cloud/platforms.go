package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	"github.com/pilothouse/pilothouse/internal/mesh"
)

// gcp asks for single values: the whole of the metadata contains credentials.
func (s *server) gcp(ctx context.Context) (Facts, error) {
	const mark = "Metadata-Flavor"
	values := map[string]string{}
	for _, v := range []struct{ key, path string }{
		// The zone is first: without it there is nothing to tell.
		{"zone", "instance/zone"},
		{"gcp_project", "project/project-id"}, {"gcp_project_number", "project/numeric-project-id"},
		{"gcp_gce_instance_id", "instance/id"}, {"gcp_gce_instance", "instance/name"},
		{"gcp_gce_instance_template", "instance/attributes/instance-template"}, {"gcp_gce_instance_created_by", "instance/attributes/created-by"},
		{"gcp_gke_cluster_name", "instance/attributes/cluster-name"}, {"location", "instance/attributes/cluster-location"},
	} {
		text, err := s.get(ctx, http.MethodGet, "/computeMetadata/v1/"+v.path, map[string]string{mark: "Google"}, mark)
		switch {
		case err == nil:
			values[v.key] = strings.TrimSpace(string(text))
		case !errors.Is(err, errAbsent) || v.key == "zone":
			return Facts{}, fmt.Errorf("%s: %w", v.path, err)
		}
	}
	f := Facts{Platform: GCP}
	if zone := path.Base(values["zone"]); usable(zone) { // projects/NUMBER/zones/ZONE
		f.Locality = mesh.Locality{Region: zone, Zone: zone}
		if i := strings.LastIndexByte(zone, '-'); i > 0 {
			f.Locality.Region = zone[:i]
		}
	}
	values["gcp_location"] = f.Locality.Zone
	if location := values["location"]; location != "" {
		values["gcp_location"] = location
	}
	if values["gcp_gke_cluster_name"] != "" && values["gcp_project"] != "" {
		values["gcp_gke_cluster_url"] = "https://container.googleapis.com/v1/projects/" + values["gcp_project"] + "/locations/" + values["gcp_location"] + "/clusters/" + values["gcp_gke_cluster_name"]
	}
	delete(values, "zone")
	delete(values, "location")
	f.Metadata = keep(values)
	return f, nil
}

// aws asks with a token (IMDSv2), which every instance has.
func (s *server) aws(ctx context.Context) (Facts, error) {
	token, err := s.get(ctx, http.MethodPut, "/latest/api/token", map[string]string{"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "")
	if err != nil {
		return Facts{}, err
	}
	if !usable(string(token)) {
		return Facts{}, errors.New("/latest/api/token: the answer is no token")
	}
	values := map[string]string{}
	for key, path := range map[string]string{
		"aws_region": "placement/region", "aws_availability_zone": "placement/availability-zone", "aws_instance_id": "instance-id",
	} {
		text, err := s.get(ctx, http.MethodGet, "/latest/meta-data/"+path, map[string]string{"X-aws-ec2-metadata-token": string(token)}, "")
		switch {
		case err == nil:
			values[key] = strings.TrimSpace(string(text))
		case !errors.Is(err, errAbsent):
			return Facts{}, err
		}
	}
	f := Facts{Platform: AWS, Metadata: keep(values)}
	f.Locality = mesh.Locality{Region: f.Metadata["aws_region"], Zone: f.Metadata["aws_availability_zone"]}
	if f.Locality == (mesh.Locality{}) {
		return Facts{}, errors.New("the answers have no region")
	}
	return f, nil
}

// azure asks for the description of the machine. Its tags are left out: anybody may have written anything there.
func (s *server) azure(ctx context.Context) (Facts, error) {
	text, err := s.get(ctx, http.MethodGet, "/metadata/instance/compute?api-version=2021-02-01&format=json", map[string]string{"Metadata": "true"}, "")
	if err != nil {
		return Facts{}, err
	}
	var c struct {
		Name              string `json:"name"`
		Location          string `json:"location"`
		Zone              string `json:"zone"`
		VMID              string `json:"vmId"`
		ResourceGroupName string `json:"resourceGroupName"`
		SubscriptionID    string `json:"subscriptionId"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return Facts{}, fmt.Errorf("read the answer: %w", err)
	}
	f := Facts{Platform: Azure, Metadata: keep(map[string]string{
		"azure_name": c.Name, "azure_location": c.Location, "azure_zone": c.Zone, "azure_vm_id": c.VMID,
		"azure_resource_group": c.ResourceGroupName, "azure_subscription_id": c.SubscriptionID,
	})}
	if f.Locality = (mesh.Locality{Region: f.Metadata["azure_location"], Zone: f.Metadata["azure_zone"]}); f.Locality.Region == "" {
		return Facts{}, errors.New("the answer has no location")
	}
	return f, nil
}
