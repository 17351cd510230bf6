// Command dns stands for the image coredns in the UDP tests of the conformance suite: it answers each query without an address.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/miekg/dns"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := serve(ctx, ":53"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve answers at an address until ctx ends.
func serve(ctx context.Context, address string) error {
	s := &dns.Server{Addr: address, Net: "udp", Handler: dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		if err := w.WriteMsg(new(dns.Msg).SetReply(query)); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	})}
	failed := make(chan error, 1)
	go func() { failed <- s.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return s.Shutdown()
	}
}
