package proxy_test

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"

	"github.com/pilothouse/pilothouse/proxy"
)

// Each configuration runs in the next epoch. The agent does not end the older one: here it exits when
// its successor starts.
func ExampleAgent() {
	ctx, cancel := context.WithCancel(context.Background())
	started := make(chan string)
	successor := []chan struct{}{make(chan struct{}), make(chan struct{})}
	agent := proxy.NewAgent(proxy.ProxyFuncs{
		RunFunc: func(config any, epoch int, abort <-chan error) error {
			if epoch > 0 {
				close(successor[epoch-1])
			}
			started <- fmt.Sprintf("epoch %d runs with %v", epoch, config)
			select {
			case <-successor[epoch]:
				return nil
			case err := <-abort:
				return err
			}
		},
	}, proxy.DefaultRetry)

	done := make(chan struct{})
	go func() {
		defer close(done)
		agent.Run(ctx)
	}()
	agent.ScheduleConfigUpdate("blue")
	fmt.Println(<-started)
	agent.ScheduleConfigUpdate("blue") // no change
	agent.ScheduleConfigUpdate("green")
	fmt.Println(<-started)
	cancel()
	<-done
	fmt.Println("ended with", agent.Err())
	// Output:
	// epoch 0 runs with blue
	// epoch 1 runs with green
	// ended with <nil>
}

// A Proxy that runs a program: the epoch is in the command line, an abort kills the process.
func ExampleProxyFuncs() {
	run := func(config any, epoch int, abort <-chan error) error {
		cmd := exec.Command("envoy", "-c", config.(string), "--restart-epoch", strconv.Itoa(epoch))
		if err := cmd.Start(); err != nil {
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			return err
		case err := <-abort:
			_ = cmd.Process.Kill()
			<-ended
			return err
		}
	}
	agent := proxy.NewAgent(proxy.ProxyFuncs{
		RunFunc:   run,
		PanicFunc: func(config any) { fmt.Println("given up:", config) },
	}, proxy.Retry{MaxRetries: 0})
	go agent.ScheduleConfigUpdate("/no/such/envoy.yaml")
	agent.Run(context.Background())
	if agent.Err() != nil {
		fmt.Println("no epoch is running")
	}
	// Output:
	// given up: /no/such/envoy.yaml
	// no epoch is running
}

// Restart waits until an epoch is started with the configuration, or none will be.
func ExampleAgent_Restart() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	agent := proxy.NewAgent(proxy.ProxyFuncs{
		RunFunc: func(_ any, _ int, abort <-chan error) error { return <-abort },
	}, proxy.DefaultRetry)
	go agent.Run(ctx)
	agent.Restart("blue")
	agent.Restart("green")
	fmt.Println("both were started")
	// Output: both were started
}

// The node ID of a role identifies the proxy to the control plane.
func ExampleDecodeServiceNode() {
	sidecar := proxy.Sidecar{IPAddress: "10.1.1.4", ID: "reviews-1.bookshop", Domain: "bookshop.svc.cluster.local"}
	fmt.Println(sidecar.ServiceNode())
	role, err := proxy.DecodeServiceNode("10.1.1.4|reviews-1.bookshop|bookshop.svc.cluster.local") // of 2017
	fmt.Println(role == sidecar, err)
	// Output:
	// sidecar~10.1.1.4~reviews-1.bookshop~bookshop.svc.cluster.local
	// true <nil>
}

func ExampleResolveAddr() {
	addr, err := proxy.ResolveAddr("[::1]:15010")
	fmt.Println(addr, err)
	// Output: [::1]:15010 <nil>
}
