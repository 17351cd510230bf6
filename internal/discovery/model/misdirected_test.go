package model

import (
	"fmt"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

func httpsListener(host string) Server {
	return Server{
		Spec:  &networking.Server{Port: &networking.Port{Protocol: "HTTPS"}, Tls: &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE}},
		hosts: []egressHost{{host: host}}, listener: &gatewayListener{},
	}
}

func TestHostsOfOtherListeners(t *testing.T) {
	exact, wildcard := httpsListener("a.example.com"), httpsListener("*.example.com")
	port := RouterPort{Servers: []Server{exact, wildcard, httpsListener("b.example.org")}}
	if elsewhere, own := exact.Misdirected(port); !slices.Equal(elsewhere, []string{"*.example.com", "b.example.org"}) || own != "a.example.com" {
		t.Errorf("elsewhere %q, own %q", elsewhere, own)
	}
	if elsewhere, own := wildcard.Misdirected(port); !slices.Equal(elsewhere, []string{"a.example.com", "b.example.org"}) || own != "" {
		t.Errorf("of the wildcard: elsewhere %q, own %q", elsewhere, own)
	}
	istio := exact
	istio.listener = nil
	if elsewhere, _ := istio.Misdirected(port); elsewhere != nil {
		t.Errorf("of a server of a Gateway of Istio: %q", elsewhere)
	}
}

// Each listener's route configuration has the hosts of all others: the size would be the square of their number.
func TestHostsOfManyListenersAreNotTold(t *testing.T) {
	port := RouterPort{Servers: []Server{httpsListener("a.example.com")}}
	for i := range maxMisdirected {
		port.Servers = append(port.Servers, httpsListener(fmt.Sprintf("host-%03d.example.com", i)))
	}
	if elsewhere, _ := port.Servers[0].Misdirected(port); len(elsewhere) != maxMisdirected {
		t.Errorf("%d hosts, want %d", len(elsewhere), maxMisdirected)
	}
	port.Servers = append(port.Servers, httpsListener("more.example.com"))
	if elsewhere, own := port.Servers[0].Misdirected(port); elsewhere != nil || own != "" {
		t.Errorf("%d hosts and own %q, want none", len(elsewhere), own)
	}
}
