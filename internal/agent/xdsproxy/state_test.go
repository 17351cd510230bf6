package xdsproxy

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
)

// place is a control plane that is never connected to.
type place struct{}

func (place) Address() string  { return "istiod.example:15012" }
func (place) RootFile() string { return "/etc/roots.pem" }

func (place) Connect(func(error), ...grpc.DialOption) (*grpc.ClientConn, error) {
	return nil, errors.New("not here")
}

// A control plane that is lost is one warning for each reason, with the file of its roots, until it is reached again.
func TestALostControlPlaneIsOneWarning(t *testing.T) {
	var out bytes.Buffer
	s := stats{connected: make(chan bool, 1), lost: lost{log: slog.New(slog.NewTextHandler(&out, nil)), upstream: place{}}}
	s.connected <- false
	refused, untrusted := errors.New("connection refused"), errors.New("unknown authority")
	for _, err := range []error{refused, refused, untrusted, refused, context.Canceled} {
		s.failed(err)
	}
	if n := strings.Count(out.String(), "the control plane cannot be reached"); n != 2 || !strings.Contains(out.String(), `address=istiod.example:15012 reason="unknown authority" root=/etc/roots.pem`) {
		t.Errorf("%d warnings: %s", n, out.String())
	}
	s.opened()
	if !strings.Contains(out.String(), "the control plane is reached again") {
		t.Error(out.String())
	}
	s.failed(refused)
	if n := strings.Count(out.String(), "the control plane cannot be reached"); n != 3 {
		t.Errorf("%d warnings after it was reached: %s", n, out.String())
	}
}

func TestTheLastRefusalOfAType(t *testing.T) {
	s := State{Nacks: []Nack{{Type: Listeners, Message: "first"}, {Type: Listeners, Message: "second"}, {Type: Clusters, Message: "other"}}}
	if a, b, c := s.Refusal(Listeners), s.Refusal(Clusters), (State{}).Refusal(Clusters); a != "second" || b != "other" || c != "" {
		t.Errorf("%q, %q, %q", a, b, c)
	}
}
