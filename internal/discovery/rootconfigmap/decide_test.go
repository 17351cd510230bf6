package rootconfigmap

import (
	"testing"
	"time"

	meshv1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhichNamespaces(t *testing.T) {
	mesh := &meshv1.MeshConfig{DiscoverySelectors: []*meshv1.LabelSelector{
		{MatchLabels: map[string]string{"env": "prod"}},
		{MatchExpressions: []*meshv1.LabelSelectorRequirement{{Key: "team", Operator: "In", Values: []string{"a", "b"}}}},
	}}
	selectors, err := Selectors(mesh)
	if err != nil {
		t.Fatal(err)
	}
	ended := metav1.Now()
	for name, tt := range map[string]struct {
		meta          metav1.ObjectMeta
		phase         corev1.NamespacePhase
		all, selected bool
	}{
		"plain":             {metav1.ObjectMeta{Name: "shop"}, corev1.NamespaceActive, true, false},
		"first selector":    {metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"env": "prod"}}, corev1.NamespaceActive, true, true},
		"second selector":   {metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "b"}}, corev1.NamespaceActive, true, true},
		"other labels":      {metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "c", "env": "test"}}, corev1.NamespaceActive, true, false},
		"of Kubernetes":     {metav1.ObjectMeta{Name: "kube-system", Labels: map[string]string{"env": "prod"}}, corev1.NamespaceActive, false, false},
		"public":            {metav1.ObjectMeta{Name: "kube-public"}, corev1.NamespaceActive, false, false},
		"leases of nodes":   {metav1.ObjectMeta{Name: "kube-node-lease"}, corev1.NamespaceActive, false, false},
		"storage":           {metav1.ObjectMeta{Name: "local-path-storage"}, corev1.NamespaceActive, false, false},
		"control plane":     {metav1.ObjectMeta{Name: "istio-system"}, corev1.NamespaceActive, true, false},
		"that ends":         {metav1.ObjectMeta{Name: "shop", DeletionTimestamp: &ended, Labels: map[string]string{"env": "prod"}}, corev1.NamespaceActive, false, false},
		"that is ending":    {metav1.ObjectMeta{Name: "shop"}, corev1.NamespaceTerminating, false, false},
		"without any phase": {metav1.ObjectMeta{Name: "shop"}, "", true, false},
	} {
		ns := &corev1.Namespace{ObjectMeta: tt.meta, Status: corev1.NamespaceStatus{Phase: tt.phase}}
		if all, selected := wants(ns, nil), wants(ns, selectors); all != tt.all || selected != tt.selected {
			t.Errorf("%s: %v, with selectors %v", name, all, selected)
		}
	}
	mesh.DiscoverySelectors[1].MatchExpressions[0].Operator = "Near"
	if _, err := Selectors(mesh); err == nil {
		t.Error("an unknown operator is accepted")
	}
}

func TestWhatIsWritten(t *testing.T) {
	same := map[string]string{configLabel: "true"}
	for name, tt := range map[string]struct {
		old     *corev1.ConfigMap
		differs bool
	}{
		"none":          {nil, true},
		"equal":         {&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Labels: same}, Data: map[string]string{key: "roots", "other": "x"}}, false},
		"empty":         {&corev1.ConfigMap{}, true},
		"other roots":   {&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Labels: same, ResourceVersion: "5"}, Data: map[string]string{key: "old", "other": "x"}}, true},
		"without label": {&corev1.ConfigMap{Data: map[string]string{key: "roots"}}, true},
	} {
		before := tt.old.DeepCopy()
		got, differs := desired(tt.old, "shop", DefaultName, "roots")
		if differs != tt.differs || got.Data[key] != "roots" || got.Labels[configLabel] != "true" {
			t.Errorf("%s: %v, %+v", name, differs, got)
		}
		if tt.old == nil {
			if got.Namespace != "shop" || got.Name != DefaultName {
				t.Errorf("%s: %+v", name, got)
			}
			continue
		}
		if before.Data[key] != tt.old.Data[key] || got.Data["other"] != before.Data["other"] || got.ResourceVersion != before.ResourceVersion {
			t.Errorf("%s: %+v was changed, or what else it has", name, tt.old)
		}
	}
}

// Two that write against each other write ever less often; new roots, and one restoration, are written at once.
func TestPace(t *testing.T) {
	var p pace
	now := time.Unix(0, 0)
	write := func(roots string) { p.wrote("shop", roots, now) }
	if p.wait("shop", "a", now) != 0 {
		t.Error("the first write waits")
	}
	write("a")
	if p.wait("shop", "a", now) != 0 {
		t.Error("the first restoration waits")
	}
	write("a")
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		if got := p.wait("shop", "a", now); got != want*time.Second {
			t.Errorf("restoration %d waits %s, want %d s", i+2, got, want)
		}
		if p.wait("shop", "b", now) != 0 || p.wait("bank", "a", now) != 0 {
			t.Error("other roots, or another namespace, wait")
		}
		now = now.Add(want * time.Second)
		if got := p.wait("shop", "a", now); got != 0 {
			t.Errorf("after %d s it waits %s more", want, got)
		}
		write("a")
	}
	if got := p.wait("shop", "a", now.Add(quiet)); got != 0 {
		t.Errorf("after 10 minutes it waits %s", got)
	}
	p.forget("shop")
	if len(p.writes) != 0 {
		t.Error("a namespace that is gone is remembered")
	}
}
