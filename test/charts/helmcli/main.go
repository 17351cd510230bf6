// Helmcli is Helm's own client, for tests that run the commands of documents.
package main

import (
	"fmt"
	"os"

	"helm.sh/helm/v4/pkg/cmd"
)

func main() {
	c, err := cmd.NewRootCmd(os.Stdout, os.Args[1:], cmd.SetupLogging)
	if err == nil {
		err = c.Execute()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		os.Exit(1)
	}
}
