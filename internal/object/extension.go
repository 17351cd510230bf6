package object

import (
	extensions "istio.io/api/extensions/v1alpha1"
)

// TrafficExtensionOf returns the TrafficExtension that says what a WasmPlugin does, which is the older form of one: all that reads either
// reads the newer. [control-plane 1.11.5, 1.11.6]
func TrafficExtensionOf(w *extensions.WasmPlugin) *extensions.TrafficExtension {
	out := &extensions.TrafficExtension{
		Selector: w.GetSelector(), TargetRefs: w.GetTargetRefs(), Phase: extensions.TrafficExtension_ExecutionPhase(w.GetPhase()), Priority: w.GetPriority(),
		FilterConfig: &extensions.TrafficExtension_Wasm{Wasm: &extensions.WasmConfig{
			Url: w.GetUrl(), Sha256: w.GetSha256(), ImagePullPolicy: w.GetImagePullPolicy(), ImagePullSecret: w.GetImagePullSecret(), VerificationKey: w.GetVerificationKey(),
			PluginConfig: w.GetPluginConfig(), PluginName: w.GetPluginName(), FailStrategy: w.GetFailStrategy(), VmConfig: w.GetVmConfig(), Type: w.GetType(),
		}},
	}
	if len(out.TargetRefs) == 0 && w.GetTargetRef() != nil {
		out.TargetRefs = append(out.TargetRefs, w.GetTargetRef())
	}
	for _, m := range w.GetMatch() {
		out.Match = append(out.Match, &extensions.TrafficSelector{Mode: m.GetMode(), Ports: m.GetPorts()})
	}
	return out
}
