package agent

import (
	"context"
	"log/slog"

	"github.com/pilothouse/pilothouse/internal/agent/cloud"
	"github.com/pilothouse/pilothouse/internal/agent/spec"
	"github.com/pilothouse/pilothouse/internal/agent/xdsproxy"
	"github.com/pilothouse/pilothouse/internal/mesh"
	"github.com/pilothouse/pilothouse/internal/run"
)

// cloudTask finds out where the machine is, beside the start, and tells the control plane. [agent B6, B8]
func cloudTask(s *spec.Spec, xds *xdsproxy.Proxy, log *slog.Logger) run.Task {
	return run.Task{Name: "cloud", Run: func(ctx context.Context) error {
		facts, err := cloud.Find(ctx, cloud.Options{Platform: s.Cloud.Platform, IPv6: s.IPv6Only(), GCPHost: s.Cloud.GCPHost, Log: log})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			log.Warn("the cloud's metadata is not known: locality and PLATFORM_METADATA are missing (CLOUD_PLATFORM)", "platform", s.Cloud.Platform, "error", err)
		} else {
			log.Info("the cloud's metadata is known", "platform", facts.Platform, "region", facts.Locality.Region, "zone", facts.Locality.Zone)
			xds.SetNode(addition(s, facts))
		}
		<-ctx.Done()
		return nil
	}}
}

// addition is what facts add to the node: a locality from labels counts more.
func addition(s *spec.Spec, f cloud.Facts) xdsproxy.Addition {
	a := xdsproxy.Addition{Key: "PLATFORM_METADATA", Values: f.Metadata}
	if s.Node.Locality == (mesh.Locality{}) {
		a.Region, a.Zone, a.SubZone = f.Locality.Region, f.Locality.Zone, f.Locality.Subzone
	}
	return a
}
