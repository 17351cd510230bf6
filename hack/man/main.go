// Man writes the manual pages of pilot-agent, pilot-discovery and pilotctl: go run ./hack/man OUTDIR.
//
// It runs each program's command collateral on this machine, whatever platform a release is for.
// The pages come from the command trees and the tables of internal/settings.
package main

import (
	"fmt"
	"os"
	"os/exec"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./hack/man OUTDIR")
		os.Exit(2)
	}
	for _, program := range []string{"pilot-agent", "pilot-discovery", "pilotctl"} {
		c := exec.Command("go", "run", "./cmd/"+program, "collateral", "--man", "--output_dir", os.Args[1])
		c.Env = append(c.Environ(), "GOOS=", "GOARCH=", "CGO_ENABLED=0")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Run(); err != nil {
			fmt.Fprintf(os.Stderr, "write the manual pages of %s: %v\n", program, err)
			os.Exit(1)
		}
	}
}
